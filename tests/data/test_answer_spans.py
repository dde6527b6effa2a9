from collections.abc import Mapping, Sequence

import pytest

from trainer.data.answer_spans import UnalignedError, answer_spans

Messages = Sequence[Mapping[str, str]]


def brackets(messages: Messages, add_generation_prompt: bool = False) -> str:
    shown = "".join(f"[{message['role'][0]}]{message['content'].strip()};" for message in messages)
    return shown + ("[a]" if add_generation_prompt else "")


def talk(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[number % 2], "content": content} for number, content in enumerate(contents)]


def answers(messages: Messages) -> list[str]:
    text = brackets(messages)
    return [text[start:end] for start, end in answer_spans(brackets, messages, text)]


def test_answers_are_found_as_rendered() -> None:
    assert answers(talk("q", " one ", "q", "two")) == ["one", "two"]


def test_an_answer_that_holds_what_follows_it_is_found_whole() -> None:
    assert answers(talk("q", "a;[u]q;[a]b", "q", "c;[u]q;[a]d")) == ["a;[u]q;[a]b", "c;[u]q;[a]d"]


def test_answers_that_repeat_the_marks() -> None:
    assert answers(talk("Mark0ofAnswer0end", "Mark0ofAnswer0end and Mark1ofAnswer0end")) == [
        "Mark0ofAnswer0end and Mark1ofAnswer0end"
    ]


def test_two_answers_in_a_row() -> None:
    messages = [*talk("q", "one"), {"role": "assistant", "content": "two"}]
    assert answers(messages) == ["one", "two"]


@pytest.mark.parametrize(
    ("render", "complaint"),
    [
        (lambda messages, **_: "".join(m["content"] for m in messages[:1]), "leaves an answer out"),
        (lambda messages, **_: f"{len(messages[1]['content'])}{messages[1]['content']}", "before the first answer"),
        (lambda messages, **_: f"{messages[1]['content']}{len(messages[1]['content'])}", "after the last answer"),
        (
            lambda messages, **_: f"{messages[1]['content']}{len(messages[1]['content'])}:{messages[3]['content']}",
            "between two answers",
        ),
    ],
)
def test_a_scaffold_that_depends_on_the_answers_is_refused(render: object, complaint: str) -> None:
    messages = talk("q", "one", "q", "two") if complaint == "between two answers" else talk("q", "one")
    with pytest.raises(UnalignedError, match=complaint):
        answer_spans(render, messages, render(messages))  # type: ignore[arg-type, operator]
