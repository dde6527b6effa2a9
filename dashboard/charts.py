"""The catalogue in, the page's panels out: what each chart is called, asks and measures.

How a chart looks is static/'s business.
A column's name is the record's: `loss`, `position_accuracy.3`, `rates.context_tokens_per_second`, `queues.features.fill_ratio`.
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
LEFT_OUT = (STEP_SECONDS.column,)  # steps/s says the same, smoother


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One panel: `draw` names the drawing in static/, `axis` the y axis with its unit, `question` what the panel answers.

    `banded` is the column that is drawn with its lowest and highest value; without one, a bucket is drawn as its mean.
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
        axis="loss (nats per draft token)",
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
        axis="draft tokens right (%)",
        note="estimated, not measured by decoding",
    ),
    _chart(
        TOKENS,
        id="throughput",
        source="telemetry",
        draw="throughput",
        title="Throughput",
        axis="tokens per second",
        note="two different rates: what the target reads, what the drafter drafts",
    ),
    _chart(
        QUEUE_ITEMS,
        id="queues",
        source="telemetry",
        draw="queues",
        title="Queue fill",
        axis="fill (%), by items or bytes, whichever is nearer its limit",
    ),
    _chart(
        STAGE_SECONDS,
        id="shares",
        source="telemetry",
        draw="shares",
        title="Stage shares",
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
    """The columns of a table that some chart draws."""
    return [name for name in columns if source == "telemetry" or name not in LEFT_OUT]


def described() -> dict[str, Any]:
    """What the page needs to know before it draws: the panels, and the words of the pipeline in their order."""
    return {
        "charts": [asdict(chart) for chart in CHARTS],
        "stages": STAGES,
        "queues": QUEUES,
        "help": {
            "headroom": HEADROOM.help,
            "lost": LOST_DEVICE_SECONDS.help,
        },
    }
