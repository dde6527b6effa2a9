"""What holds the run back right now, as one verdict with one plain sentence. Pure functions.

Busy, waiting for input and waiting for output add up to 1 for each stage, waits and items still in progress included. The stage
that is busiest holds the run back, and busiest ÷ second busiest is what the run could gain without it (`headroom`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
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


def shares(old: Sequence[StageStats], new: Sequence[StageStats]) -> list[StageShare]:
    """Where the threads' time went from `old` to `new`; with no `old`, since the stages began.

    The ratios of a stage add up to 1, or are all 0 where it spent no time at all because it had ended.
    """
    before = {stats.name: stats for stats in old}
    return [_share(before.get(stats.name), stats) for stats in new]


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


def judge(evidence: Evidence, previous: Verdict | None) -> Verdict:
    """The verdict of this window. A change is taken over when two windows in a row agree, what is in `AT_ONCE` at once."""
    found = _verdict_of_window(evidence, previous)
    if previous is None:
        return found
    key = (found.state, found.stage)
    if key == (previous.state, previous.stage):
        return replace(found, since=previous.since)
    if found.state in AT_ONCE or previous.state in AT_ONCE or previous.pending == key:
        return found
    return replace(previous, pending=key, lost_device_hours=evidence.lost_device_hours)


def _verdict_of_window(evidence: Evidence, previous: Verdict | None) -> Verdict:
    """What this window says by itself, without the one before."""
    match evidence.state:
        case "failed":
            why = evidence.error or "no reason is known"
            return _verdict(evidence, "failed", evidence.failed_stage, f"{_failed(evidence.failed_stage)}: {why}")
        case "finished":
            return _verdict(evidence, "finished", None, _finished(evidence))
        case "paused":
            return _verdict(evidence, "paused", None, f"Paused at step {evidence.step:,}")
    if (divergence := _diverged(evidence)) is not None:
        return _verdict(evidence, "diverged", None, divergence)
    if previous is not None and previous.state != "stalled" and (evidence.state == "finishing" or _is_over(evidence.stages)):
        return replace(previous, pending=None, lost_device_hours=evidence.lost_device_hours)
    return _stalled(evidence) or _warming_up(evidence) or _weigh(evidence)


def _is_over(stages: Sequence[StageShare]) -> bool:
    """Whether the drafter has taken its last batch: what the others still do decides nothing."""
    return any(share.name == "drafter" and not share.running for share in stages)


def _verdict(
    evidence: Evidence, state: str, stage: str | None, sentence: str, gain: float = 0.0, then: str | None = None
) -> Verdict:
    return Verdict(
        state=state,
        stage=stage,
        sentence=sentence.rstrip().rstrip(".") + ".",
        since=evidence.now,
        headroom_ratio=gain,
        next_stage=then,
        lost_device_hours=evidence.lost_device_hours,
    )


def _failed(stage: str | None) -> str:
    match stage:
        case None:
            return "Failed"
        case "start":
            return "Failed at the start"
        case _:
            return f"Failed in the {stage} stage"


def _finished(evidence: Evidence) -> str:
    word = "Finished" if evidence.progress_ratio is None or evidence.progress_ratio >= 1 else "Stopped"
    if not evidence.steps:
        return f"{word} at step {evidence.step:,}, without a step in this attempt"
    count = f"{evidence.steps:,} step{'' if evidence.steps == 1 else 's'} in {duration(evidence.elapsed)}"
    fall = "" if evidence.loss is None or evidence.first_loss is None else f", loss {evidence.first_loss:.3g} → {evidence.loss:.3g}"
    if evidence.steps == evidence.step:
        return f"{word}: {count}{fall}"
    return f"{word} at step {evidence.step:,}: {count} since the resume{fall}"


def _diverged(evidence: Evidence) -> str | None:
    if evidence.loss is not None and not math.isfinite(evidence.loss):
        return f"Diverged: the loss of step {evidence.step:,} is {'not a number' if math.isnan(evidence.loss) else 'infinite'}"
    if evidence.skipped_in_a_row >= _SKIPS:
        return f"Diverged: the last {evidence.skipped_in_a_row:,} steps in a row were skipped"
    return None


def _stalled(evidence: Evidence) -> Verdict | None:
    running = [share for share in evidence.stages if share.running]
    if not running:
        return None
    worst = max(running, key=lambda share: share.seconds_on_item)
    if worst.seconds_on_item > evidence.stall_seconds:
        usual = "its first item" if worst.usual_seconds is None else f"one item, usually {duration(worst.usual_seconds)}"
        sentence = f"{_upper(_the(worst.name))} is stalled: {duration(worst.seconds_on_item)} on {usual}"
        return _verdict(evidence, "stalled", worst.name, sentence)
    quiet = min(share.seconds_since_progress for share in running)
    if quiet > evidence.stall_seconds and worst.seconds_on_item == 0:
        return _verdict(evidence, "stalled", None, f"Stalled: every stage waits, and nothing has moved for {duration(quiet)}")
    return None


def _warming_up(evidence: Evidence) -> Verdict | None:
    if evidence.steps == 0 or not evidence.stages:
        phase = evidence.phase or "waiting for the first step"
        return _verdict(evidence, "warming_up", None, f"Warming up: {phase}, {duration(evidence.phase_seconds)} so far")
    if any(share.name == "drafter" and share.running and share.items < _FEW_ITEMS for share in evidence.stages):
        count = f"{evidence.steps:,} step{'' if evidence.steps == 1 else 's'}"
        return _verdict(evidence, "warming_up", None, f"Warming up: {count} so far")
    return None


def _weigh(evidence: Evidence) -> Verdict:
    """Who of those that run is busiest, and by how much."""
    ranked = sorted((share for share in evidence.stages if share.running), key=lambda share: -share.busy_ratio)
    if not ranked:
        return _verdict(evidence, "balanced", None, "Balanced: every stage has done its work")
    top, *rest = ranked
    of = {share.name: share for share in ranked}
    devices = [of[name] for name in DEVICE_STAGES if name in of]
    if len(devices) == len(DEVICE_STAGES) and min(share.busy_ratio for share in devices) >= _WELL_BUSY:
        return _verdict(evidence, "all_well", None, f"All devices busy, all well: {_busy(devices)}")
    gain = top.busy_ratio / max(rest[0].busy_ratio, _SMALLEST_BUSY) - 1 if rest else 0.0
    then = rest[0].name if rest else None
    without = f" Without it: {_gain(gain)}, then {_the(then)} holds" if then else ""
    drafter_waits = of["drafter"].waiting_input_ratio if "drafter" in of else 0.0
    fed = max((share.busy_ratio for share in devices), default=0.0)
    if top.name not in DEVICE_STAGES and drafter_waits >= _STARVING and top.busy_ratio > _BALANCED * fed:
        who = f"{_the(top.name)} is busy {percent(top.busy_ratio)} and the drafter waits {percent(drafter_waits)} of its time"
        return _verdict(evidence, "starved", top.name, f"Starved by the data: {who}.{without}", gain, then)
    if rest and gain <= _BALANCED - 1:
        return _verdict(evidence, "balanced", None, f"Balanced: {_busy(ranked[:2])}; no stage alone holds the run back")
    sentence = f"{_upper(_the(top.name))} holds the run back: busy {percent(top.busy_ratio)}.{without}"
    return _verdict(evidence, "stage_holds", top.name, sentence, gain, then)


def _busy(shown: Sequence[StageShare]) -> str:
    return ", ".join(f"{share.name} {percent(share.busy_ratio)}" for share in shown)


def _gain(ratio: float) -> str:
    return f"up to +{percent(ratio)}" if ratio < 9 else "more than ten times as fast"


def _the(stage: str | None) -> str:
    return f"the {stage}" if stage in DEVICE_STAGES else f"the {stage} stage"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
