"""The dashboard *Run*: is it learning, how fast is it, and what holds it back?"""

from __future__ import annotations

from typing import Any

from grafana import no_data, run_rows
from grafana.dashboard import Dashboard, Row, run_link
from grafana.panels import BLUE, GREEN, GREY, ORANGE, RED, Panel, Target, lines, ribbon, stat, table
from grafana.queries import HOLDING_STAGE, OF_RUN, VERDICT_WORDS, by, chosen_number, filled, increase, select, values
from grafana.units import NUMBER, SCIENTIFIC, unit_of
from trainer.metrics.catalogue.metric import Metric
from trainer.metrics.catalogue.run import (
    GLOBAL_STEP,
    HEADROOM,
    LOST_DEVICE_SECONDS,
    MAX_STEPS,
    PROGRESS,
    REMAINING,
    RUN_INFO,
    RUN_STATES,
    STATE,
    VERDICT,
    VERDICT_STATES,
)
from trainer.metrics.catalogue.stages import STAGES
from trainer.metrics.catalogue.training import (
    ESTIMATED_ACCEPTANCE,
    EVALUATION_ACCEPTED,
    EVALUATION_ROUNDS,
    EVALUATION_STEP,
    GRAD_NORM,
    HELD_OUT_ACCEPTANCE,
    LEARNING_RATE,
    LOSS,
    MEASURED_ACCEPTANCE,
    MEASURED_POSITION,
    POSITION_ACCURACY,
)

_STATE_COLORS = {"running": GREEN, "finished": BLUE, "paused": ORANGE, "stalled": RED, "failed": RED}
_RATIO: dict[str, Any] = {"unit": "percentunit", "min": 0, "max": 1}


def _newest(metric: Metric, legend: str = "{{run_id}}") -> Target:
    return Target(by("max", "run_id", values(metric)), legend, newest=True)


def _limits_over_time() -> Panel:
    """A number for each verdict, and one for each stage that holds the run back."""
    cases: list[tuple[str, ...]] = []
    words: dict[int, tuple[str, str]] = {}
    for state in VERDICT_STATES:
        for stage in STAGES if state == "stage_holds" else ("",):
            cases.append((f'state="{state}"', *([f'stage="{stage}"'] if stage else [])))
            color = no_data.STAGE_COLORS.get(stage, no_data.VERDICT_COLORS[state])
            words[len(cases)] = (f"{stage} holds it" if stage else state.replace("_", " "), color)
    number = by("max", "run_id, instance", chosen_number(VERDICT, cases))
    target = Target(number, "{{run_id}} {{instance}}")
    return ribbon("What held the run back, and when", target, shows=[VERDICT], no_data=no_data.NO_RUN, words=words)


def _state() -> Panel:
    words = {place: (state, _STATE_COLORS.get(state, GREY)) for place, state in enumerate(RUN_STATES, start=1)}
    number = chosen_number(STATE, [(f'state="{state}"',) for state in RUN_STATES])
    target = Target(by("max", "run_id, instance", number), "{{run_id}} {{instance}}")
    return ribbon("State", target, shows=[STATE], no_data=no_data.NO_RUN, words=words)


def _curve(metric: Metric, title: str, unit: str, **more: Any) -> Panel:
    target = Target(by("avg", "run_id", values(metric)), "{{run_id}}")
    settings = {"note": no_data.OVER_TIME, "no_data": no_data.NO_STEP, "link": run_link(), **more}
    return lines(title, target, shows=[metric], unit=unit, **settings)


_VERDICT = stat(
    "Verdict",
    *(
        Target(values(VERDICT_WORDS, f'state=~"{"|".join(states)}"'), "{{words}}", newest=True)
        for states in (no_data.BAD_VERDICTS, no_data.ODD_VERDICTS, no_data.GOOD_VERDICTS)
    ),
    shows=[VERDICT_WORDS, VERDICT],
    note="The opening words of the sentence in `/status`.",
    unit="none",
    no_data=f"No verdict. {no_data.LOAD_RULES} {no_data.NO_RUN}",
    ref_colors={"A": RED, "B": ORANGE, "C": GREEN},
    name_alone=True,
    filled=True,
    width=12,
)

