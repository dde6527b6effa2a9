"""What is generated and committed equals what would be generated now."""

from pathlib import Path

import pytest

from trainer import metrics_doc
from trainer.metrics import CATALOGUE, Metric


def test_metrics_page_is_fresh() -> None:
    assert metrics_doc.main(["--check"]) == 0, "run `make format`"


def test_every_metric_has_its_row() -> None:
    page = metrics_doc.page()
    for metric in CATALOGUE:
        assert f"| `{metric.full_name}` | {metric.kind} |" in page
        assert metric.help in page
        assert metric.question in page


def test_row_says_all_that_is_known() -> None:
    metric = Metric(
        name="a_seconds", kind="gauge", unit="seconds", labels=("b", "c"), column="d", help="Either | or.", question="Which?"
    )
    assert metrics_doc.table(("x",), [metrics_doc.row(metric)])[2:] == [
        "| `draftscope_a_seconds` | gauge | seconds | `b`, `c` | Either \\| or. | Which? | `d` |"
    ]


def test_check_tells_a_stale_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(metrics_doc, "PAGE", tmp_path / "metrics.md")
    assert metrics_doc.main(["--check"]) == 1, "a missing page is stale"
    assert "docs/metrics.md differs from trainer/metrics.py: run `make format`." in capsys.readouterr().err
    assert metrics_doc.main([]) == 0
    assert metrics_doc.main(["--check"]) == 0
    metrics_doc.PAGE.write_text(metrics_doc.page() + "\n")
    assert metrics_doc.main(["--check"]) == 1


def test_unknown_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert metrics_doc.main(["--chek"]) == 2
    assert "--chek" in capsys.readouterr().err
