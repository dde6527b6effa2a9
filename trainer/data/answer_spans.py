"""Finds the answers in a rendered conversation by rendering it a second time with marks in place of the answers.

A template may trim answers, move the system prompt, put an empty thinking block before an answer or drop the thoughts of earlier
answers. It does the same to the marked copy, so the text around the marks (the scaffold) is the text around the answers.

Example: "<user>Why?<bot>Because.<end>" rendered with a mark is "<user>Why?<bot>MARK<end>"; its scaffold is "<user>Why?<bot>" and
"<end>", so the answer is what lies between these two in the true text.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer.data.conversations import Message

Render = Callable[..., str]

THINK_END = "</think>"


class UnalignedError(Exception):
    """The answers cannot be found in the rendered text."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """Stands for one answer: a mark for its text and one for its thoughts ("" where it has none)."""

    answer: str
    thoughts: str
    contents: tuple[str, ...]  # the forms that known templates give the answer's text, the likeliest first


def answer_spans(render: Render, messages: Sequence[Message], text: str) -> list[tuple[int, int]]:
    """Start and end in `text` (= `render(messages)`) of each answer as rendered, thoughts included, in order.

    Raises `UnalignedError` where the scaffold does not match `text`, and whatever `render` raises.
    """
    marked, marks = _mark(messages)
    between = _split(render(marked), marks, lambda: _header(render, messages))
    if not text.startswith(between[0]):
        raise UnalignedError("what comes before the first answer depends on that answer")
    spans: list[tuple[int, int]] = []
    start = len(between[0])
    for mark, following in zip(marks[:-1], between[1:-1], strict=True):
        end = _end(text, start, following, mark.contents)
        spans.append((start, end))
        start = end + len(following)
    end = len(text) - len(between[-1])
    if end < start or not text.endswith(between[-1]):
        raise UnalignedError("what comes after the last answer depends on the answers")
    return [*spans, (start, end)]


def _mark(messages: Sequence[Message]) -> tuple[list[Message], list[_Mark]]:
    everything = "\n".join(value for message in messages for value in message.values())
    stem = next(word for n in itertools.count() if (word := f"Mark{n}of") not in everything)
    marked: list[Message] = []
    marks: list[_Mark] = []
    for message in messages:
        if message["role"] != "assistant":
            marked.append(message)
            continue
        answer = f"{stem}Answer{len(marks)}end"
        thoughts = f"{stem}Thoughts{len(marks)}end" if _has_thoughts(message) else ""
        marks.append(_Mark(answer, thoughts, _contents(message["content"])))
        replaced = {**message, "content": answer}
        if "reasoning_content" in message:
            replaced["reasoning_content"] = thoughts
        elif thoughts:
            replaced["content"] = f"<think>\n{thoughts}\n{THINK_END}\n\n{answer}"
        marked.append(replaced)
    return marked, marks


def _has_thoughts(message: Message) -> bool:
    if "reasoning_content" in message:
        return bool(message["reasoning_content"].strip())
    thoughts, end, _ = message["content"].rpartition(THINK_END)
    return bool(end) and bool(thoughts.replace("<think>", "").strip())


def _contents(content: str) -> tuple[str, ...]:
    visible = content.rpartition(THINK_END)[2]
    return tuple(dict.fromkeys((content, content.strip(), visible, visible.lstrip("\n"), visible.strip())))


def _split(scaffold: str, marks: Sequence[_Mark], header: Callable[[], str]) -> list[str]:
    """The texts before, between and after the answers: one more than there are marks."""
    between: list[str] = []
    position = 0
    for mark in marks:
        found = scaffold.find(mark.answer, position)
        if found < 0:
            raise UnalignedError("it leaves an answer out or changes it")
        before, thoughts = scaffold[position:found], ""
        if mark.thoughts:
            before, thoughts, _ = before.partition(mark.thoughts)
        between.append(_before_thoughts(before, header()) if thoughts else before)
        position = found + len(mark.answer)
    return [*between, scaffold[position:]]


def _before_thoughts(before: str, header: str) -> str:
    """`before` without the tag that opens the thoughts: the target generates it, unless the header of its turn ends with it."""
    end = before.rfind(header) if header else -1
    if end >= 0:
        return before[: end + len(header)]
    return before.rstrip().removesuffix("<think>")


def _header(render: Render, messages: Sequence[Message]) -> str:
    """The template's generation prompt: the header of the assistant's turn; "" where it cannot be separated from the rest."""
    first = next(index for index, message in enumerate(messages) if message["role"] == "assistant")
    if first == 0:
        return ""
    prompt, plain = render(messages[:first], add_generation_prompt=True), render(messages[:first])
    return prompt[len(plain) :] if prompt.startswith(plain) else ""


def _end(text: str, start: int, following: str, contents: Sequence[str]) -> int:
    """Where the answer that begins at `start` ends: before the text `following`, which the answer itself may contain too."""
    for content in contents:
        if text.startswith(content + following, start):
            return start + len(content)
    end = text.find(following, start) if following else -1
    if end < 0:
        raise UnalignedError("what comes between two answers depends on them")
    return end
