"""One number as it is declared: what is known of it before it is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram", "info"]
PREFIX = "draftscope_"
# Labels that no list can hold, and what bounds them instead.
OPEN_LABELS = {
    "run_id": "the run's name; a process serves one run",
    "target": "the name of the target; one a run",
    "version": "of Draftscope; one a process",
    "git_commit": "of the code that runs, empty outside of a checkout; one a process",
    "python": "version; one a process",
    "torch": "version; one a process",
    "position": "1 … block size - 1; one for which there was no draft token is absent",
    "gpu": "counted as nvidia-smi does, `0:1` for part 1 of a split GPU 0 (MIG); those that the process may use",
    "uuid": "one a GPU",
    "name": "of the model; one a GPU",
    "driver": "version; one a GPU",
}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number: its Prometheus name without the prefix, and all that is known of it before it is measured.

    `unit` is a base unit (`seconds`, `bytes`, `ratio`, `tokens` …) or "" for a bare count. `column` names the field of
    `steps.jsonl` that holds the same number, "" where the record keeps it elsewhere. `buckets` are a histogram's upper bounds,
    in `unit`. `per_run` says that its curve is compared between runs: it carries the run's id as a label `run_id`, before `labels`;
    everything else is joined to it by `run_info`. `values` are all that each of `labels` can say, in the same order; () for one of
    OPEN_LABELS, and left out where all are.
    """

    name: str
    kind: Kind
    help: str
    question: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    column: str = ""
    buckets: tuple[float, ...] = ()
    per_run: bool = False
    values: tuple[tuple[str, ...], ...] = ()

    @property
    def full_name(self) -> str:
        return PREFIX + self.name

    @property
    def label_names(self) -> tuple[str, ...]:
        """All labels that Prometheus sees of it."""
        return ("run_id", *self.labels) if self.per_run else self.labels

    @property
    def known_values(self) -> dict[str, tuple[str, ...]]:
        """Label → all that it can say; () for one of OPEN_LABELS."""
        return dict(zip(self.labels, self.values or ((),) * len(self.labels), strict=True))
