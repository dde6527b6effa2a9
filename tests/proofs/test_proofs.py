"""docs/proofs.md names tests that exist."""

import re

from tests.support.sources import ROOT


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "proofs.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    there = {file: (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).is_file() else "" for file, _ in named}
    assert [(file, name) for file, name in named if f"\ndef {name}(" not in there[file]] == []
