"""Counts the XID errors that the NVIDIA driver reports of its GPUs, through NVML events, and keeps the newest one."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MOST_EVENTS = 64
"""Read per sampling, so that a GPU that reports errors without end cannot hold up the thread."""


@dataclass(frozen=True, slots=True)
class Xids:
    """XID errors of one GPU since this process started; `last_time` is Unix time, code and time are 0 before the first."""

    errors: int = 0
    last_code: int = 0
    last_time: float = 0.0


class XidCounter:
    """Counts survive `close` and `open`: keep one for the life of the process."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._nvml: Any = None
        self._events: Any = None
        self._watched: dict[int | None, str] = {}
        self._counts: dict[str, Xids] = {}

    def open(self, nvml: Any) -> None:
        """Raises what the library raises if it has no events."""
        self._nvml, self._watched = nvml, {}
        self._events = nvml.nvmlEventSetCreate()

    def watch(self, handle: Any, uuid: str) -> None:
        """Count this GPU's errors from now on. Raises what the library raises."""
        if self._events is None or _address(handle) in self._watched:
            return
        self._nvml.nvmlDeviceRegisterEvents(handle, self._nvml.nvmlEventTypeXidCriticalError, self._events)
        self._watched[_address(handle)] = uuid
        self._counts.setdefault(uuid, Xids())

    def of(self, uuid: str) -> Xids | None:
        """The errors of a GPU; None if it is not watched."""
        return self._counts.get(uuid) if uuid in self._watched.values() else None

    def drain(self) -> None:
        """Count the events since the last call, without waiting for one."""
        if not self._watched:
            return
        nvml = self._nvml
        for _ in range(MOST_EVENTS):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    return
                raise
            uuid = self._watched.get(_address(event.device))
            if uuid is not None and event.eventType == nvml.nvmlEventTypeXidCriticalError:
                self._counts[uuid] = Xids(self._counts[uuid].errors + 1, int(event.eventData), self._wall())

    def close(self) -> None:
        """Raises what the library raises."""
        events, self._events, self._watched = self._events, None, {}
        if events is not None:
            self._nvml.nvmlEventSetFree(events)


def _address(handle: Any) -> int | None:
    """Identifies a GPU by the address its handles point to: a lost GPU no longer reports its UUID."""
    return ctypes.cast(handle, ctypes.c_void_p).value
