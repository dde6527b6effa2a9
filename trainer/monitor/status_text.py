"""A status as people read it: numbers with their units, bars, and the table of `GET /status?format=text`. Pure functions."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Sequence
from datetime import datetime

from trainer.formatting import UNKNOWN, count, duration, number, percent, plain, size, steps, words
from trainer.gpus.device import Device
from trainer.monitor.rates import Rates
from trainer.monitor.status import Acceptance, Queue, RunIdentity, Stage, Status

WIDTH = 96
_BAR = 20
_LABEL = 12
STAGE_CELLS = ("█", "▒", "·")
_PHASED_STATES = ("starting", "finishing")  # in others the phase is that of the start, long past
_ALERT_STATES = ("stalled", "diverged", "failed")


def render(status: Status, now: float | None = None) -> str:
    """The whole status as lines of at most `WIDTH` columns, the verdict first; `now` is Unix time, by default the present."""
    now = time.time() if now is None else now
    parts = [
        _verdict(status, now),
        _fields(_progress_fields(status, now)),
        _stages(status.stages),
        _queues(status.queues),
        _fields(_machine_fields(status)),
        _fields(_care_fields(status)),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _verdict(status: Status, now: float) -> list[str]:
    verdict = status.verdict
    facts = [words(verdict.state), f"for {duration(now - verdict.since)}"]
    if verdict.lost_device_hours >= 0.005:
        facts.append(f"{verdict.lost_device_hours:.2f} device hours lost to waiting")
    return [*textwrap.wrap(verdict_sentence(status), WIDTH), " · ".join(facts)]


def _progress_fields(status: Status, now: float) -> Iterable[tuple[str, str]]:
    acceptance = status.acceptance
    yield "run", joined(run_name(status), state_text(status), _age(status.run, now))
    yield "step", joined(progress(status), f"epoch {number(status.epoch, '.2f')}", eta(status))
    gradient = f"learning rate {number(status.learning_rate, '.2e')} · gradient norm {number(status.grad_norm, '.3g')}"
    yield "loss", joined(f"{number(status.loss, '.4f')} {status.loss_unit or ''}".rstrip(), gradient)
    yield "acceptance", acceptance_length(acceptance)
    if acceptance.position_accuracy:
        yield "  accuracy", f"by position: {_by_position(acceptance.position_accuracy)}"
    if acceptance.measured_length is not None:
        yield "  measured", f"by position: {_by_position(acceptance.measured_by_position)}"
        held_out = number(acceptance.held_out_estimated_length, ".2f")
        yield "  held out", f"{held_out} tokens per round, estimated on the measured conversations"
    yield "rates", rates(status.rates)


def _by_position(shares: Iterable[float | None]) -> str:
    return " ".join(number(share, ".2f") for share in shares) or UNKNOWN


def _machine_fields(status: Status) -> Iterable[tuple[str, str]]:
    for device in status.devices:
        yield f"GPU {device.label}", _device(device)
    if not status.devices:
        yield "devices", "no GPU figures, only the process's"
    for sentence in filter(None, (status.gpu_sampler.reason, *status.gpu_sampler.notes)):
        yield "", plain(sentence)
    yield "process", f"{number(status.process.cpu_cores, '.1f')} CPU cores · {size(status.process.memory_bytes)}"
    yield "watching", f"{percent(status.watching.ratio, 2)} of the run's time"


def _care_fields(status: Status) -> Iterable[tuple[str, str]]:
    checkpoint = status.checkpoint
    if checkpoint.step is None:
        yield "checkpoint", "none yet"
    else:
        yield "checkpoint", f"step {steps(checkpoint.step)} · {duration(checkpoint.age_seconds)} ago · {plain(checkpoint.path)}"
    if status.last_error:
        yield "error", plain(status.last_error)
    yield "warnings", plain(status.warnings[-1]) if status.warnings else "none"
    for warning in status.warnings[-2:-6:-1]:
        yield "", plain(warning)


def _fields(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Lines of label and text; what is too long goes on below itself."""
    lines = []
    for label, text in pairs:
        start = label.ljust(_LABEL)
        lines += textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * _LABEL) or [start.rstrip()]
    return lines


def _age(run: RunIdentity, now: float) -> str:
    started = start_time(run)
    if started is None:
        return ""
    return f"started {started:%Y-%m-%d %H:%M:%S} {started:%Z}".rstrip() + f", {duration(now - started.timestamp())} ago"


def _stages(stages: Sequence[Stage]) -> list[str]:
    if not stages:
        return []
    lines = [
        f"{'stage':<{_LABEL}}{'':{_BAR}}  {'busy':>7} {'for input':>9} {'for output':>10} {'threads':>7} {'items':>7}  progress"
    ]
    for stage in stages:
        ratios = stage_ratios(stage)
        shares = f"{percent(ratios[0]):>7} {percent(ratios[1]):>9} {percent(ratios[2]):>10}"
        flow = f"{number(stage.threads):>7} {count(stage.items):>7}"
        age = f"{duration(stage.seconds_since_progress)} ago"
        name = plain(stage.name)[: _LABEL - 1]
        lines.append(f"{name:<{_LABEL}}{shares_bar(ratios, _BAR)}  {shares} {flow}  {age}")
    busy, waiting_input, waiting_output = STAGE_CELLS
    return [*lines, f"{'':{_LABEL}}{busy} busy  {waiting_input} waiting for input  {waiting_output} waiting for output"]


