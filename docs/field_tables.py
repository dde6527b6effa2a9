"""Tables of fields for the generated pages, from types: names, JSON types and docstrings."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

WORDS = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    types.NoneType: "null",
    Mapping: "object",
    dict: "object",
}


def described(kind: type, otherwise: Mapping[str, str] | None = None, *, without: Sequence[str] = ()) -> list[tuple[str, str, str]]:
    """(name, type, meaning) of each field: its docstring, else what `otherwise` says. Raises `ValueError` where neither exists."""
    told, hints = {**(otherwise or {}), **docstrings(kind)}, typing.get_type_hints(kind)
    names = [name for name in hints if name not in without]
    if missing := [name for name in names if name not in told]:
        raise ValueError(f"{kind.__name__}.{missing[0]} has no docstring: say in one sentence what it is")
    return [(code(name), json_type(hints[name]), told[name]) for name in names]


def docstrings(kind: type) -> dict[str, str]:
    """Field → the string that follows it in the class, or in one that it extends, on one line."""
    return {name: text for one in reversed(kind.__mro__[:-1]) for name, text in _own_docstrings(one)}


def _own_docstrings(kind: type) -> Iterator[tuple[str, str]]:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    for field, after in itertools.pairwise(body.body):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())


def json_type(hint: Any) -> str:
    """What a reader of JSON finds: `tuple[float | None, ...]` is a "list of numbers or nulls"."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(json_type, inner))
    if origin in (tuple, list, Sequence):
        return "list of " + " or ".join(word if word.endswith("s") else f"{word}s" for word in json_type(inner[0]).split(" or "))
    return WORDS.get(origin or hint, "object")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def code(name: str) -> str:
    return f"`{name}`"
