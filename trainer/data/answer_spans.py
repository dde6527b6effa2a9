"""Where the answers stand in a rendered conversation: the scaffold of the chat template, laid over the true text.

A template may trim answers, move the system prompt, put an empty thinking block before an answer or leave the thoughts of earlier
answers out. It does the same to a conversation whose answers are marks, so what stands around the marks stands around the answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer.data.conversations import Message

Render = Callable[..., str]

THINK_END = "</think>"


class UnalignedError(Exception):
    """The answers can't be found in the rendered text."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """What stands for one answer: a mark for its text and one for its thoughts ("" where it has none)."""

    answer: str
    thoughts: str
    contents: tuple[str, ...]  # what templates are known to make of the answer


def answer_spans(render: Render, messages: Sequence[Message], text: str) -> list[tuple[int, int]]:
    """Start and end in `text` (= `render(messages)`) of each answer as rendered, thoughts included, in order.

    Raises `UnalignedError` where the scaffold does not fit, and whatever `render` raises.
    """
    marked, marks = _mark(messages)
    between = _split(render(marked), marks, lambda: _header(render, messages))
    if not text.startswith(between[0]):
        raise UnalignedError("what comes before the first answer depends on that answer")
    spans: list[tuple[int, int]] = []
    start = len(between[0])
    for mark, behind in zip(marks[:-1], between[1:-1], strict=True):
        end = _end(text, start, behind, mark.contents)
        spans.append((start, end))
        start = end + len(behind)
    end = len(text) - len(between[-1])
    if end < start or not text.endswith(between[-1]):
        raise UnalignedError("what comes after the last answer depends on the answers")
    return [*spans, (start, end)]


def _mark(messages: Sequence[Message]) -> tuple[list[Message], list[_Mark]]:
    said = "\n".join(value for message in messages for value in message.values())
    stem = next(word for n in itertools.count() if (word := f"Mark{n}of") not in said)
    marked: list[Message] = []
    marks: list[_Mark] = []
    for message in messages:
        if message["role"] != "assistant":
            marked.append(message)
            continue
        answer = f"{stem}Answer{len(marks)}end"
        thoughts = f"{stem}Thoughts{len(marks)}end" if _thinks(message) else ""
        marks.append(_Mark(answer, thoughts, _contents(message["content"])))
        stand_in = {**message, "content": answer}
        if "reasoning_content" in message:
            stand_in["reasoning_content"] = thoughts
        elif thoughts:
            stand_in["content"] = f"<think>\n{thoughts}\n{THINK_END}\n\n{answer}"
        marked.append(stand_in)
    return marked, marks


def _thinks(message: Message) -> bool:
    if "reasoning_content" in message:
        return bool(message["reasoning_content"].strip())
    thoughts, end, _ = message["content"].rpartition(THINK_END)
    return bool(end) and bool(thoughts.replace("<think>", "").strip())


def _contents(content: str) -> tuple[str, ...]:
    spoken = content.rpartition(THINK_END)[2]
    return tuple(dict.fromkeys((content, content.strip(), spoken, spoken.lstrip("\n"), spoken.strip())))


def _split(scaffold: str, marks: Sequence[_Mark], header: Callable[[], str]) -> list[str]:
    """The texts before, between and behind the answers: one more than there are marks."""
    between: list[str] = []
    at = 0
    for mark in marks:
        found = scaffold.find(mark.answer, at)
        if found < 0:
            raise UnalignedError("it leaves an answer out or changes it")
        before, thinks, _ = scaffold[at:found].partition(mark.thoughts) if mark.thoughts else (scaffold[at:found], "", "")
        between.append(_before_thoughts(before, header()) if thinks else before)
        at = found + len(mark.answer)
    return [*between, scaffold[at:]]


def _before_thoughts(before: str, header: str) -> str:
    """`before` ends in what opens the thoughts. That is said by the target, unless the header of its turn holds it already."""
    end = before.rfind(header) if header else -1
    if end >= 0:
        return before[: end + len(header)]
    return before.rstrip().removesuffix("<think>")


def _header(render: Render, messages: Sequence[Message]) -> str:
    """What the template puts before an answer when it asks for one, "" if it can't be told."""
    first = next(index for index, message in enumerate(messages) if message["role"] == "assistant")
    if first == 0:
        return ""
    asked, plain = render(messages[:first], add_generation_prompt=True), render(messages[:first])
    return asked[len(plain) :] if asked.startswith(plain) else ""


def _end(text: str, start: int, behind: str, contents: Sequence[str]) -> int:
    """Where the answer that begins at `start` ends: before `behind`, which the answer itself may happen to contain."""
    for content in contents:
        if text.startswith(content + behind, start):
            return start + len(content)
    end = text.find(behind, start) if behind else -1
    if end < 0:
        raise UnalignedError("what comes between two answers depends on them")
    return end
