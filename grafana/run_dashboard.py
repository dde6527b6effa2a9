"""The catalogue in, the dashboard *Run* out: is it learning, how fast is it, what holds it back?"""

from __future__ import annotations

from typing import Any

from grafana import pipeline, reasons
from grafana.dashboard import Dashboard, Row, run_link
from grafana.panels import BLUE, GREEN, GREY, ORANGE, RED, Panel, Target, lines, ribbon, stat, table
from grafana.queries import HOLDING_STAGE, OF_RUN, VERDICT_WORDS, by, chosen_number, filled, increase, select, values
from grafana.units import NUMBER, SCIENTIFIC, unit_of
from trainer import metrics
from trainer.metrics import Metric

_STATE_COLORS = {"running": GREEN, "finished": BLUE, "paused": ORANGE, "stalled": RED, "failed": RED}
_RATIO: dict[str, Any] = {"unit": "percentunit", "min": 0, "max": 1}


def _newest(metric: Metric, legend: str = "{{run_id}}") -> Target:
    return Target(by("max", "run_id", values(metric)), legend, newest=True)


def _who_held_it() -> Panel:
    """A number for each verdict; where a stage holds the run back, one for each stage."""
    cases: list[tuple[str, ...]] = []
    words: dict[int, tuple[str, str]] = {}
    for state in metrics.VERDICT_STATES:
        for stage in metrics.STAGES if state == "stage_holds" else ("",):
            cases.append((f'state="{state}"', *([f'stage="{stage}"'] if stage else [])))
            color = reasons.STAGE_COLORS.get(stage, reasons.VERDICT_COLORS[state])
            words[len(cases)] = (f"{stage} holds it" if stage else state.replace("_", " "), color)
    number = by("max", "run_id, instance", chosen_number(metrics.VERDICT, cases))
    target = Target(number, "{{run_id}} {{instance}}")
    return ribbon("Who held the run back, and when", target, shows=[metrics.VERDICT], no_data=reasons.NO_RUN, words=words)


def _state() -> Panel:
    words = {place: (state, _STATE_COLORS.get(state, GREY)) for place, state in enumerate(metrics.RUN_STATES, start=1)}
    number = chosen_number(metrics.STATE, [(f'state="{state}"',) for state in metrics.RUN_STATES])
    target = Target(by("max", "run_id, instance", number), "{{run_id}} {{instance}}")
    return ribbon("State", target, shows=[metrics.STATE], no_data=reasons.NO_RUN, words=words)


def _curve(metric: Metric, title: str, unit: str, **more: Any) -> Panel:
    target = Target(by("avg", "run_id", values(metric)), "{{run_id}}")
    settings = {"note": reasons.AGAINST_TIME, "no_data": reasons.NO_STEP, "link": run_link(), **more}
    return lines(title, target, shows=[metric], unit=unit, **settings)


_VERDICT = stat(
    "Verdict",
    *(
        Target(values(VERDICT_WORDS, f'state=~"{"|".join(states)}"'), "{{words}}", newest=True)
        for states in (reasons.BAD_VERDICTS, reasons.ODD_VERDICTS, reasons.GOOD_VERDICTS)
    ),
    shows=[VERDICT_WORDS, metrics.VERDICT],
    note="The words that the sentence of `/status` begins with.",
    unit="none",
    no_data=f"No verdict. {reasons.RULES_LACK} {reasons.NO_RUN}",
    ref_colors={"A": RED, "B": ORANGE, "C": GREEN},
    name_alone=True,
    filled=True,
    width=12,
)

