"""Tables for docs/record.md, made from the types of the record's lines: their fields, docstrings and the metrics they feed."""

from __future__ import annotations

import ast
import inspect
import itertools
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainer.metrics.catalogue.index import step_columns
from trainer.record.format import EVENT_KINDS, EvaluationLine, Line, StepLine, TelemetryLine, field_names

WORDS = {int: "whole number", float: "number", str: "text", types.NoneType: "null", Mapping: "object"}


def steps() -> str:
    metrics = dict(step_columns())
    meant = described(StepLine, {column: metric.help for column, metric in metrics.items()})
    numbers = [_code(metrics[name].full_name) if name in metrics else "" for name in field_names(StepLine)]
    rows = [(*row, number) for row, number in zip(meant, numbers, strict=True)]
    return table(("field", "type", "meaning", "in `/metrics`"), rows)


def telemetry() -> str:
    return table(("field", "type", "meaning"), described(TelemetryLine))


def evaluation() -> str:
    return table(("field", "type", "meaning"), described(EvaluationLine))


def events() -> str:
    rows = ((_code(kind.name), kind.meaning, ", ".join(map(_code, kind.fields))) for kind in EVENT_KINDS)
    return table(("event", "meaning", "own fields"), rows)


def described(kind: type[Line], otherwise: Mapping[str, str] | None = None) -> list[tuple[str, str, str]]:
    """(name, type, meaning) of each field: its docstring, else what `otherwise` says. Raises `ValueError` where neither exists."""
    told, hints = {**(otherwise or {}), **docstrings(kind)}, typing.get_type_hints(kind)
    if missing := [name for name in field_names(kind) if name not in told]:
        raise ValueError(f"{kind.__name__}.{missing[0]} has no docstring: say in one sentence what it is")
    return [(_code(name), json_type(hints[name]), told[name]) for name in field_names(kind)]


def docstrings(kind: type) -> dict[str, str]:
    """Field → the string that follows it in the class, or in one that it extends, on one line."""
    return {name: text for one in reversed(kind.__mro__[:-1]) for name, text in _own_docstrings(one)}


def _own_docstrings(kind: type) -> Iterator[tuple[str, str]]:
    (body,) = ast.parse(inspect.cleandoc(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    for field, after in itertools.pairwise(body.body):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())


def json_type(hint: Any) -> str:
    """What a reader of JSON finds: `tuple[float | None, ...]` is a "list of numbers or nulls"."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return " or ".join(map(json_type, inner))
    if origin in (tuple, Sequence):
        return "list of " + " or ".join(f"{word}s" for word in json_type(inner[0]).split(" or "))
    return WORDS[origin or hint]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _code(name: str) -> str:
    return f"`{name}`"
