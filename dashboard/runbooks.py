"""The runbooks of docs/runbooks/, to which an alert's `runbook_url` points; read once, at start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "runbooks"


def load(folder: Path = FOLDER) -> dict[str, str]:
    """Pages by the alert's name in lower case; empty without the folder, as in an installation without docs."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}


def listing(pages: Mapping[str, str]) -> str:
    """One line per page: its address and its opening sentence."""
    return "".join(f"/runbooks/{name}  {_opening(text)}\n" for name, text in pages.items())


def missing(name: str, pages: Mapping[str, str]) -> str:
    """Why there is no such page, and where to look."""
    if not pages:
        return "This dashboard was installed without docs/runbooks; the runbooks are in the repository."
    return f"There is no runbook {name[:100]!r}; /runbooks lists them all."


def _opening(text: str) -> str:
    """The first bold sentence, on one line, without its asterisks."""
    return " ".join(text.partition("**")[2].partition("**")[0].split())
