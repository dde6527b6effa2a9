"""docs/build.py and docs/field_tables.py: pages are fresh, a stale one is named, a field without a meaning is refused."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from docs import build, field_tables
from trainer.record.format import StepLine


def test_the_pages_are_fresh() -> None:
    assert build.main(["--check"]) == 0, "run `make format`"


def test_a_stale_page_is_named_and_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in build.PARTS:
        shutil.copy(build.DOCS / name, tmp_path)
    monkeypatch.setattr(build, "DOCS", tmp_path)
    page = tmp_path / "record.md"
    whole = page.read_text()
    page.write_text(whole.replace("Norm of the gradient", "Weight of the gradient"))
    assert build.main(["--check"]) == 1
    assert "docs/record.md" in capsys.readouterr().err
    assert build.main([]) == 0
    assert page.read_text() == whole


def test_a_part_without_a_place_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "record.md").write_text("# Nothing here\n")
    monkeypatch.setattr(build, "DOCS", tmp_path)
    with pytest.raises(ValueError, match=r"docs/record\.md has no place for steps"):
        build.page("record.md")


def test_a_field_that_nobody_describes_is_refused() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Longer(StepLine):
        sharpness: float

    with pytest.raises(ValueError, match=r"Longer\.sharpness has no docstring"):
        field_tables.described(Longer)
    assert field_tables.described(Longer, {"sharpness": "How sharp."})[-1] == ("`sharpness`", "number", "How sharp.")


def test_types_are_said_as_a_reader_of_json_meets_them() -> None:
    said = [field_tables.json_type(hint) for hint in (int | None, tuple[float | None, ...], str)]
    assert said == ["whole number or null", "list of numbers or nulls", "text"]


def test_status_has_a_table_for_each_object_of_the_document() -> None:
    page = build.page("status.md")
    for row in ("| `loss_unit` | text or null |", "| `busy_ratio` | number |", "| `kernel_active_ratio` | number or null |"):
        assert row in page
    assert "| `aliases`" not in page, "only the sampler needs it"
