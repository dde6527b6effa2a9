"""What holds the run back right now: readings of the stages in, one verdict with one plain sentence out. Pure functions.

Busy, waiting for input and waiting for output add up to 1 for each stage, waits and items still in progress included. The stage
that is busiest holds the run back, and busiest ÷ second busiest is what the run could gain without it (`headroom`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainer.formatting import duration, percent
from trainer.pipeline.stages import StageStats

DEVICE_STAGES = ("target", "drafter")
AT_ONCE = ("stalled", "diverged", "paused", "finished", "failed")

_WELL_BUSY = 0.9
_BALANCED = 1.1
_STARVING = 0.1
_FEW_ITEMS = 4
_SKIPS = 3
# A share below 1 % is noise, and a headroom computed from it would be too.
_SMALLEST_BUSY = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShare:
    """A stage over a window: shares of its threads' time (0 to 1), and its items since it began."""

    name: str
    threads: int
    items: int
    busy_ratio: float
    waiting_input_ratio: float
    waiting_output_ratio: float
    seconds_since_progress: float
    running: int = 1
    """Threads that have not ended."""
    seconds_on_item: float = 0.0
    usual_seconds: float | None = None
    """Busy seconds per item so far, the one in progress left out."""

    def shown(self) -> dict[str, Any]:
        """As in `/status` and `telemetry.jsonl`."""
        return {
            "name": self.name,
            "threads": self.threads,
            "items": self.items,
            "busy_ratio": round(self.busy_ratio, 4),
            "waiting_input_ratio": round(self.waiting_input_ratio, 4),
            "waiting_output_ratio": round(self.waiting_output_ratio, 4),
            "seconds_since_progress": round(self.seconds_since_progress, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that a verdict rests on. Times are seconds; `now` is a Unix time."""

    now: float
    state: str
    """One of RUN_STATES."""
    phase: str = ""
    """What it is doing while it starts, as in "loading the target"."""
    phase_seconds: float = 0.0
    elapsed: float = 0.0
    """Since the attempt began."""
    progress_ratio: float | None = None
    """How much of the run is done; None where that is not known."""
    step: int = 0
    steps: int = 0
    """Of this attempt."""
    loss: float | None = None
    """Of the newest step; None before the first, and for a step that had nothing to learn from."""
    first_loss: float | None = None
    skipped_in_a_row: int = 0
    stages: Sequence[StageShare] = ()
    """In the order of the road."""
    stall_seconds: float = 300.0
    failed_stage: str | None = None
    error: str | None = None
    lost_device_hours: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    state: str
    """One of VERDICT_STATES."""
    stage: str | None
    sentence: str
    since: float
    """Unix time at which this state (of this stage) began."""
    headroom_ratio: float = 0.0
    next_stage: str | None = None
    lost_device_hours: float = 0.0
    pending: tuple[str, str | None] | None = None
    """A different state and stage that was seen in the newest window, and is taken over if the next one says the same."""

    def shown(self) -> dict[str, Any]:
        """As in `/status` and `telemetry.jsonl`."""
        return {
            "state": self.state,
            "stage": self.stage,
            "sentence": self.sentence,
            "since": self.since,
            "headroom_ratio": round(self.headroom_ratio, 4),
            "next_stage": self.next_stage,
            "lost_device_hours": round(self.lost_device_hours, 6),
        }


def shares(old: Sequence[StageStats], new: Sequence[StageStats]) -> list[StageShare]:
    """Where the threads' time went from `old` to `new`; with no `old`, since the stages began.

    The ratios of a stage add up to 1, or are all 0 where it spent no time at all because it had ended.
    """
    before = {reading.name: reading for reading in old}
    return [_share(before.get(reading.name), reading) for reading in new]


def _share(old: StageStats | None, new: StageStats) -> StageShare:
    busy = new.busy_seconds - (old.busy_seconds if old else 0.0)
    waiting_input = new.waiting_input_seconds - (old.waiting_input_seconds if old else 0.0)
    waiting_output = new.waiting_output_seconds - (old.waiting_output_seconds if old else 0.0)
    spent = busy + waiting_input + waiting_output
    scale = 1 / spent if spent > 0 else 0.0
    return StageShare(
        name=new.name,
        threads=new.threads,
        items=new.items,
        busy_ratio=busy * scale,
        waiting_input_ratio=waiting_input * scale,
        waiting_output_ratio=waiting_output * scale,
        seconds_since_progress=new.seconds_since_progress,
        running=new.running,
        seconds_on_item=new.seconds_on_item,
        usual_seconds=max(0.0, new.busy_seconds - new.seconds_on_item) / new.items if new.items else None,
    )


def judge(facts: Facts, previous: Verdict | None) -> Verdict:
    """The verdict of this window. A change is taken over when two windows in a row agree, what is in `AT_ONCE` at once."""
    found = _look(facts, previous)
    if previous is None:
        return found
    key = (found.state, found.stage)
    if key == (previous.state, previous.stage):
        return replace(found, since=previous.since)
    if found.state in AT_ONCE or previous.state in AT_ONCE or previous.pending == key:
        return found
    return replace(previous, pending=key, lost_device_hours=facts.lost_device_hours)


def _look(facts: Facts, previous: Verdict | None) -> Verdict:
    """What this window says by itself."""
    match facts.state:
        case "failed":
            why = facts.error or "no reason is known"
            return _verdict(facts, "failed", facts.failed_stage, f"{_failed(facts.failed_stage)}: {why}")
        case "finished":
            return _verdict(facts, "finished", None, _finished(facts))
        case "paused":
            return _verdict(facts, "paused", None, f"Paused at step {facts.step:,}")
    if (divergence := _diverged(facts)) is not None:
        return _verdict(facts, "diverged", None, divergence)
    if previous is not None and previous.state != "stalled" and (facts.state == "finishing" or _is_over(facts.stages)):
        return replace(previous, pending=None, lost_device_hours=facts.lost_device_hours)
    return _stalled(facts) or _warming_up(facts) or _weigh(facts)


def _is_over(stages: Sequence[StageShare]) -> bool:
    """Whether the drafter has taken its last batch: what the others still do decides nothing."""
    return any(share.name == "drafter" and not share.running for share in stages)


def _verdict(facts: Facts, state: str, stage: str | None, sentence: str, gain: float = 0.0, then: str | None = None) -> Verdict:
    return Verdict(
        state=state,
        stage=stage,
        sentence=sentence.rstrip().rstrip(".") + ".",
        since=facts.now,
        headroom_ratio=gain,
        next_stage=then,
        lost_device_hours=facts.lost_device_hours,
    )


def _failed(stage: str | None) -> str:
    match stage:
        case None:
            return "Failed"
        case "start":
            return "Failed at the start"
        case _:
            return f"Failed in the {stage} stage"


def _finished(facts: Facts) -> str:
    word = "Finished" if facts.progress_ratio is None or facts.progress_ratio >= 1 else "Stopped"
    if not facts.steps:
        return f"{word} at step {facts.step:,}, without a step in this attempt"
    count = f"{facts.steps:,} step{'' if facts.steps == 1 else 's'} in {duration(facts.elapsed)}"
    fall = "" if facts.loss is None or facts.first_loss is None else f", loss {facts.first_loss:.3g} → {facts.loss:.3g}"
    if facts.steps == facts.step:
        return f"{word}: {count}{fall}"
    return f"{word} at step {facts.step:,}: {count} since the resume{fall}"


def _diverged(facts: Facts) -> str | None:
    if facts.loss is not None and not math.isfinite(facts.loss):
        return f"Diverged: the loss of step {facts.step:,} is {'not a number' if math.isnan(facts.loss) else 'infinite'}"
    if facts.skipped_in_a_row >= _SKIPS:
        return f"Diverged: the last {facts.skipped_in_a_row:,} steps in a row were skipped"
    return None


def _stalled(facts: Facts) -> Verdict | None:
    running = [share for share in facts.stages if share.running]
    if not running:
        return None
    worst = max(running, key=lambda share: share.seconds_on_item)
    if worst.seconds_on_item > facts.stall_seconds:
        usual = "its first item" if worst.usual_seconds is None else f"one item, usually {duration(worst.usual_seconds)}"
        sentence = f"{_upper(_the(worst.name))} is stalled: {duration(worst.seconds_on_item)} on {usual}"
        return _verdict(facts, "stalled", worst.name, sentence)
    quiet = min(share.seconds_since_progress for share in running)
    if quiet > facts.stall_seconds and worst.seconds_on_item == 0:
        return _verdict(facts, "stalled", None, f"Stalled: every stage waits, and nothing has moved for {duration(quiet)}")
    return None


def _warming_up(facts: Facts) -> Verdict | None:
    if facts.steps == 0 or not facts.stages:
        phase = facts.phase or "waiting for the first step"
        return _verdict(facts, "warming_up", None, f"Warming up: {phase}, {duration(facts.phase_seconds)} so far")
    if any(share.name == "drafter" and share.running and share.items < _FEW_ITEMS for share in facts.stages):
        count = f"{facts.steps:,} step{'' if facts.steps == 1 else 's'}"
        return _verdict(facts, "warming_up", None, f"Warming up: {count} so far")
    return None


def _weigh(facts: Facts) -> Verdict:
    """Who of those that run is busiest, and by how much."""
    ranked = sorted((share for share in facts.stages if share.running), key=lambda share: -share.busy_ratio)
    if not ranked:
        return _verdict(facts, "balanced", None, "Balanced: every stage has done its work")
    top, *rest = ranked
    of = {share.name: share for share in ranked}
    devices = [of[name] for name in DEVICE_STAGES if name in of]
    if len(devices) == len(DEVICE_STAGES) and min(share.busy_ratio for share in devices) >= _WELL_BUSY:
        return _verdict(facts, "all_well", None, f"All devices busy, all well: {_busy(devices)}")
    gain = top.busy_ratio / max(rest[0].busy_ratio, _SMALLEST_BUSY) - 1 if rest else 0.0
    then = rest[0].name if rest else None
    without = f" Without it: {_gain(gain)}, then {_the(then)} holds" if then else ""
    drafter_waits = of["drafter"].waiting_input_ratio if "drafter" in of else 0.0
    fed = max((share.busy_ratio for share in devices), default=0.0)
    if top.name not in DEVICE_STAGES and drafter_waits >= _STARVING and top.busy_ratio > _BALANCED * fed:
        who = f"{_the(top.name)} is busy {percent(top.busy_ratio)} and the drafter waits {percent(drafter_waits)} of its time"
        return _verdict(facts, "starved", top.name, f"Starved by the data: {who}.{without}", gain, then)
    if rest and gain <= _BALANCED - 1:
        return _verdict(facts, "balanced", None, f"Balanced: {_busy(ranked[:2])}; no stage alone holds the run back")
    sentence = f"{_upper(_the(top.name))} holds the run back: busy {percent(top.busy_ratio)}.{without}"
    return _verdict(facts, "stage_holds", top.name, sentence, gain, then)


def _busy(shown: Sequence[StageShare]) -> str:
    return ", ".join(f"{share.name} {percent(share.busy_ratio)}" for share in shown)


def _gain(ratio: float) -> str:
    return f"up to +{percent(ratio)}" if ratio < 9 else "more than ten times as fast"


def _the(stage: str | None) -> str:
    return f"the {stage}" if stage in DEVICE_STAGES else f"the {stage} stage"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
