"""The declaration of one metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram", "info"]
PREFIX = "draftscope_"
# Labels without a fixed list of values, and what bounds them instead.
OPEN_LABELS = {
    "run_id": "the run's name; a process serves one run",
    "target": "the name of the target; one per run",
    "version": "of Draftscope; one per process",
    "git_commit": "of the running code, empty outside of a checkout; one per process",
    "python": "version; one per process",
    "torch": "version; one per process",
    "position": "1 … block size - 1; absent if there was no draft token for it",
    "gpu": "numbered as nvidia-smi does, `0:1` for MIG device 1 of GPU 0; the GPUs that the process may use",
    "uuid": "one per GPU",
    "name": "of the model; one per GPU",
    "driver": "version; one per GPU",
}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric; `name` is its Prometheus name without the prefix.

    `unit` is a base unit (`seconds`, `bytes`, `ratio`, `tokens` …) or "" for a count. `column` is the field of `steps.jsonl` that
    holds the same number, "" if there is none. `buckets` are a histogram's upper bounds, in `unit`. `per_run` marks curves that are
    compared between runs: they carry the label `run_id`, before `labels`; others are joined to it by `run_info`. `values` lists the
    values of each of `labels`, in the same order; () for one of OPEN_LABELS, and omitted if all are.
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
        """All labels in Prometheus."""
        return ("run_id", *self.labels) if self.per_run else self.labels

    @property
    def known_values(self) -> dict[str, tuple[str, ...]]:
        """Label → its values; () for one of OPEN_LABELS."""
        return dict(zip(self.labels, self.values or ((),) * len(self.labels), strict=True))
