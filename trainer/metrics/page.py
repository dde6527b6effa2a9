"""The catalogue as a page for people: `python -m trainer.metrics.page` writes docs/metrics.md, `--check` fails if it is stale.

Standard library only, like the catalogue itself.
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
# Every number that is measured

Generated from `trainer/metrics/catalogue/` by `python -m trainer.metrics.page`; `make check` fails while the two
differ. Change it there.

The trainer serves them at `/metrics`; Prometheus adds `_bucket`, `_sum` and `_count` to a histogram's name. Units are base units,
ratios go from 0 to 1, moments are Unix seconds. The last column names the field of `steps.jsonl` that holds the same number for
every step; what stages, queues, devices and the process did is in `telemetry.jsonl` (see [record.md](record.md)). Prometheus looks
every few seconds: it is not the record, and knows the steps between two looks by its counters alone.

"""

READING = """\
## How to read them

**One run's numbers.** Curves that are laid over each other carry `run_id`. All others are joined to it by the address that they
come from (`rank` is empty outside of torchrun):

```promql
draftscope_queue_items * on (job, instance, rank) group_left (run_id) draftscope_run_info
```

**Counters** count what this process did, and begin at 0 with it; `rate()` and `increase()` take that for what it is. Two go on
where an earlier process of the run stood: `draftscope_restarts_total`, and the gauge `draftscope_global_step`, which goes back to
the checkpoint that a resume began with. `draftscope_gpu_energy_joules_total` is the driver's own. Every set of labels that can be
foreseen is there at 0 from the first scrape, since a series that is born at 1 never shows that 1 to `increase()`.

**Absent** is what is not known, rather than 0:

- what a step tells, before the first one; what an evaluation tells, before the first one of the run;
- `draftscope_remaining_seconds` without a pace, `draftscope_max_steps` and `draftscope_progress_ratio` where nothing ends the run;
- `draftscope_stage_since_progress_seconds` of a stage whose threads have all ended: it is not stuck;
- the room on the disk, while the disk does not answer;
- what a GPU or its driver does not tell, and every GPU while the sampler is down; trackers that were not asked for.

**Ratios** of two counters are taken over a stretch of time, as in the acceptance length of all evaluations of a day:

```promql
1 + increase(draftscope_evaluation_accepted_tokens_total[1d]) / increase(draftscope_evaluation_rounds_total[1d])
```
"""


class Section(NamedTuple):
    """Its metrics go from `first` to the next section's."""

    title: str
    first: Metric
    about: str = ""


SECTIONS = (
    Section("The run", RUN_INFO),
    Section("Checkpoints and disk", CHECKPOINTS),
    Section("Training", STEPS),
    Section("Acceptance", POSITION_ACCURACY, "*Estimated* comes from accuracy on given text, *measured* from decoding."),
    Section("Stages and queues", STAGE_SECONDS, "A queue is named by what it carries."),
    Section("GPUs", GPU_KERNEL_ACTIVE, "As a thread of its own saw them last; a scrape asks no driver."),
    Section("The process", PROCESS_CPU),
    Section("Watching itself", RECORD_ERRORS),
)
COLUMNS = ("metric", "type", "unit", "labels", "meaning", "answers", "`steps.jsonl`")


def page() -> str:
    """The whole of docs/metrics.md."""
    histograms = [metric for metric in CATALOGUE if metric.buckets]
    return HEADER + "\n".join(
        [
            READING,
            *(line for section, found in by_section() for line in tell(section, found)),
            "## What labels can say\n",
            *table(("label", "of", "values"), label_values()),
            "\n## Buckets\n",
            *table(("histogram", "upper bounds"), [buckets(metric) for metric in histograms]),
            "\n## How many series\n",
            how_many(),
            "",
        ]
    )


def by_section() -> Iterator[tuple[Section, list[Metric]]]:
    """The catalogue, cut where a section begins."""
    cuts = [CATALOGUE.index(section.first) for section in SECTIONS] + [len(CATALOGUE)]
    for section, start, end in zip(SECTIONS, cuts, cuts[1:], strict=False):
        yield section, list(CATALOGUE[start:end])


def tell(section: Section, found: list[Metric]) -> list[str]:
    about = [section.about, ""] if section.about else []
    return [f"## {section.title}", "", *about, *table(COLUMNS, map(row, found)), ""]


def row(metric: Metric) -> tuple[str, ...]:
    labels = ", ".join(map(code, metric.label_names))
    return (code(metric.full_name), metric.kind, metric.unit, labels, metric.help, metric.question, code(metric.column))


def label_values() -> list[tuple[str, str, str]]:
    """Each label with the metrics that say the same by it: the words there are, or what bounds them."""
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
    """How many series it has at most in one process."""
    if metric is VERDICT:
        return len(verdict_labels())
    if metric is STAGE_DEVICE:
        return gpus and gpus + 1  # the target on each, the drafter on one
    many = {"gpu": gpus, "position": block_size - 1}
    listed = metric.kind != "info"  # an info says one word of a list
    children = math.prod(
        many.get(label, 1) if not values else len(values) if listed else 1 for label, values in metric.known_values.items()
    )
    return children * (len(metric.buckets) + 3 if metric.buckets else 1)


def how_many() -> str:
    of_trackers = [metric for metric in CATALOGUE if "tracker" in metric.labels]
    two, three = (sum(series(metric, gpus=gpus) for metric in CATALOGUE if metric not in of_trackers) for gpus in (2, 3))
    return (
        f"At block size {BLOCK_SIZE} a process has at most {two} series with up to two GPUs, {three - two} more for each further\n"
        f"one, and {len(of_trackers)} for each other tracker that follows the run. "
        "`python -m tests.benchmarks.exposition` counts\nthem, and measures what a scrape costs."
    )


def code(word: str) -> str:
    return f"`{word}`" if word else ""


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Lines of a Markdown table; a `|` within a cell is escaped."""
    lines = [header, tuple("---" for _ in header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def main(arguments: list[str]) -> int:
    """0 when the page is (now) fresh, 1 when `--check` finds it stale, 2 for arguments that it does not know."""
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
