"""A status as people read it: numbers with their units, bars, and the table of `GET /status?format=text`. Pure functions."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from trainer.formatting import UNKNOWN, count, duration, number, percent, plain, size, steps

WIDTH = 96
_BAR = 20
_LABEL = 12
STAGE_RATIOS = ("busy_ratio", "waiting_input_ratio", "waiting_output_ratio")
STAGE_CELLS = ("█", "▒", "·")
_PHASED_STATES = ("starting", "finishing")  # in others the phase is that of the start, long past
_ALERT_STATES = ("stalled", "diverged", "failed")

Status = Mapping[str, Any]


def render(status: Status, now: float | None = None) -> str:
    """The whole status as lines of at most `WIDTH` columns, the verdict first; `now` is Unix time, by default the present."""
    now = time.time() if now is None else now
    parts = [
        _verdict(status, now),
        _fields(_progress_fields(status, now)),
        _stages(status.get("stages") or []),
        _queues(status.get("queues") or []),
        _fields(_machine_fields(status)),
        _fields(_care_fields(status)),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _verdict(status: Status, now: float) -> list[str]:
    verdict, lines = status.get("verdict") or {}, textwrap.wrap(verdict_sentence(status), WIDTH)
    since, lost = verdict.get("since"), verdict.get("lost_device_hours")
    facts = [str(verdict["state"]).replace("_", " ")] if verdict.get("state") else []
    facts += [f"for {duration(now - since)}"] if isinstance(since, int | float) else []
    facts += [f"{lost:.2f} device hours lost to waiting"] if isinstance(lost, int | float) and lost >= 0.005 else []
    return [*lines, " · ".join(facts)] if facts else lines


def _progress_fields(status: Status, now: float) -> Iterable[tuple[str, str]]:
    run, acceptance = status.get("run") or {}, status.get("acceptance") or {}
    yield "run", joined(run_name(status), state_text(status), _age(run, now))
    yield "step", joined(progress(status), f"epoch {number(status.get('epoch'), '.2f')}", eta(status))
    gradient = (
        f"learning rate {number(status.get('learning_rate'), '.2e')} · gradient norm {number(status.get('grad_norm'), '.3g')}"
    )
    yield "loss", f"{number(status.get('loss'), '.4f')} nats per draft token · {gradient}"
    yield "acceptance", acceptance_length(acceptance)
    accuracy = acceptance.get("position_accuracy") or []
    if accuracy:
        yield "  accuracy", f"by position: {_by_position(accuracy)}"
    if acceptance.get("measured_length") is not None:
        yield "  measured", f"by position: {_by_position(acceptance.get('measured_by_position') or [])}"
        yield (
            "  held out",
            f"{number(acceptance.get('held_out_estimated_length'), '.2f')} tokens per round, estimated where it was measured",
        )
    yield "rates", rates(status.get("rates") or {})


def _by_position(shares: Iterable[Any]) -> str:
    return " ".join(number(share, ".2f") for share in shares) or UNKNOWN


def _machine_fields(status: Status) -> Iterable[tuple[str, str]]:
    devices, process = status.get("devices") or [], status.get("process") or {}
    for device in devices:
        yield f"GPU {_gpu_label(device)}", _device(device)
    if not devices:
        yield "devices", "no GPU figures, only the process's"
    sampler = status.get("gpu_sampler") or {}
    for sentence in (sampler.get("reason"), *(sampler.get("notes") or [])):
        yield from [("", plain(sentence))] if sentence else []
    yield "process", f"{number(process.get('cpu_cores'), '.1f')} CPU cores · {size(process.get('memory_bytes'))}"
    watching = status.get("watching") or {}
    if watching.get("ratio") is not None:
        yield "watching", f"{percent(watching['ratio'], 2)} of the run's time"


def _care_fields(status: Status) -> Iterable[tuple[str, str]]:
    checkpoint = status.get("checkpoint") or {}
    if checkpoint.get("step") is None:
        yield "checkpoint", "none yet"
    else:
        age = f"{duration(checkpoint.get('age_seconds'))} ago"
        yield "checkpoint", f"step {steps(checkpoint['step'])} · {age} · {plain(checkpoint.get('path'))}"
    if status.get("last_error"):
        yield "error", plain(status["last_error"])
    warnings = status.get("warnings") or []
    yield "warnings", plain(warnings[-1]) if warnings else "none"
    for warning in warnings[-2:-6:-1]:
        yield "", plain(warning)


def _fields(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Lines of label and text; what is too long goes on below itself."""
    lines = []
    for label, text in pairs:
        start = label.ljust(_LABEL)
        lines += textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * _LABEL) or [start.rstrip()]
    return lines


def _age(run: Status, now: float) -> str:
    started = start_time(run)
    if started is None:
        return ""
    return f"started {started:%Y-%m-%d %H:%M:%S} {started:%Z}".rstrip() + f", {duration(now - started.timestamp())} ago"


def _stages(stages: Sequence[Status]) -> list[str]:
    if not stages:
        return []
    lines = [
        f"{'stage':<{_LABEL}}{'':{_BAR}}  {'busy':>7} {'for input':>9} {'for output':>10} {'threads':>7} {'items':>7}  progress"
    ]
    for stage in stages:
        ratios = [stage.get(name) for name in STAGE_RATIOS]
        shares = f"{percent(ratios[0]):>7} {percent(ratios[1]):>9} {percent(ratios[2]):>10}"
        flow = f"{number(stage.get('threads')):>7} {count(stage.get('items')):>7}"
        age = f"{duration(stage.get('seconds_since_progress'))} ago"
        name = plain(stage.get("name"))[: _LABEL - 1]
        lines.append(f"{name:<{_LABEL}}{shares_bar(ratios, _BAR)}  {shares} {flow}  {age}")
    busy, waiting_input, waiting_output = STAGE_CELLS
    return [*lines, f"{'':{_LABEL}}{busy} busy  {waiting_input} waiting for input  {waiting_output} waiting for output"]


