"""Rows of the dashboard *Run*: speed, stages and queues."""

from __future__ import annotations

from grafana import no_data
from grafana.dashboard import Row
from grafana.panels import BLUE, GREY, ORANGE, PINK, Target, bars, lines
from grafana.queries import STEPS_MEDIAN, STEPS_RATE, by, of_run, quantile, rate, select, values
from grafana.units import NUMBER, PER_SECOND, rate_unit_of, unit_of
from trainer.metrics.catalogue.run import LOST_DEVICE_SECONDS
from trainer.metrics.catalogue.stages import (
    QUEUE_BYTES,
    QUEUE_CAPACITY_BYTES,
    QUEUE_CAPACITY_ITEMS,
    QUEUE_ITEMS,
    STAGE_IDLE,
    STAGE_ITEM_SECONDS,
    STAGE_ITEMS,
    STAGE_RUNNING,
    STAGE_SECONDS,
    STAGE_THREADS,
)
from trainer.metrics.catalogue.training import SAMPLES, STEP_SECONDS, STEPS, TOKENS

_STAGE = 'stage=~"$stage"'
_OF_STAGE = {f"^{stage}": color for stage, color in no_data.STAGE_COLORS.items()}
_SHARES = {"busy": BLUE, "waiting_input": ORANGE, "waiting_output": PINK}
_STEP_MEAN = " / ".join(by("sum", "run_id", rate(STEP_SECONDS, suffix=suffix)) for suffix in ("_sum", "_count"))
_FILL = f"{select(QUEUE_ITEMS)} / {select(QUEUE_CAPACITY_ITEMS)}"

PACE = Row(
    "How fast?",
    [
        lines(
            "Tokens per second",
            Target(by("sum", "run_id, kind", rate(TOKENS)), "{{kind}} {{run_id}}"),
            shows=[TOKENS],
            axis="tokens per second",
            unit=rate_unit_of(TOKENS),
            min=0,
            no_data=no_data.NO_STEP,
        ),
        lines(
            "Steps per second",
            Target(by("sum", "run_id", rate(STEPS)), "now {{run_id}}"),
            Target(by("sum", "run_id", values(STEPS_RATE)), "over 5 minutes {{run_id}}"),
            Target(by("sum", "run_id", values(STEPS_MEDIAN)), "6 h median {{run_id}}"),
            shows=[STEPS, STEPS_RATE, STEPS_MEDIAN],
            axis="steps per second",
            unit=rate_unit_of(STEPS),
            colors={"^6 h median": GREY},
            min=0,
            no_data=no_data.NO_STEP,
        ),
        lines(
            "Step time",
            Target(_STEP_MEAN, "mean {{run_id}}"),
            Target(quantile(0.5, STEP_SECONDS, "run_id"), "median {{run_id}}"),
            Target(quantile(0.95, STEP_SECONDS, "run_id"), "95th percentile {{run_id}}"),
            shows=[STEP_SECONDS],
            note="Median and 95th percentile are estimated from histogram buckets.",
            unit=unit_of(STEP_SECONDS),
            min=0,
            no_data=no_data.NO_STEP,
        ),
        lines(
            "Conversations per second",
            Target(by("sum", "run_id", rate(SAMPLES)), "{{run_id}}"),
            shows=[SAMPLES],
            axis="conversations per second",
            unit=rate_unit_of(SAMPLES),
            min=0,
            no_data=no_data.NO_STEP,
        ),
        lines(
            "Items per second, by stage",
            Target(by("sum", "run_id, stage", rate(STAGE_ITEMS, _STAGE)), "{{stage}} {{run_id}}"),
            shows=[STAGE_ITEMS],
            axis="items per second",
            unit=PER_SECOND,
            colors=_OF_STAGE,
            min=0,
            no_data=no_data.NO_RUN,
        ),
        lines(
            "Drafter devices waiting",
            Target(by("sum", "run_id", rate(LOST_DEVICE_SECONDS)), "{{run_id}}"),
            shows=[LOST_DEVICE_SECONDS],
            note="The rate of this counter: 1 means that one drafter device does nothing but wait.",
            axis="drafter devices",
            unit=NUMBER,
            min=0,
            no_data=no_data.NO_RUN,
        ),
    ],
)


