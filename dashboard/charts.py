"""The panels of the page: title, question and columns of each chart, from the catalogue.

How a chart looks is decided in static/. Columns have the record's names:
`loss`, `position_accuracy.3`, `rates.context_tokens_per_second`, `queues.features.fill_ratio`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trainer.metrics.catalogue.gpus import GPU_KERNEL_ACTIVE
from trainer.metrics.catalogue.metric import Metric
from trainer.metrics.catalogue.run import HEADROOM, LOST_DEVICE_SECONDS
from trainer.metrics.catalogue.stages import QUEUE_ITEMS, QUEUES, STAGE_SECONDS, STAGES
from trainer.metrics.catalogue.training import (
    ESTIMATED_ACCEPTANCE,
    GRAD_NORM,
    LEARNING_RATE,
    LOSS,
    MEASURED_ACCEPTANCE,
    MEASURED_POSITION,
    POSITION_ACCURACY,
    STEP_SECONDS,
    TOKENS,
)
from trainer.metrics.catalogue.watching import PROCESS_CPU, PROCESS_MEMORY

Source = Literal["steps", "telemetry"]
LEFT_OUT = (STEP_SECONDS.column,)  # steps/s shows the same, smoother


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One panel of the page.

    `draw` names the drawing in static/; `axis` labels the y axis, with its unit unless that depends on the run (the loss's);
    `question` is what the panel answers. `banded` is the column drawn with its lowest and highest values; without one, a bucket is
    drawn as its mean.
    """

    id: str
    source: Source
    draw: str
    title: str
    axis: str
    question: str
    help: str
    note: str = ""
    banded: str = ""
    wide: bool = False


def _chart(metric: Metric, **parts: Any) -> Chart:
    return Chart(**{"question": metric.question, "help": metric.help, **parts})


CHARTS = (
    _chart(
        LOSS,
        id="loss",
        source="steps",
        draw="loss",
        title="Loss",
        axis="loss",
        banded=LOSS.column,
    ),
    _chart(
        ESTIMATED_ACCEPTANCE,
        id="acceptance",
        source="steps",
        draw="acceptance",
        title="Acceptance length",
        axis="tokens per round",
        banded=ESTIMATED_ACCEPTANCE.column,
        question=MEASURED_ACCEPTANCE.question,
        help=f"{ESTIMATED_ACCEPTANCE.help} {MEASURED_ACCEPTANCE.help} {MEASURED_POSITION.help}",
        note="estimated from accuracy, measured by decoding",
    ),
    _chart(
        POSITION_ACCURACY,
        id="positions",
        source="steps",
        draw="positions",
        title="Accuracy by position",
        axis="correct draft tokens (%)",
        note="estimated, not measured by decoding",
    ),
    _chart(
        TOKENS,
        id="throughput",
        source="telemetry",
        draw="throughput",
        title="Throughput",
        axis="tokens per second",
        note="two different rates: tokens read by the target, tokens drafted",
    ),
    _chart(
        QUEUE_ITEMS,
        id="queues",
        source="telemetry",
        draw="queues",
        title="Queue fill",
        axis="fill (%), by items or bytes, whichever is closer to its limit",
    ),
    _chart(
        STAGE_SECONDS,
        id="shares",
        source="telemetry",
        draw="shares",
        title="Stage time",
        axis="share of thread time (%)",
    ),
    _chart(
        PROCESS_CPU,
        id="process",
        source="telemetry",
        draw="process",
        title="The trainer's process",
        axis="CPU cores in use",
        help=f"{PROCESS_CPU.help} {PROCESS_MEMORY.help}",
    ),
    _chart(
        GRAD_NORM,
        id="gradient",
        source="steps",
        draw="gradient",
        title="Gradient and learning rate",
        axis="gradient norm",
        banded=GRAD_NORM.column,
        help=f"{GRAD_NORM.help} {LEARNING_RATE.help}",
    ),
    _chart(
        GPU_KERNEL_ACTIVE,
        id="devices",
        source="telemetry",
        draw="devices",
        title="GPUs",
        axis="kernels (%)",
        wide=True,
    ),
)


BANDED = tuple(chart.banded for chart in CHARTS if chart.banded)


def names_of(source: str, columns: Sequence[str]) -> list[str]:
    """The columns of a table that a chart draws."""
    return [name for name in columns if source == "telemetry" or name not in LEFT_OUT]


def described() -> dict[str, Any]:
    """What the page needs before it draws: the panels, and the names of stages and queues in pipeline order."""
    return {
        "charts": [asdict(chart) for chart in CHARTS],
        "stages": STAGES,
        "queues": QUEUES,
        "help": {
            "headroom": HEADROOM.help,
            "lost": LOST_DEVICE_SECONDS.help,
        },
    }
