"""What is generated and committed equals what would be generated now."""

from pathlib import Path

import pytest

from trainer.metrics import page as metrics_doc
from trainer.metrics.catalogue.gpus import GPU_BACKEND, GPU_CLOCK
from trainer.metrics.catalogue.index import CATALOGUE
from trainer.metrics.catalogue.metric import OPEN_LABELS, Metric
from trainer.metrics.catalogue.run import VERDICT
from trainer.metrics.catalogue.stages import STAGE_DEVICE, STAGE_ITEM_SECONDS, STAGE_SECONDS
from trainer.metrics.catalogue.training import POSITION_ACCURACY


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
    assert "docs/metrics.md differs from trainer/metrics/catalogue/: run `make format`." in capsys.readouterr().err
    assert metrics_doc.main([]) == 0
    assert metrics_doc.main(["--check"]) == 0
    metrics_doc.PAGE.write_text(metrics_doc.page() + "\n")
    assert metrics_doc.main(["--check"]) == 1


def test_unknown_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert metrics_doc.main(["--chek"]) == 2
    assert "--chek" in capsys.readouterr().err


def test_every_metric_is_in_one_section() -> None:
    found = [metric for _, inside in metrics_doc.by_section() for metric in inside]
    assert found == list(CATALOGUE)
    assert all(inside for _, inside in metrics_doc.by_section())


def test_what_labels_can_say_is_told_of_every_label() -> None:
    told = {(label, values) for label, _, values in metrics_doc.label_values()}
    for metric in CATALOGUE:
        for label, values in metric.known_values.items():
            shown = ", ".join(f"`{value}`" if value else "empty" for value in values) or OPEN_LABELS[label]
            assert (f"`{label}`", shown) in told


def test_series_of_one_metric() -> None:
    assert metrics_doc.series(STAGE_SECONDS, gpus=2) == 12
    assert metrics_doc.series(STAGE_ITEM_SECONDS, gpus=0) == 4 * (len(STAGE_ITEM_SECONDS.buckets) + 3)
    assert metrics_doc.series(GPU_CLOCK, gpus=2) == 4
    assert metrics_doc.series(GPU_BACKEND, gpus=2) == 1, "one of its words"
    assert [metrics_doc.series(STAGE_DEVICE, gpus=gpus) for gpus in (0, 1, 3)] == [0, 2, 4], "the drafter on one of them"
    assert metrics_doc.series(POSITION_ACCURACY, gpus=0, block_size=8) == 7
    assert metrics_doc.series(VERDICT, gpus=0) == 17, "a stage only where the state is about one"