def _share(state: str) -> str:
    """Share of a stage's thread time, over all selected runs, so that the shares add up to 1 whatever is selected."""
    spent, time = rate(STAGE_SECONDS, f'state="{state}"', _STAGE), rate(STAGE_SECONDS, _STAGE)
    return f"sum ({spent}) / (sum ({time}) > 0)"


def _busy() -> str:
    spent, time = rate(STAGE_SECONDS, 'state="busy"', _STAGE), rate(STAGE_SECONDS, _STAGE)
    return f"{by('sum', 'run_id, stage', spent)} / ({by('sum', 'run_id, stage', time)} > 0)"


STRIP = lines(
    "$stage",
    *(Target(_share(state), state.replace("_", " for ")) for state in _SHARES),
    shows=[STAGE_SECONDS],
    note="How the threads of this stage spend their time, over all selected runs; the shares add up to 100 %.",
    stacked=True,
    unit="percentunit",
    min=0,
    max=1,
    colors={f"^{state.replace('_', ' for ')}": color for state, color in _SHARES.items()},
    no_data="No thread of this stage in the selected time range: it has ended, or no run matches.",
    width=24,
    height=6,
    repeat="stage",
)

STAGES = Row(
    "What holds it back?",
    [
        lines(
            "Busy share, by stage",
            Target(_busy(), "{{stage}} {{run_id}}"),
            shows=[STAGE_SECONDS],
            note="The busiest stage holds the run back.",
            unit="percentunit",
            min=0,
            max=1,
            colors=_OF_STAGE,
            no_data=no_data.NO_RUN,
            width=6,
        ),
        lines(
            "Time since progress, by stage",
            Target(by("max", "run_id, stage", values(STAGE_IDLE, _STAGE)), "{{stage}} {{run_id}}"),
            shows=[STAGE_IDLE],
            unit=unit_of(STAGE_IDLE),
            colors=_OF_STAGE,
            min=0,
            no_data=no_data.NO_RUN,
            width=6,
        ),
        lines(
            "Time per item, by stage",
            Target(quantile(0.5, STAGE_ITEM_SECONDS, "run_id, stage", _STAGE), "{{stage}} median {{run_id}}"),
            Target(quantile(0.95, STAGE_ITEM_SECONDS, "run_id, stage", _STAGE), "{{stage}} 95th percentile {{run_id}}"),
            shows=[STAGE_ITEM_SECONDS],
            note="Median and 95th percentile are estimated from histogram buckets.",
            unit=unit_of(STAGE_ITEM_SECONDS),
            min=0,
            no_data="No item in the selected time range, or no run matches.",
            width=6,
        ),
        bars(
            "Threads",
            Target(by("sum", "stage", values(STAGE_THREADS, _STAGE)), "{{stage}}", newest=True),
            Target(by("sum", "stage", values(STAGE_RUNNING, _STAGE)), "{{stage}}, running", newest=True),
            shows=[STAGE_THREADS, STAGE_RUNNING],
            unit=NUMBER,
            min=0,
            no_data=no_data.NO_RUN,
            width=6,
        ),
    ],
)

QUEUES = Row(
    "Where does work pile up?",
    [
        lines(
            "Queue fill",
            Target(by("avg", "run_id, queue", of_run(_FILL)), "{{queue}} {{run_id}}"),
            shows=[QUEUE_ITEMS, QUEUE_CAPACITY_ITEMS],
            note="A full queue means that the stage after it is slower, an empty one that the stage before it is.",
            unit="percentunit",
            min=0,
            max=1,
            no_data=no_data.NO_RUN,
        ),
        lines(
            "Items in queues",
            Target(by("sum", "run_id, queue", values(QUEUE_ITEMS)), "{{queue}} {{run_id}}"),
            shows=[QUEUE_ITEMS],
            unit=NUMBER,
            min=0,
            no_data=no_data.NO_RUN,
        ),
        lines(
            "Memory in flight",
            Target(by("sum", "run_id, queue", values(QUEUE_BYTES)), "{{queue}} {{run_id}}"),
            Target(by("sum", "run_id, queue", values(QUEUE_CAPACITY_BYTES)), "{{queue}} limit {{run_id}}"),
            shows=[QUEUE_BYTES, QUEUE_CAPACITY_BYTES],
            unit=unit_of(QUEUE_BYTES),
            min=0,
            no_data=no_data.NO_RUN,
        ),
    ],
)
