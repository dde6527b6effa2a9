"""The live console of a run: a calm display on a terminal, plain lines in a log file.

It draws on a thread of its own, woken by the telemetry tick. Log lines reach the terminal on that thread too: they don't tear the
display, and a terminal that is slow, stopped or gone never holds up training.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal, Protocol, TextIO

from rich.console import Console as RichConsole
from rich.live import Live as RichLive
from rich.text import Text

from trainer.monitor.console_view import LossStart, frame, loss_start, plain_line
from trainer.monitor.status import Status, StatusSource

log = logging.getLogger(__name__)

Mode = Literal["live", "plain", "off"]

_POLL_SECONDS = 0.25  # how long a log line waits at most while no tick comes
_PLAIN_SECONDS = 10.0
_STOP_SECONDS = 2.0
_LOG_LINES = 1000  # that wait at most; the oldest go first
_LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


def choose_mode(setting: Literal["auto", "live", "plain", "off"], stream: TextIO | None) -> Mode:
    """`auto` is live on a terminal that can show it, else plain; off where there is no stream to write to."""
    if stream is None or stream.closed:
        return "off"
    if setting != "auto":
        return setting
    utf8 = (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"
    return "live" if utf8 and stream.isatty() and not RichConsole(file=stream).is_dumb_terminal else "plain"


class Console:
    """Shows a run on `out` until `stop`. `addresses` are named URLs that are shown with it, as in `{"dashboard": "http://…"}`."""

    def __init__(
        self,
        source: StatusSource,
        mode: Mode,
        out: TextIO,
        addresses: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._mode = source, mode
        self._lines: deque[tuple[int, str]] = deque(maxlen=_LOG_LINES)
        self._stopping = threading.Event()
        self._final_message = ""
        named = dict(addresses or {})
        self._screen: _Screen = _LiveScreen(out, named) if mode == "live" else _PlainScreen(out, named, clock)
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)

    def log_handler(self) -> logging.Handler:
        """A handler for the root logger. It only puts the line aside, the console's thread shows it within a quarter second."""
        if self._mode == "off":
            return logging.NullHandler()
        handler = _Aside(self._lines)
        handler.setFormatter(logging.Formatter(_LOG_FORMAT, datefmt="%H:%M:%S"))
        return handler

    def start(self) -> None:
        if self._mode != "off":
            self._thread.start()

    def stop(self, final_message: str = "") -> None:
        """Leave the last state and the message on the screen. Returns after 2 s even if the terminal does not take them."""
        self._final_message = final_message
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._show_run()
        except Exception as error:
            self._screen.give_up()
            if not isinstance(error, OSError | ValueError):  # those two: the terminal is gone, or its file is closed
                log.warning("the console has died, training goes on: %s: %s", type(error).__name__, error, exc_info=error)

    def _show_run(self) -> None:
        self._screen.begin()
        tick = -1
        while not self._stopping.is_set():
            newest = self._source.wait_tick(tick, _POLL_SECONDS)
            self._show_log()
            if newest != tick:
                tick = newest
                self._screen.show(self._source.status())
        self._show_log()
        self._screen.end(self._source.status(), self._final_message)

    def _show_log(self) -> None:
        while self._lines:
            level, line = self._lines.popleft()
            self._screen.log(level, line)


class _Aside(logging.Handler):
    """Memory only: a log call on a stage's thread must not wait for a terminal."""

    def __init__(self, lines: deque[tuple[int, str]]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append((record.levelno, self.format(record)))
        except Exception:
            self.handleError(record)


class _Screen(Protocol):
    """Where the console shows things. Every call comes from the console's thread, and may raise OSError or ValueError."""

    def begin(self) -> None: ...
    def show(self, status: Status) -> None: ...
    def log(self, level: int, line: str) -> None: ...
    def end(self, status: Status, message: str) -> None: ...
    def give_up(self) -> None: ...


class _Terminal(RichConsole):
    def on_broken_pipe(self) -> None:
        """Rich would end the process; here the console falls silent and the run goes on."""
        self.quiet = True


class _LiveScreen:
    """Rich's display at the bottom of a terminal, log lines above it."""

    def __init__(self, out: TextIO, addresses: Mapping[str, str]) -> None:
        self._terminal = _Terminal(file=out, force_terminal=True, highlight=False)
        self._display = RichLive(console=self._terminal, auto_refresh=False)
        self._addresses = addresses
        self._loss_start: LossStart | None = None

    def begin(self) -> None:
        self._display.start()

    def show(self, status: Status) -> None:
        self._loss_start = self._loss_start or loss_start(status)
        self._display.update(frame(status, self._loss_start, self._addresses), refresh=True)

    def log(self, level: int, line: str) -> None:
        style = "red" if level >= logging.ERROR else "yellow" if level >= logging.WARNING else "dim"
        self._terminal.print(Text(_harmless(line), style=style))

    def end(self, status: Status, message: str) -> None:
        self.show(status)
        self._display.stop()
        if message:
            self._terminal.print(Text(message, style="bold"))

    def give_up(self) -> None:
        self._terminal.quiet = True
        # It gives stdout back first; then Rich stumbles over a display whose very start has failed.
        with contextlib.suppress(IndexError):
            self._display.stop()


class _PlainScreen:
    """A line every ten seconds and at every change of state: for log files, CI and `nohup`."""

    def __init__(self, out: TextIO, addresses: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._out, self._addresses, self._clock = out, addresses, clock
        self._shown_at, self._shown_state, self._shown_line = float("-inf"), "", ""

    def begin(self) -> None:
        if self._addresses:
            self._write(" · ".join(f"{name} {address}" for name, address in self._addresses.items()))

    def show(self, status: Status) -> None:
        state = f"{status.state} {status.phase} {status.verdict.state} {status.verdict.stage}"
        if state != self._shown_state or self._clock() - self._shown_at >= _PLAIN_SECONDS:
            self._shown_at, self._shown_state = self._clock(), state
            self._show_line(status)

    def log(self, level: int, line: str) -> None:
        self._write(_harmless(line))

    def end(self, status: Status, message: str) -> None:
        self._show_line(status)
        if message:
            self._write(message)

    def give_up(self) -> None:
        """Nothing to put back."""

    def _show_line(self, status: Status) -> None:
        line = plain_line(status)
        if line != self._shown_line:
            self._shown_line = line
            self._write(f"{time.strftime('%H:%M:%S')} {line}")

    def _write(self, line: str) -> None:
        encoding = getattr(self._out, "encoding", None) or "utf-8"
        self._out.write(line.encode(encoding, "replace").decode(encoding) + "\n")
        self._out.flush()


def _harmless(text: str) -> str:
    """Without control characters, which could move the cursor; line breaks and spaces stay, for tracebacks."""
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)
