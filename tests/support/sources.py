"""The repository's own source, read by the tests that keep its rules. Nothing is imported or run."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = {".py", ".md", ".toml", ".txt", ".sh", ".yml", ".yaml", ".html", ".js", ".css"}
OURS = ("trainer", "dashboard", "grafana", "docker", "docs", "tests", "requirements", ".ci")


def product_modules(*folders: str) -> list[Path]:
    """The Python files of the given product folders, sorted; a folder that is not there has none."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def text_files() -> Iterator[Path]:
    """Every file that people read: sources, pages, scripts, settings."""
    yield from (path for path in ROOT.iterdir() if path.is_file() and (path.suffix in TEXT or path.name == "Makefile"))
    for folder in OURS:
        yield from (path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in TEXT or path.parent.name == ".ci")


def name_of(path: Path) -> str:
    """`trainer/pipeline/queues.py` → `trainer.pipeline.queues`; a package's `__init__.py` → the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_names(path: Path) -> set[str]:
    """Everything a file imports, wherever in it: modules, and `module.name` for what comes out of one."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a name comes from"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported_modules(path: Path, modules: set[str]) -> set[str]:
    """Those of `modules` that a file imports, whether as `import a.b`, `from a import b` or `from a.b import c`."""
    found = set()
    for name in imported_names(path):
        while name and name not in modules:
            name = name.rpartition(".")[0]
        found |= {name} - {""}
    return found