def _queues(queues: Sequence[Status]) -> list[str]:
    lines = [f"{'queue':<{_LABEL}}{'':{_BAR}}  {'full':>7}   items and memory"] if queues else []
    for queue in queues:
        fill = queue.get("fill_ratio")
        items = f"{number(queue.get('items'))} of {number(queue.get('capacity_items'))}"
        memory = f"{size(queue.get('bytes'))} of {size(queue.get('capacity_bytes'))}"
        name = plain(queue.get("name"))[: _LABEL - 1]
        lines.append(f"{name:<{_LABEL}}{bar(fill, _BAR)}  {percent(fill):>7}   {items} · {memory}")
    return lines


def _gpu_label(device: Status) -> str:
    """As in `/metrics`: `0`, or `0:1` for part 1 of GPU 0."""
    return f"{device.get('index')}" if device.get("mig") is None else f"{device.get('index')}:{device.get('mig')}"


def _device(device: Status) -> str:
    memory = f"{size(device.get('memory_used_bytes'))} of {size(device.get('memory_total_bytes'))}"
    power = f"{number(device.get('power_watts'), '.0f')} W, {number(device.get('temperature_celsius'), '.0f')} °C"
    return f"{plain(device.get('name'))} · kernels active {percent(device.get('kernel_active_ratio'))} · {memory} · {power}"


def run_name(status: Status) -> str:
    run = status.get("run") or {}
    return plain(run.get("name") or run.get("id"))


def state_text(status: Status) -> str:
    """`running`, or `starting (loading the target)`."""
    state, phase = plain(status.get("state") or "unknown"), status.get("phase")
    return f"{state} ({plain(phase)})" if phase and state in _PHASED_STATES else state


def start_time(run: Status) -> datetime | None:
    try:
        return datetime.fromisoformat(str(run.get("started_at")))
    except ValueError:
        return None


def verdict_sentence(status: Status) -> str:
    return plain((status.get("verdict") or {}).get("sentence") or "No verdict yet.")


def progress(status: Status) -> str:
    """`1,240 of 5,000 (25 %)`; `of at most 5,000` where the data ends before; `1,240 (25 %)` where no last step is known."""
    step, last, ratio = status.get("step"), status.get("max_steps"), status.get("progress_ratio")
    if not last:
        return f"{steps(step)} ({percent(ratio)})"
    ends_before = isinstance(ratio, int | float) and ratio - (step or 0) / last > 0.01
    return f"{steps(step)} of {'at most ' if ends_before else ''}{steps(last)} ({percent(ratio)})"


def eta(status: Status) -> str:
    """`ETA 2 h 10 min`; empty once the run is over."""
    return "" if status.get("state") in ("finished", "failed") else f"ETA {duration(status.get('eta_seconds'))}"


def joined(*parts: str) -> str:
    """What there is, with dots between."""
    return " · ".join(part for part in parts if part)


def rates(values: Status) -> str:
    """Both token rates by name, and the steps."""
    context, draft = count(values.get("context_tokens_per_second")), count(values.get("draft_tokens_per_second"))
    return f"{context} context tokens/s · {draft} draft tokens/s · {number(values.get('steps_per_second'), '.3g')} steps/s"


def acceptance_length(values: Status) -> str:
    """Estimated and measured acceptance length, each by its name."""
    estimated = f"{number(values.get('estimated_length'), '.2f')} tokens per round, estimated"
    if values.get("measured_length") is None:
        return estimated
    return f"{estimated} · {number(values['measured_length'], '.2f')} measured at step {steps(values.get('measured_at_step'))}"


def is_alert(status: Status) -> bool:
    """Whether something is wrong, rather than slow."""
    return (status.get("verdict") or {}).get("state") in _ALERT_STATES or status.get("state") in _ALERT_STATES


def bar(ratio: Any, width: int) -> str:
    """A fill of `width` cells; only cells of nothing where the ratio is not known."""
    filled = round(min(1.0, max(0.0, ratio)) * width) if isinstance(ratio, int | float) else 0
    return "█" * filled + "·" * (width - filled)


def shares_bar(ratios: Sequence[Any], width: int) -> str:
    """Busy, waiting for input, waiting for output as `width` cells in all; blank where they are not known."""
    return "".join(sign * cells for sign, cells in zip(STAGE_CELLS, share_cells(ratios, width), strict=True)).ljust(width)


def share_cells(ratios: Sequence[Any], width: int) -> list[int]:
    """Whole cells for each share, `width` together by the largest remainder; zeros where a share is not known."""
    if any(not isinstance(ratio, int | float) for ratio in ratios) or sum(ratios) <= 0:
        return [0] * len(ratios)
    exact = [ratio / sum(ratios) * width for ratio in ratios]
    cells = [int(share) for share in exact]
    by_remainder = sorted(range(len(cells)), key=lambda index: cells[index] - exact[index])
    for index in by_remainder[: width - sum(cells)]:
        cells[index] += 1
    return cells
