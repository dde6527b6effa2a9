"""The thread that owns the GPU library looks at the GPUs every few seconds; all others read its newest look and wait for nothing.

Whatever the library does (it is missing, raises, loses a GPU, never answers) is a state with its reason in words. A driver that
never answers holds up this thread alone; the readers tell of it, and the run goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from trainer.gpus.amd import Amd
from trainer.gpus.device import (
    NO_FIGURES,
    NO_TORCH,
    Allocated,
    Backend,
    Device,
    GpuSnapshot,
    NotHereError,
    TorchView,
    allocated,
    sentence_of,
)
from trainer.gpus.nvml import Nvml
from trainer.metrics.catalogue.watching import WATCH_ERRORS, WATCH_SECONDS
from trainer.metrics.exporter import Exporter

RETRY_SECONDS = 30.0
GIVE_UP_SECONDS = 10.0
"""A look that takes longer counts as failed until the driver answers."""
COSTLY_EVERY = 5
"""Every so many looks, what takes the driver long is asked as well."""
STOP_SECONDS = 1.0


class GpuSampler:
    """`start` it, ask for `reading` from any thread, `stop` it. `seconds` from look to look; 0 leaves the GPUs alone.

    `progress` changes whenever the run gets on. `clock` counts seconds and never goes back, `wall` gives Unix time.
    """

    def __init__(
        self,
        exporter: Exporter,
        seconds: float,
        torch: TorchView = NO_TORCH,
        *,
        progress: Callable[[], object] = lambda: None,
        backends: Sequence[Backend] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._exporter, self._seconds, self._torch = exporter, seconds, torch
        self._progress, self._progressed = progress, progress()
        self._clock, self._wall = clock, wall
        own: tuple[Backend, ...] = (Nvml(clock=clock, wall=wall), Amd())
        self._backends = own if backends is None else backends
        self._backend: Backend | None = None
        self._looks = itertools.count()
        self._retry_at = float("-inf")
        self._allocated: dict[int, Allocated] = {}
        first = NO_FIGURES if seconds else replace(NO_FIGURES, reason="GPU figures are switched off by --watch.gpu-seconds 0.")
        # The newest look, and since when the next one is under way: replaced together, so that no reader sees half of it.
        self._state: tuple[GpuSnapshot, float | None] = (first, None)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)

    def start(self) -> None:
        if self._seconds:
            self._thread.start()

    def stop(self) -> None:
        """Gives up after `STOP_SECONDS`, should the driver not answer."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    @property
    def reading(self) -> GpuSnapshot:
        """The newest look. While the driver does not answer, and after `stop`: no figures, and why."""
        newest, since = self._state
        waited = self._clock() - since if since is not None else 0.0
        if since is None or waited < GIVE_UP_SECONDS:
            return _ended(newest) if newest.up and self._stopping.is_set() else newest
        return replace(
            newest,
            devices=(),
            up=False,
            reason=f"No GPU figures: the driver has not answered for {waited:.0f} s.",
            warning="The GPU driver does not answer. Training goes on without figures of the GPUs.",
            seconds=waited,
            errors=newest.errors + 1,
        )

    def look(self) -> None:
        """Look once; on the thread that owns the library. Never raises."""
        began, cpu = self._clock(), time.thread_time()
        newest = self._state[0]
        if self._backend is None and began < self._retry_at:
            return
        self._state = (newest, began)
        known = self._backend is not None or bool(self._torch.gpus)
        try:
            backend = self._backend = self._backend or self._open()
            devices, reason = backend.read(costly=next(self._looks) % COSTLY_EVERY == 0)
            gets_on = self._gets_on()
            devices = tuple(self._with_torch(device, gets_on=gets_on) for device in devices)
        except Exception as error:
            found = self._failed(newest, sentence_of(error), known=known)
        else:
            found = self._seen(backend, devices, reason)
        took = self._clock() - began
        errors = newest.errors + (took >= GIVE_UP_SECONDS or (not found.up and known))
        self._state = (replace(found, seconds=took, errors=errors), None)
        self._exporter.add(WATCH_SECONDS, time.thread_time() - cpu, "gpu")
        self._exporter.add(WATCH_ERRORS, errors - newest.errors, "gpu")

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.look()
            self._stopping.wait(self._seconds)
        self._close()

    def _open(self) -> Backend:
        """The first library that works. Raises what the one that should have worked says."""
        missing, broken = [], []
        for backend in self._backends:
            try:
                backend.open(self._torch.gpus)
            except NotHereError as error:
                missing.append(sentence_of(error))
            except Exception as error:
                backend.close()
                broken.append(sentence_of(error))
            else:
                return backend
        raise RuntimeError("; ".join(broken) or missing[0])

    def _seen(self, backend: Backend, devices: tuple[Device, ...], reason: str) -> GpuSnapshot:
        return GpuSnapshot(
            devices,
            True,
            reason,
            backend=backend.name,
            driver=backend.driver,
            notes=backend.notes,
            warning=reason,
            at=self._clock(),
            time=self._wall(),
        )

    def _failed(self, newest: GpuSnapshot, why: str, *, known: bool) -> GpuSnapshot:
        """No figures until it is tried again. A person is told where there were some, or where the run is on a GPU."""
        self._close()
        self._retry_at = self._clock() + RETRY_SECONDS
        reason = f"No GPU figures: {why}."
        return _without_figures(newest, reason, f"{reason} Training goes on without them." if known else "")

    def _with_torch(self, device: Device, *, gets_on: bool) -> Device:
        """With the stages that use it, and what torch's allocator says.

        The allocator is asked only where the driver has just answered and the run has got on since the last time: torch waits for
        the allocator's lock with Python's own in hand, so that to ask while a thread hangs inside the allocator stops the process.
        """
        gpu = next((gpu for gpu in self._torch.gpus if device.is_called(gpu.uuid)), None)
        if gpu is None:
            return device
        if gets_on:
            with contextlib.suppress(Exception):  # some allocators keep no account; the driver's figures do without
                if (newest := allocated(self._torch.memory_stats(gpu.number))) is not None:
                    self._allocated[gpu.number] = newest
        return replace(device, stages=gpu.stages, allocator=self._allocated.get(gpu.number))

    def _gets_on(self) -> bool:
        before, self._progressed = self._progressed, self._progress()
        return self._progressed != before

    def _close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()


def _ended(newest: GpuSnapshot) -> GpuSnapshot:
    return _without_figures(newest, "The run has ended, and its GPUs are not looked at any more.")


def _without_figures(newest: GpuSnapshot, reason: str, warning: str = "") -> GpuSnapshot:
    """Its age stays that of the last figures."""
    return replace(newest, devices=(), up=False, reason=reason, warning=warning, backend="none", driver="", notes=())