_NOW = Row(
    "Now",
    [
        _VERDICT,
        stat("Progress", _newest(metrics.PROGRESS), shows=[metrics.PROGRESS], no_data=reasons.NO_RUN, **_RATIO),
        stat(
            "Time to go",
            _newest(metrics.REMAINING),
            shows=[metrics.REMAINING],
            unit=unit_of(metrics.REMAINING),
            no_data="No pace: the run has not got on in the last minute, or has ended.",
        ),
        stat(
            "Step",
            _newest(metrics.GLOBAL_STEP, "step"),
            _newest(metrics.MAX_STEPS, "of"),
            shows=[metrics.GLOBAL_STEP, metrics.MAX_STEPS],
            unit=NUMBER,
            no_data=reasons.NO_RUN,
        ),
        table(
            "Run",
            Target(filled(select(metrics.RUN_INFO, OF_RUN), "git_commit"), newest=True, table=True),
            shows=[metrics.RUN_INFO],
            columns={"run_id": "run", "target": "target", "version": "version", "git_commit": "commit", "instance": "instance"},
            hidden=("Value", "__name__", "job"),
            width=12,
            height=4,
            no_data=reasons.NO_RUN,
        ),
        stat(
            "Busiest stage",
            Target(values(HOLDING_STAGE), "{{stage}}", newest=True),
            shows=[HOLDING_STAGE],
            no_data=f"No stage at work. {reasons.RULES_LACK}",
            **_RATIO,
        ),
        stat(
            "Headroom",
            _newest(metrics.HEADROOM),
            shows=[metrics.HEADROOM],
            unit=unit_of(metrics.HEADROOM),
            min=0,
            no_data=reasons.NO_RUN,
        ),
        stat(
            "Device time lost",
            Target(by("sum", "run_id", increase(metrics.LOST_DEVICE_SECONDS)), "{{run_id}}", newest=True),
            shows=[metrics.LOST_DEVICE_SECONDS],
            note="Within the time shown.",
            unit=unit_of(metrics.LOST_DEVICE_SECONDS),
            no_data=reasons.NO_RUN,
        ),
        pipeline.STRIP,
        _who_held_it(),
        _state(),
    ],
)

_ACCEPTANCE = (
    ("estimated", metrics.ESTIMATED_ACCEPTANCE),
    ("held out, estimated", metrics.HELD_OUT_ACCEPTANCE),
    ("measured", metrics.MEASURED_ACCEPTANCE),
)

_LEARNING = Row(
    "Is it learning?",
    [
        _curve(metrics.LOSS, "Loss, against time", "none", width=12),
        lines(
            "Acceptance length, estimated and measured",
            *(Target(by("avg", "run_id", values(metric)), f"{name} {{{{run_id}}}}") for name, metric in _ACCEPTANCE),
            shows=[metric for _, metric in _ACCEPTANCE],
            note=reasons.AGAINST_TIME,
            axis="tokens per round",
            unit=unit_of(metrics.MEASURED_ACCEPTANCE),
            colors={"^estimated": BLUE, "^held out": ORANGE, "^measured": GREEN},
            no_data=reasons.NO_STEP,
            link=run_link(),
            width=12,
        ),
        lines(
            "Right by position, estimated",
            Target(by("avg", "run_id, position", values(metrics.POSITION_ACCURACY)), "{{position}} {{run_id}}"),
            shows=[metrics.POSITION_ACCURACY],
            no_data=reasons.NO_STEP,
            width=12,
            **_RATIO,
        ),
        lines(
            "Kept by position, measured",
            Target(by("avg", "run_id, position", values(metrics.MEASURED_POSITION)), "{{position}} {{run_id}}"),
            shows=[metrics.MEASURED_POSITION],
            no_data=reasons.NO_EVALUATION,
            width=12,
            **_RATIO,
        ),
        _curve(metrics.LEARNING_RATE, "Learning rate", SCIENTIFIC),
        _curve(metrics.GRAD_NORM, "Gradient norm", "none", logarithmic=True),
        stat(
            "Measured at step",
            _newest(metrics.EVALUATION_STEP),
            shows=[metrics.EVALUATION_STEP],
            unit=NUMBER,
            no_data=reasons.NO_EVALUATION,
            height=8,
        ),
        stat(
            "Measured on",
            Target(by("sum", "run_id", increase(metrics.EVALUATION_ROUNDS)), "rounds", newest=True),
            Target(by("sum", "run_id", increase(metrics.EVALUATION_ACCEPTED)), "draft tokens kept", newest=True),
            shows=[metrics.EVALUATION_ROUNDS, metrics.EVALUATION_ACCEPTED],
            note="Within the time shown.",
            unit=NUMBER,
            decimals=0,
            no_data=reasons.NO_EVALUATION,
            height=8,
        ),
    ],
)

RUN = Dashboard(
    uid="draftscope-run",
    title="Draftscope: Run",
    description=f"Is it learning, how fast, and what holds it back? {reasons.AGAINST_TIME}",
    rows=[_NOW, _LEARNING, pipeline.PACE, pipeline.STAGES, pipeline.QUEUES],
    choices=["stage"],
)
