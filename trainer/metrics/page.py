"""Writes docs/metrics.md from the catalogue: `python -m trainer.metrics.page`; `--check` fails if the page is stale.

Standard library only, like the catalogue.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from trainer.metrics.catalogue.gpus import GPU_KERNEL_ACTIVE
from trainer.metrics.catalogue.index import CATALOGUE
from trainer.metrics.catalogue.metric import OPEN_LABELS, Metric
from trainer.metrics.catalogue.run import CHECKPOINTS, RUN_INFO, VERDICT, verdict_labels
from trainer.metrics.catalogue.stages import STAGE_DEVICE, STAGE_SECONDS
from trainer.metrics.catalogue.training import POSITION_ACCURACY, STEPS
from trainer.metrics.catalogue.watching import PROCESS_CPU, RECORD_ERRORS

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
BLOCK_SIZE = 16

HEADER = """\
# Metrics

Generated from `trainer/metrics/catalogue/` by `python -m trainer.metrics.page`; do not edit. `make check` fails while the two
differ.

The trainer serves these metrics at `/metrics`; Prometheus adds `_bucket`, `_sum` and `_count` to a histogram's name. Units are
base units, ratios range from 0 to 1, times are Unix seconds. The last column names the field of `steps.jsonl` that holds the
same number for every step; stages, queues, devices and the process are in `telemetry.jsonl` (see [record.md](record.md)).
Prometheus samples every few seconds, so it is no record of every step: between two scrapes it sees only how far its counters
have risen.

"""

QUERYING = """\
## How to query them

**By run.** Curves that people compare between runs carry `run_id`. Join all other metrics by their target (`rank` is empty
outside of torchrun):

```promql
draftscope_queue_items * on (job, instance, rank) group_left (run_id) draftscope_run_info
```

**Counters** start at 0 with each process; `rate()` and `increase()` handle that. Three metrics differ:
`draftscope_restarts_total` and the gauge `draftscope_global_step` continue from an earlier process of the run (the latter from
the checkpoint that was resumed), and `draftscope_gpu_energy_joules_total` belongs to the driver. Every known label set is
present at 0 from the first scrape, since `increase()` never sees the first increment of a series that appears with it.

**Absent** means unknown, not 0:

- metrics of a step before the first step, metrics of an evaluation before the first evaluation of the run;
- `draftscope_remaining_seconds` without a known speed, `draftscope_max_steps` and `draftscope_progress_ratio` if nothing ends
  the run;
- `draftscope_stage_since_progress_seconds` of a stage whose threads have all ended: it is not stuck;
- disk space, while the disk does not answer;
- figures that a GPU or its driver does not provide, every GPU while the sampler is down, and trackers that were not requested.

**Ratios** of two counters are computed over a range, such as the acceptance length over all evaluations of a day:

```promql
1 + increase(draftscope_evaluation_accepted_tokens_total[1d]) / increase(draftscope_evaluation_rounds_total[1d])
```
"""


class Section(NamedTuple):
    """A section of the page: the metrics from `first` up to the next section's first."""

    title: str
    first: Metric
    about: str = ""


SECTIONS = (
    Section("The run", RUN_INFO),
    Section("Checkpoints and disk", CHECKPOINTS),
    Section("Training", STEPS),
    Section("Acceptance", POSITION_ACCURACY, "*Estimated* is computed from accuracy on given text, *measured* from decoding."),
    Section("Stages and queues", STAGE_SECONDS, "A queue is named by what it carries."),
    Section("GPUs", GPU_KERNEL_ACTIVE, "The latest figures of a dedicated thread; a scrape never calls the driver."),
    Section("The process", PROCESS_CPU),
    Section("Watching", RECORD_ERRORS),
)
COLUMNS = ("metric", "type", "unit", "labels", "meaning", "answers", "`steps.jsonl`")


def page() -> str:
    """The whole of docs/metrics.md."""
    histograms = [metric for metric in CATALOGUE if metric.buckets]
    return HEADER + "\n".join(
        [
            QUERYING,
            *(line for section, found in by_section() for line in section_lines(section, found)),
            "## Label values\n",
            *table(("label", "on", "values"), label_values()),
            "\n## Buckets\n",
            *table(("histogram", "upper bounds"), [buckets(metric) for metric in histograms]),
            "\n## Number of series\n",
            series_budget(),
            "",
        ]
    )


def by_section() -> Iterator[tuple[Section, list[Metric]]]:
    """The catalogue, split into sections."""
    cuts = [CATALOGUE.index(section.first) for section in SECTIONS] + [len(CATALOGUE)]
    for section, start, end in zip(SECTIONS, cuts, cuts[1:], strict=False):
        yield section, list(CATALOGUE[start:end])


def section_lines(section: Section, found: list[Metric]) -> list[str]:
    about = [section.about, ""] if section.about else []
    return [f"## {section.title}", "", *about, *table(COLUMNS, map(row, found)), ""]


def row(metric: Metric) -> tuple[str, ...]:
    labels = ", ".join(map(code, metric.label_names))
    return (code(metric.full_name), metric.kind, metric.unit, labels, metric.help, metric.question, code(metric.column))


def label_values() -> list[tuple[str, str, str]]:
    """Each label, the metrics on which it has the same values, and these values or what bounds them."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {("run_id", ()): ["every curve"]}
    for metric in CATALOGUE:
        for label, values in metric.known_values.items():
            found.setdefault((label, values), []).append(code(metric.name))
    shown = []
    for (label, values), names in sorted(found.items()):
        of = ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"
        shown.append((code(label), of, ", ".join(code(value) or "empty" for value in values) or OPEN_LABELS[label]))
    return shown


def buckets(metric: Metric) -> tuple[str, str]:
    return code(metric.full_name), ", ".join(f"{bound:g}" for bound in metric.buckets) + f" {metric.unit}"


def series(metric: Metric, *, gpus: int, block_size: int = BLOCK_SIZE) -> int:
    """Maximum number of series of a metric in one process."""
    if metric is VERDICT:
        return len(verdict_labels())
    if metric is STAGE_DEVICE:
        return gpus and gpus + 1  # the target on each, the drafter on one
    many = {"gpu": gpus, "position": block_size - 1}
    listed = metric.kind != "info"  # an info has one of the values
    children = math.prod(
        many.get(label, 1) if not values else len(values) if listed else 1 for label, values in metric.known_values.items()
    )
    return children * (len(metric.buckets) + 3 if metric.buckets else 1)


def series_budget() -> str:
    of_trackers = [metric for metric in CATALOGUE if "tracker" in metric.labels]
    two, three = (sum(series(metric, gpus=gpus) for metric in CATALOGUE if metric not in of_trackers) for gpus in (2, 3))
    return (
        f"At block size {BLOCK_SIZE} a process has at most {two} series with up to two GPUs, {three - two} more for each further\n"
        f"GPU, and {len(of_trackers)} for each tracker that follows the run. "
        "`python -m tests.benchmarks.exposition` counts\nthem and measures the cost of a scrape."
    )


def code(word: str) -> str:
    return f"`{word}`" if word else ""


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Lines of a Markdown table; `|` in a cell is escaped."""
    lines = [header, tuple("---" for _ in header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def main(arguments: list[str]) -> int:
    """Exit code: 0 if the page is fresh now, 1 if `--check` finds it stale, 2 for unknown arguments."""
    if arguments not in ([], ["--check"]):
        print(f"usage: python -m trainer.metrics.page [--check], got {' '.join(arguments)}", file=sys.stderr)
        return 2
    if not arguments:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"docs/{PAGE.name} differs from trainer/metrics/catalogue/: run `make format`.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
