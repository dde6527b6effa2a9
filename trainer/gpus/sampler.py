"""Samples the GPUs every few seconds on the one thread that owns the GPU library; all others read its newest snapshot.

Whatever the library does (it is missing, raises, loses a GPU, never returns) becomes a state with its reason in words. A driver
that hangs holds up this thread alone: snapshots then say so, and the run goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from trainer.gpus.device import (
    NO_TORCH_GPUS,
    NOT_SAMPLED,
    Allocated,
    Backend,
    Device,
    GpuSnapshot,
    NotHereError,
    TorchGpus,
    allocated,
    sentence_of,
)
from trainer.gpus.nvml import Nvml
from trainer.gpus.rocm import Rocm
from trainer.metrics.catalogue.watching import WATCH_ERRORS, WATCH_SECONDS
from trainer.metrics.exporter import Exporter

RETRY_SECONDS = 30.0
GIVE_UP_SECONDS = 10.0
"""A sampling that takes longer counts as failed until the driver answers."""
COSTLY_EVERY = 5
"""The slow questions are asked once in so many samplings."""
STOP_SECONDS = 1.0


class GpuSampler:
    """`start` it, read `snapshot` from any thread, `stop` it. Samples every `seconds`; 0 leaves the GPUs alone.

    `progress` returns a value that changes whenever the run advances. `clock` is monotonic, `wall` gives Unix time.
    """

    def __init__(
        self,
        exporter: Exporter,
        seconds: float,
        torch: TorchGpus = NO_TORCH_GPUS,
        *,
        progress: Callable[[], object] = lambda: None,
        backends: Sequence[Backend] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._exporter, self._seconds, self._torch = exporter, seconds, torch
        self._progress, self._progressed = progress, progress()
        self._clock, self._wall = clock, wall
        own: tuple[Backend, ...] = (Nvml(clock=clock, wall=wall), Rocm())
        self._backends = own if backends is None else backends
        self._backend: Backend | None = None
        self._samplings = itertools.count()
        self._retry_at = float("-inf")
        self._allocated: dict[int, Allocated] = {}
        first = NOT_SAMPLED if seconds else replace(NOT_SAMPLED, reason="GPU figures are switched off by --watch.gpu-seconds 0.")
        # The newest snapshot, and since when the next sampling is under way: one tuple, so that readers see both or neither.
        self._state: tuple[GpuSnapshot, float | None] = (first, None)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)

    def start(self) -> None:
        if self._seconds:
            self._thread.start()

    def stop(self) -> None:
        """Gives up waiting for the driver after `STOP_SECONDS`."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    @property
    def snapshot(self) -> GpuSnapshot:
        """The newest one. While the driver does not answer, and after `stop`, it has no figures but says why."""
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

    def sample(self) -> None:
        """Sample once, on the thread that owns the library. Never raises."""
        began, cpu = self._clock(), time.thread_time()
        newest = self._state[0]
        if self._backend is None and began < self._retry_at:
            return
        self._state = (newest, began)
        known = self._backend is not None or bool(self._torch.gpus)
        try:
            backend = self._backend = self._backend or self._open()
            devices, reason = backend.read(costly=next(self._samplings) % COSTLY_EVERY == 0)
            advanced = self._has_advanced()
            devices = tuple(self._with_torch(device, advanced=advanced) for device in devices)
        except Exception as error:
            found = self._failed(newest, sentence_of(error), known=known)
        else:
            found = self._sampled(backend, devices, reason)
        took = self._clock() - began
        errors = newest.errors + (took >= GIVE_UP_SECONDS or (not found.up and known))
        self._state = (replace(found, seconds=took, errors=errors), None)
        self._exporter.add(WATCH_SECONDS, time.thread_time() - cpu, "gpu")
        self._exporter.add(WATCH_ERRORS, errors - newest.errors, "gpu")

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.sample()
            self._stopping.wait(self._seconds)
        self._close()

    def _open(self) -> Backend:
        """The first library that works. Raises the error of the one that should have worked."""
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

    def _sampled(self, backend: Backend, devices: tuple[Device, ...], reason: str) -> GpuSnapshot:
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
        """No figures until the next try. A person is warned only if there were figures before, or if the run is on a GPU."""
        self._close()
        self._retry_at = self._clock() + RETRY_SECONDS
        reason = f"No GPU figures: {why}."
        return _without_figures(newest, reason, f"{reason} Training goes on without them." if known else "")

    def _with_torch(self, device: Device, *, advanced: bool) -> Device:
        """Adds the stages that use the GPU, and the allocator's statistics.

        The allocator is asked only if the driver has just answered and the run has advanced since: torch waits for the
        allocator's lock while it holds the GIL, so asking while a thread hangs inside the allocator would stop the process.
        """
        gpu = next((gpu for gpu in self._torch.gpus if device.has_uuid(gpu.uuid)), None)
        if gpu is None:
            return device
        if advanced:
            with contextlib.suppress(Exception):  # some allocators keep no statistics; the driver's figures do not need them
                if (newest := allocated(self._torch.memory_stats(gpu.number))) is not None:
                    self._allocated[gpu.number] = newest
        return replace(device, stages=gpu.stages, allocator=self._allocated.get(gpu.number))

    def _has_advanced(self) -> bool:
        before, self._progressed = self._progressed, self._progress()
        return self._progressed != before

    def _close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()


def _ended(newest: GpuSnapshot) -> GpuSnapshot:
    return _without_figures(newest, "The run has ended; its GPUs are no longer sampled.")


def _without_figures(newest: GpuSnapshot, reason: str, warning: str = "") -> GpuSnapshot:
    """Its age stays that of the last figures."""
    return replace(newest, devices=(), up=False, reason=reason, warning=warning, backend="none", driver="", notes=())