_NOW = Row(
    "Now",
    [
        _VERDICT,
        stat("Progress", _newest(PROGRESS), shows=[PROGRESS], no_data=no_data.NO_RUN, **_RATIO),
        stat(
            "Time left",
            _newest(REMAINING),
            shows=[REMAINING],
            unit=unit_of(REMAINING),
            no_data="Speed unknown: the run made no step in the last minute, or has ended.",
        ),
        stat(
            "Step",
            _newest(GLOBAL_STEP, "step"),
            _newest(MAX_STEPS, "of"),
            shows=[GLOBAL_STEP, MAX_STEPS],
            unit=NUMBER,
            no_data=no_data.NO_RUN,
        ),
        table(
            "Run",
            Target(filled(select(RUN_INFO, OF_RUN), "git_commit"), newest=True, table=True),
            shows=[RUN_INFO],
            columns={"run_id": "run", "target": "target", "version": "version", "git_commit": "commit", "instance": "instance"},
            hidden=("Value", "__name__", "job"),
            width=12,
            height=4,
            no_data=no_data.NO_RUN,
        ),
        stat(
            "Busiest stage",
            Target(values(HOLDING_STAGE), "{{stage}}", newest=True),
            shows=[HOLDING_STAGE],
            no_data=f"No stage is active. {no_data.LOAD_RULES}",
            **_RATIO,
        ),
        stat(
            "Headroom",
            _newest(HEADROOM),
            shows=[HEADROOM],
            unit=unit_of(HEADROOM),
            min=0,
            no_data=no_data.NO_RUN,
        ),
        stat(
            "Device time lost",
            Target(by("sum", "run_id", increase(LOST_DEVICE_SECONDS)), "{{run_id}}", newest=True),
            shows=[LOST_DEVICE_SECONDS],
            note="Within the selected time range.",
            unit=unit_of(LOST_DEVICE_SECONDS),
            no_data=no_data.NO_RUN,
        ),
        run_rows.STRIP,
        _limits_over_time(),
        _state(),
    ],
)

_ACCEPTANCE = (
    ("estimated", ESTIMATED_ACCEPTANCE),
    ("held out, estimated", HELD_OUT_ACCEPTANCE),
    ("measured", MEASURED_ACCEPTANCE),
)

_LEARNING = Row(
    "Is it learning?",
    [
        _curve(LOSS, "Loss over time", "none", width=12),
        lines(
            "Acceptance length, estimated and measured",
            *(Target(by("avg", "run_id", values(metric)), f"{name} {{{{run_id}}}}") for name, metric in _ACCEPTANCE),
            shows=[metric for _, metric in _ACCEPTANCE],
            note=no_data.OVER_TIME,
            axis="tokens per round",
            unit=unit_of(MEASURED_ACCEPTANCE),
            colors={"^estimated": BLUE, "^held out": ORANGE, "^measured": GREEN},
            no_data=no_data.NO_STEP,
            link=run_link(),
            width=12,
        ),
        lines(
            "Accuracy by position, estimated",
            Target(by("avg", "run_id, position", values(POSITION_ACCURACY)), "{{position}} {{run_id}}"),
            shows=[POSITION_ACCURACY],
            no_data=no_data.NO_STEP,
            width=12,
            **_RATIO,
        ),
        lines(
            "Acceptance by position, measured",
            Target(by("avg", "run_id, position", values(MEASURED_POSITION)), "{{position}} {{run_id}}"),
            shows=[MEASURED_POSITION],
            no_data=no_data.NO_EVALUATION,
            width=12,
            **_RATIO,
        ),
        _curve(LEARNING_RATE, "Learning rate", SCIENTIFIC),
        _curve(GRAD_NORM, "Gradient norm", "none", logarithmic=True),
        stat(
            "Latest evaluation at step",
            _newest(EVALUATION_STEP),
            shows=[EVALUATION_STEP],
            unit=NUMBER,
            no_data=no_data.NO_EVALUATION,
            height=8,
        ),
        stat(
            "Evaluated on",
            Target(by("sum", "run_id", increase(EVALUATION_ROUNDS)), "rounds", newest=True),
            Target(by("sum", "run_id", increase(EVALUATION_ACCEPTED)), "draft tokens kept", newest=True),
            shows=[EVALUATION_ROUNDS, EVALUATION_ACCEPTED],
            note="Within the selected time range.",
            unit=NUMBER,
            decimals=0,
            no_data=no_data.NO_EVALUATION,
            height=8,
        ),
    ],
)

RUN = Dashboard(
    uid="draftscope-run",
    title="Draftscope: Run",
    description=f"Is it learning, how fast, and what holds it back? {no_data.OVER_TIME}",
    rows=[_NOW, _LEARNING, run_rows.PACE, run_rows.STAGES, run_rows.QUEUES],
    choices=["stage"],
)
