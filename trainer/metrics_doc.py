"""The catalogue as a page for people: `python -m trainer.metrics_doc` writes docs/metrics.md, `--check` fails if it is stale.

Standard library only, like the catalogue itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from trainer import metrics
from trainer.metrics import CATALOGUE, Metric

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"

HEADER = """\
# Every number that is measured

Generated from `trainer/metrics.py` by `python -m trainer.metrics_doc`; `make check` fails while the two differ. Change it there.

Served by the trainer at `/metrics`; Prometheus adds `_bucket`, `_sum` and `_count` to a histogram's name. Units are base units,
ratios go from 0 to 1. The last column names the field of `steps.jsonl` that holds the same number for every step; what stages,
queues, devices and the process did is in `samples.jsonl` (see [record.md](record.md)).
"""

COLUMNS = ("metric", "type", "unit", "labels", "meaning", "answers", "`steps.jsonl`")

LABEL_VALUES = (
    ("run_state", "state", metrics.RUN_STATES),
    ("verdict", "state", metrics.VERDICT_STATES),
    ("stage_*", "stage", metrics.STAGES),
    ("stage_seconds_total", "state", metrics.STAGE_STATES),
    ("queue_*", "queue", metrics.QUEUES),
    ("tokens_total", "kind", metrics.TOKEN_KINDS),
    ("samples_dropped_total", "reason", metrics.DROP_REASONS),
    ("skipped_steps_total", "reason", metrics.SKIP_REASONS),
    ("checkpoints_total", "outcome", metrics.CHECKPOINT_OUTCOMES),
    ("evaluations_total", "outcome", metrics.EVALUATION_OUTCOMES),
    ("watch_*", "part", metrics.WATCH_PARTS),
)


def page() -> str:
    """The whole of docs/metrics.md."""
    values = [(f"`{metrics.PREFIX}{name}`", code(label), ", ".join(map(code, words))) for name, label, words in LABEL_VALUES]
    return "\n".join(
        [
            HEADER,
            *table(COLUMNS, [row(metric) for metric in CATALOGUE]),
            "\n## What labels can say\n",
            *table(("metric", "label", "values"), values),
            "\n## Buckets\n",
            *table(("histogram", "upper bounds"), [buckets(metric) for metric in CATALOGUE if metric.buckets]),
            "",
        ]
    )


def row(metric: Metric) -> tuple[str, ...]:
    labels = ", ".join(map(code, metric.labels))
    return (code(metric.full_name), metric.kind, metric.unit, labels, metric.help, metric.question, code(metric.column))


def buckets(metric: Metric) -> tuple[str, str]:
    return code(metric.full_name), ", ".join(f"{bound:g}" for bound in metric.buckets) + f" {metric.unit}"


def code(word: str) -> str:
    return f"`{word}`" if word else ""


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Lines of a Markdown table; a `|` within a cell is escaped."""
    lines = [header, tuple("---" for _ in header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def main(arguments: list[str]) -> int:
    """0 when the page is (now) fresh, 1 when `--check` finds it stale, 2 for arguments that it does not know."""
    if arguments not in ([], ["--check"]):
        print(f"usage: python -m trainer.metrics_doc [--check], got {' '.join(arguments)}", file=sys.stderr)
        return 2
    if not arguments:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"docs/{PAGE.name} differs from trainer/metrics.py: run `make format`.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
