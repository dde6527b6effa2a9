"""`python -m docs.build`: fills in what the pages of docs/ say about the code, from the code itself; `--check` only compares.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`; all around it is written by hand.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from docs import record_tables, status_tables

ROOT = Path(__file__).parents[1]
DOCS = Path(__file__).parent

# In the order of the house: the top, the ground, the road, the watch, and who draws.
FOLDERS = (
    "trainer",
    *(f"trainer/{name}" for name in ("metrics", "metrics/catalogue", "record", "pipeline")),
    *(f"trainer/{name}" for name in ("data", "target", "drafter", "formats", "decoding", "evaluate", "prepare", "run")),
    *(f"trainer/{name}" for name in ("gpus", "monitor", "server", "trackers")),
    *("dashboard", "dashboard/record", "grafana", "docker", "docs"),
)


def files() -> str:
    """Each folder with its line, and a row for each of its files."""
    return "\n".join(line for folder in FOLDERS for line in _folder(folder))


def _folder(folder: str) -> Iterator[str]:
    paths = sorted(path for path in (ROOT / folder).glob("*.py") if path.name != "__init__.py")
    yield f"### `{folder}/`\n"
    package = ROOT / folder / "__init__.py"
    if package.exists():
        yield f"{_first_paragraph(package)}\n"
    yield "| file | job |\n| --- | --- |"
    yield from (f"| [`{path.name}`](../{folder}/{path.name}) | {_first_paragraph(path)} |" for path in paths)
    yield ""


def _first_paragraph(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "layout.md": {"files": files},
    "record.md": {
        "steps": record_tables.steps,
        "telemetry": record_tables.telemetry,
        "events": record_tables.events,
        "evaluation": record_tables.evaluation,
    },
    "status.md": status_tables.PARTS,
}


def page(name: str) -> str:
    """The page `name` with its generated parts made anew. Raises `ValueError` where one of them has no place in it."""
    text = (DOCS / name).read_text(encoding="utf-8")
    for part, make in PARTS[name].items():
        begin = f"<!-- generated: {part} -->"
        place = re.compile(f"{re.escape(begin)}\n.*?<!-- end -->", re.DOTALL)
        if not place.search(text):
            raise ValueError(f"docs/{name} has no place for {part}: put `{begin}` and `<!-- end -->` where it belongs")
        made = f"{begin}\n\n{make().strip()}\n\n<!-- end -->"
        text = place.sub(lambda _, made=made: made, text)  # type: ignore[misc]
    return text


def main(words: list[str]) -> int:
    if words not in ([], ["--check"]):
        print(f"docs.build: unknown argument {words[0]}; use --check or nothing", file=sys.stderr)
        return 2
    made = {name: page(name) for name in PARTS}
    stale = [name for name in PARTS if made[name] != (DOCS / name).read_text(encoding="utf-8")]
    for name in stale:
        if words:
            print(f"docs/{name} differs from the code: run `make format`.", file=sys.stderr)
        else:
            (DOCS / name).write_text(made[name], encoding="utf-8")
    return 1 if words and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
