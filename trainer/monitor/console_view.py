"""What the console shows of a status: a frame for a terminal of 80 x 24, and one line for a log. Pure functions."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from trainer.formatting import duration, number, percent, plain, steps
from trainer.monitor.status import Status
from trainer.monitor.status_text import (
    STAGE_CELLS,
    acceptance_length,
    eta,
    is_alert,
    joined,
    progress,
    rates,
    run_name,
    share_cells,
    stage_ratios,
    start_time,
    state_text,
    verdict_sentence,
)

_WARNINGS = 2
_LABEL = 11
_STAGE_BAR = 24
_STAGE_STYLES = ("green", "yellow", "bright_black")


class LossStart(NamedTuple):
    """The first finite loss that was seen, and its step."""

    step: int
    loss: float


def loss_start(status: Status) -> LossStart | None:
    if status.loss is None or not math.isfinite(status.loss):
        return None
    return LossStart(status.step, status.loss)


def frame(status: Status, start: LossStart | None, addresses: Mapping[str, str], now: float | None = None) -> RenderableType:
    """The display of a run; `now` is Unix time, by default the present."""
    now = time.time() if now is None else now
    blocks: list[list[RenderableType]] = [
        [Rule(style="dim"), _title(status, now), _bar(status)],
        [Text(verdict_sentence(status), style=_verdict_style(status))],
        [_grid(_figures(status, start))],
        [_flow(status)] if status.stages else [],
        [
            _grid((name, Text(address)) for name, address in addresses.items()),
            *(_one_line(f"! {plain(warning)}", "yellow") for warning in status.warnings[-_WARNINGS:]),
        ],
    ]
    filled = [block for block in blocks if block]
    return Group(*filled[0], *(part for block in filled[1:] for part in (Text(), *block)))


def plain_line(status: Status) -> str:
    """The run in one line."""
    if not status.step:
        return f"{state_text(status)} · {verdict_sentence(status)}"
    loss = f"loss {number(status.loss, '.4f')}"
    acceptance = f"acceptance {acceptance_length(status.acceptance)}"
    speed = joined(rates(status.rates), eta(status))
    return joined(state_text(status), f"step {progress(status)}", loss, acceptance, speed, verdict_sentence(status))


def _title(status: Status, now: float) -> Text:
    title = _one_line(run_name(status), "bold")
    title.append(f" · {state_text(status)}", "bold red" if is_alert(status) else "not bold")
    started = start_time(status.run)
    if started is not None:
        title.append(f" · {duration(now - started.timestamp())}", "not bold")
    return title


def _bar(status: Status) -> Table:
    row = Table.grid(expand=True, padding=(0, 2, 0, 0))
    row.add_column(ratio=1)
    row.add_column(no_wrap=True)
    done = ProgressBar(total=1.0, completed=status.progress_ratio or 0.0, complete_style="green")
    row.add_row(done, Text(joined(progress(status), eta(status))))
    return row


def _verdict_style(status: Status) -> str:
    return "bold red" if is_alert(status) else "bold"


def _figures(status: Status, start: LossStart | None) -> Iterable[tuple[str, Text]]:
    loss = status.loss
    text = Text(number(loss, ".4f"), style="bold")
    if start is not None and start.step != status.step:
        text.append(f"  from {start.loss:.4f} at step {steps(start.step)}", "not bold")
        if loss is not None and math.isfinite(loss) and start.loss > 0:
            text.append(f" ({100 * (loss / start.loss - 1):+.0f} %)".replace("-", "−"), "not bold")
    yield "loss", text
    yield "acceptance", Text(acceptance_length(status.acceptance))
    yield "rates", Text(rates(status.rates))


def _flow(status: Status) -> Table:
    """A row for each stage: what its threads do, as a bar that is always whole, and the greater of its waits."""
    holder = status.verdict.stage
    rows = []
    for stage in status.stages:
        ratios = stage_ratios(stage)
        row = Text()
        for sign, cells, style in zip(STAGE_CELLS, share_cells(ratios, _STAGE_BAR), _STAGE_STYLES, strict=True):
            row.append(sign * cells, style)
        row.pad_right(_STAGE_BAR - len(row))
        row.append(f"  {percent(ratios[0]):>5} busy", "bold" if stage.name == holder else "")
        row.append(_wait(ratios), "dim")
        rows.append((plain(stage.name), row))
    return _grid(rows)


def _wait(ratios: Sequence[float]) -> str:
    ratio, side = max(zip(ratios[1:], ("input", "output"), strict=True))
    return f" · {percent(ratio)} waiting for {side}" if ratio >= 0.005 else ""


def _grid(rows: Iterable[tuple[str, Text]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", min_width=_LABEL, no_wrap=True)
    grid.add_column(overflow="ellipsis", no_wrap=True)
    for label, text in rows:
        grid.add_row(label, text)
    return grid


def _one_line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