def _queues(queues: Sequence[Queue]) -> list[str]:
    lines = [f"{'queue':<{_LABEL}}{'':{_BAR}}  {'full':>7}   items and memory"] if queues else []
    for queue in queues:
        items = f"{number(queue.items)} of {number(queue.capacity_items)}"
        memory = f"{size(queue.bytes)} of {size(queue.capacity_bytes)}"
        name = plain(queue.name)[: _LABEL - 1]
        lines.append(f"{name:<{_LABEL}}{bar(queue.fill_ratio, _BAR)}  {percent(queue.fill_ratio):>7}   {items} · {memory}")
    return lines


def _device(device: Device) -> str:
    memory = f"{size(device.memory_used_bytes)} of {size(device.memory_total_bytes)}"
    power = f"{number(device.power_watts, '.0f')} W, {number(device.temperature_celsius, '.0f')} °C"
    return f"{plain(device.name)} · kernels active {percent(device.kernel_active_ratio)} · {memory} · {power}"


def run_name(status: Status) -> str:
    return plain(status.run.name or status.run.id)


def state_text(status: Status) -> str:
    """`running`, or `starting (loading the target)`."""
    phased = status.phase and status.state in _PHASED_STATES
    return f"{status.state} ({plain(status.phase)})" if phased else status.state


def start_time(run: RunIdentity) -> datetime | None:
    try:
        return datetime.fromisoformat(str(run.started_at))
    except ValueError:
        return None


def verdict_sentence(status: Status) -> str:
    return plain(status.verdict.sentence)


def progress(status: Status) -> str:
    """`1,240 of 5,000 (25 %)`; `of at most 5,000` where the data ends before; `1,240 (25 %)` where no last step is known."""
    step, last, ratio = status.step, status.max_steps, status.progress_ratio
    if not last:
        return f"{steps(step)} ({percent(ratio)})"
    ends_before = ratio is not None and ratio - step / last > 0.01
    return f"{steps(step)} of {'at most ' if ends_before else ''}{steps(last)} ({percent(ratio)})"


def eta(status: Status) -> str:
    """`ETA 2 h 10 min`; empty once the run is over."""
    return "" if status.state in ("finished", "failed") else f"ETA {duration(status.eta_seconds)}"


def joined(*parts: str) -> str:
    """What there is, with dots between."""
    return " · ".join(part for part in parts if part)


def rates(values: Rates) -> str:
    """Both token rates by name, and the steps."""
    context, draft = count(values.context_tokens_per_second), count(values.draft_tokens_per_second)
    return f"{context} context tokens/s · {draft} draft tokens/s · {number(values.steps_per_second, '.3g')} steps/s"


def acceptance_length(values: Acceptance) -> str:
    """Estimated and measured acceptance length, each by its name."""
    estimated = f"{number(values.estimated_length, '.2f')} tokens per round, estimated"
    if values.measured_length is None:
        return estimated
    return f"{estimated} · {number(values.measured_length, '.2f')} measured at step {steps(values.measured_at_step)}"


def is_alert(status: Status) -> bool:
    """Whether something is wrong, rather than slow."""
    return status.verdict.state in _ALERT_STATES or status.state in _ALERT_STATES


def stage_ratios(stage: Stage) -> tuple[float, float, float]:
    """Busy, waiting for input, waiting for output: in the order of `STAGE_CELLS`."""
    return stage.busy_ratio, stage.waiting_input_ratio, stage.waiting_output_ratio


def bar(ratio: float, width: int) -> str:
    """`width` cells, filled to `ratio`."""
    filled = round(min(1.0, max(0.0, ratio)) * width)
    return "█" * filled + "·" * (width - filled)


def shares_bar(ratios: Sequence[float], width: int) -> str:
    """Busy, waiting for input, waiting for output as `width` cells in all; blank where they are all 0."""
    return "".join(sign * cells for sign, cells in zip(STAGE_CELLS, share_cells(ratios, width), strict=True)).ljust(width)


def share_cells(ratios: Sequence[float], width: int) -> list[int]:
    """Whole cells for each share, `width` together by the largest remainder; zeros where all shares are 0."""
    if sum(ratios) <= 0:
        return [0] * len(ratios)
    exact = [ratio / sum(ratios) * width for ratio in ratios]
    cells = [int(share) for share in exact]
    by_remainder = sorted(range(len(cells)), key=lambda index: cells[index] - exact[index])
    for index in by_remainder[: width - sum(cells)]:
        cells[index] += 1
    return cells
