"""The name of an alert in, its page of docs/runbooks/ out: what an alert's `runbook_url` leads to. Read once, at the start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "runbooks"


def load(folder: Path = FOLDER) -> dict[str, str]:
    """Pages by the alert's name in lower case; empty where the folder is not there, as in an installation without docs."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}


def listing(pages: Mapping[str, str]) -> str:
    """One line for each page: its address and the sentence that it opens with."""
    return "".join(f"/runbooks/{name}  {_opening(text)}\n" for name, text in pages.items())


def missing(name: str, pages: Mapping[str, str]) -> str:
    """Why there is no such page, with the way out."""
    if not pages:
        return "This dashboard was installed without docs/runbooks, so it has no runbooks to show; they are in the repository."
    return f"There is no runbook {name[:100]!r}; /runbooks lists those that there are."


def _opening(text: str) -> str:
    """The first bold sentence, on one line and without its stars."""
    return " ".join(text.partition("**")[2].partition("**")[0].split())
