"""What a run's newest lines say of it as a whole: its state, its unit of the loss, how old its news are."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson

from dashboard.record.parse import Row
from trainer.record.format import LOSS_UNITS, RUN

CLOCK_AHEAD_SECONDS = 5.0
ENDED = ("finished", "failed")
TRANSITIONS = (*ENDED, "started", "resumed")  # events that begin or end an attempt


def read_facts(folder: Path) -> dict[str, Any]:
    """`run.json`; {} where it is missing or cannot be read."""
    try:
        facts = orjson.loads((folder / RUN).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return facts if isinstance(facts, dict) else {}


def loss_unit(facts: Row, resumed_config: Row) -> str:
    """Unit of the loss: by the objective of the newest resume, else of run.json; records of 0.1 have only the objective."""
    resumed, first = (objective_of(config) for config in (resumed_config, facts.get("config")))
    return str(LOSS_UNITS.get(resumed) or facts.get("loss_unit") or LOSS_UNITS.get(first, "nats"))


def objective_of(config: Any) -> str:
    """`loss.objective` of a config; "" where it has none."""
    loss = config.get("loss") if isinstance(config, dict) else None
    return str(loss.get("objective", "")) if isinstance(loss, dict) else ""


def last_transition(events: Sequence[Row]) -> Row:
    """The newest event that began or ended an attempt; {} where there is none."""
    return next((row for row in reversed(events) if row.get("event") in TRANSITIONS), {})


def current_state(tick: Row, transition: Row) -> tuple[Row, str]:
    """The newest telemetry tick of the newest attempt, {} where that has not written one yet; and the run's state."""
    if attempt_of(tick) < attempt_of(transition):
        tick = {}
    if transition.get("event") in ENDED and attempt_of(transition) >= attempt_of(tick):
        return tick, str(transition["event"])
    return tick, str(tick.get("state") or "starting")


def attempt_of(row: Row) -> int:
    attempt = row.get("attempt")
    return attempt if isinstance(attempt, int) else 0


def newest_time(rows: Iterable[Row]) -> float | None:
    """The newest time in the rows, Unix seconds by the trainer's clock; None where none has one."""
    return max((row["time"] for row in rows if isinstance(row.get("time"), int | float)), default=None)


def clock_ahead(rows: Iterable[Row]) -> float | None:
    """Seconds by which the trainer's clock is ahead of ours at least, where its rows are from the future; else None."""
    ahead = (newest_time(rows) or 0) - time.time()
    return ahead if ahead > CLOCK_AHEAD_SECONDS else None
