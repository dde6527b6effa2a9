"""Lines of a record: made for tests, and read back as strictly as its readers may."""

import json
from pathlib import Path
from typing import Any

from trainer.record.format import EVENT_KINDS, StepLine, TelemetryLine


def step_of(step: int, **changed: Any) -> StepLine:
    """A believable step; `changed` fields replace the made-up ones."""
    return StepLine(
        **{
            "step": step,
            "seq": step - 1,
            "epoch": step / 10,
            "loss": 2.0,
            "learning_rate": 6e-4,
            "grad_norm": 0.5,
            "position_accuracy": (0.5, 0.25, None),
            "estimated_acceptance_length": 1.6,
            "context_tokens": 100 * step,
            "draft_tokens": 80 * step,
            "samples": 4 * step,
            "step_seconds": 0.01,
        }
        | changed
    )


def tick_of(step: int, **changed: Any) -> TelemetryLine:
    """A telemetry tick without stages, queues and devices; `changed` fields replace the made-up ones."""
    rates = {"context_tokens_per_second": 410.2, "draft_tokens_per_second": 205.0, "steps_per_second": 0.4}
    empty: dict[str, Any] = {"stages": [], "queues": [], "devices": [], "process": {}, "verdict": {"state": "warming_up"}}
    done: dict[str, Any] = {"step": step, "max_steps": None, "progress_ratio": None, "eta_seconds": None, "state": "running"}
    return TelemetryLine(**{**done, "rates": rates, **empty, **changed})


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Every whole line of a `.jsonl` file; a torn one is left out, a missing file has none."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def unknown_to_the_format(event: dict[str, Any]) -> set[str]:
    """What an event of a run says beyond its kind: its name if it is of none, else the fields that its kind lacks."""
    kind = next((kind for kind in EVENT_KINDS if kind.name == event["event"]), None)
    return event.keys() - {"attempt", "time", "event", "step", "message", *kind.fields} if kind else {event["event"]}
