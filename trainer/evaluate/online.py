"""Measures acceptance during training: a copy of the drafter decodes held-out prompts now and then, on a thread of its own.

The drafter's thread only copies its weights. The rest runs beside training on the target's device, and takes its share of it. A
failure here is reported and does not end the run.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import TracebackType
from typing import Protocol

import torch
from torch import nn
from transformers import PreTrainedModel, Qwen3Config

from trainer.config import LossConfig
from trainer.data.held_out import HeldOut
from trainer.decoding.acceptance_length import acceptance_by_position, acceptance_length
from trainer.decoding.speculative import Decoded, SpeculativeDecoder, prepare_for_decoding
from trainer.drafter.anchors import build_blocks, draw_anchors, generator_for
from trainer.drafter.learner import StepResult
from trainer.drafter.loss import drafter_loss, estimated_acceptance_length
from trainer.drafter.model import Drafter
from trainer.record.format import EvaluationLine
from trainer.target.features import FeatureBatch, borrow_weights

# Longest wait at the end for the measuring thread, which gives up between two rounds.
JOIN_SECONDS = 5.0
# Training steps whose estimated acceptance length is averaged.
ESTIMATES = 20

log = logging.getLogger(__name__)


class Listener(Protocol):
    """Who evaluations are reported to: the run's monitor."""

    def evaluated(self, line: EvaluationLine) -> None: ...
    def evaluation_failed(self, message: str) -> None: ...
    def evaluation_skipped(self, step: int) -> None: ...


class Evaluator:
    """Measures every `every` steps and once at the end. Leave its `with` block only after all threads that run the target."""

    def __init__(
        self,
        model: PreTrainedModel,
        drafter: Qwen3Config,
        held_out: HeldOut,
        listener: Listener,
        *,
        every: int,
        anchors: int,
        max_new_tokens: int,
        stop_ids: list[int],
        thread_start: Callable[[], object] = lambda: None,
    ) -> None:
        self._model = model
        self._copy = prepare_for_decoding(Drafter(drafter), model)
        self._speculator = SpeculativeDecoder(model, self._copy)
        self._held_out = held_out
        self._listener = listener
        self._every = every
        self._anchors = anchors
        # One stream for all evaluations: torch keeps the memory that a stream has used for that stream.
        self._stream = torch.cuda.Stream(model.device) if model.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._max_new_tokens = max_new_tokens
        self._stop_ids = stop_ids
        self._thread_start = thread_start
        self._thread: threading.Thread | None = None
        self._newest_step = 0
        # A single step's estimate rests on one batch and is noisy; the mean of some is as steady as what it is compared with.
        self._estimates: deque[float] = deque(maxlen=ESTIMATES)
        self._over = threading.Event()

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Give up a running measurement within one round of decoding; a thread that hangs is left behind."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)
        self._speculator.close()

    def note(self, result: StepResult) -> None:
        """Remember what training promised at a step; call it after each, before it is measured."""
        estimate = result.line.estimated_acceptance_length
        if not result.skipped and math.isfinite(estimate):
            self._estimates.append(estimate)

    def measure_if_due(self, step: int, drafter: nn.Module) -> None:
        """Start to measure the drafter after `step` if that is due; if the last one is still being measured, skip this one."""
        if step % self._every:
            return
        if self._thread is not None and self._thread.is_alive():
            self._listener.evaluation_skipped(step)
        else:
            self._begin(step, drafter)

    def measure_last(self, step: int, drafter: nn.Module, give_up: Callable[[], bool]) -> None:
        """Measure the finished drafter, unless it has been, and wait for it; `give_up` is called several times a second."""
        self._wait(give_up)
        if step != self._newest_step and not give_up():
            self._begin(step, drafter)
            self._wait(give_up)

    def _wait(self, give_up: Callable[[], bool]) -> None:
        while self._thread is not None and self._thread.is_alive() and not give_up():
            self._thread.join(timeout=0.1)

    def _begin(self, step: int, drafter: nn.Module) -> None:
        self._newest_step = step
        with torch.no_grad():
            for copy, weight in zip(self._copy.parameters(), drafter.parameters(), strict=True):
                copy.copy_(weight)
        if self._model.device.type == "cuda":
            torch.cuda.current_stream(self._model.device).synchronize()  # the copy is read on another stream
        trained = statistics.fmean(self._estimates) if self._estimates else None
        self._thread = threading.Thread(target=self._run, args=(step, trained), name="evaluator", daemon=True)
        self._thread.start()

    def _run(self, step: int, trained: float | None) -> None:
        began = time.monotonic()
        try:
            self._thread_start()
            with torch.no_grad(), torch.cuda.stream(self._stream) if self._stream else nullcontext():
                decoded = list(self._decode())
                estimate = self._estimate()
            if not self._over.is_set():
                self._listener.evaluated(self._line(step, decoded, trained, estimate, time.monotonic() - began))
        except Exception as error:
            log.info("The evaluation after step %s failed with:", f"{step:,}", exc_info=True)
            reason = " ".join(str(error).split())[:200]
            self._listener.evaluation_failed(f"The evaluation after step {step:,} failed ({type(error).__name__}: {reason}).")

    def _decode(self) -> Iterator[Decoded]:
        for prompt_ids in self._held_out.prompts:
            if self._over.is_set():
                return
            yield self._speculator.decode(
                prompt_ids, max_new_tokens=self._max_new_tokens, stop_ids=self._stop_ids, give_up=self._over.is_set
            )

    def _estimate(self) -> float | None:
        """The estimated acceptance length on the held-out conversations; None where there are none."""
        device, weights = self._model.device, borrow_weights(self._model, self._model.device)
        kept = at_risk = torch.zeros((), device=device)
        for held in self._held_out.conversations:
            if self._over.is_set():
                return None
            batch = held.to(device)
            anchor_A, used_A = draw_anchors(batch, self._anchors, generator_for(0, batch.seq))
            blocks = build_blocks(batch, anchor_A[used_A], used_A[used_A], self._copy.block_size)
            features = FeatureBatch(batch, self._speculator.features(batch.token_T.tolist()))
            with self._speculator.autocast:
                sums = drafter_loss(self._copy, weights, features, blocks, LossConfig())
            kept, at_risk = kept + sums.kept, at_risk + sums.at_risk
        return estimated_acceptance_length(kept.tolist(), at_risk.tolist()) if self._held_out.conversations else None

    def _line(
        self, step: int, decoded: list[Decoded], trained: float | None, estimate: float | None, seconds: float
    ) -> EvaluationLine:
        rounds = [one for text in decoded for one in text.rounds]
        tokens = sum(len(text.token_ids) for text in decoded)
        decoding = sum(text.decode_seconds for text in decoded)
        length = acceptance_length(rounds)
        if length is None:
            raise ValueError("every answer ended with its first token, so that nothing was drafted")
        return EvaluationLine(
            step=step,
            measured_length=length,
            acceptance_by_position=acceptance_by_position(rounds, self._copy.block_size),
            held_out_estimated_length=estimate,
            training_estimated_length=trained,
            prompts=len(decoded),
            rounds=len(rounds),
            tokens=tokens,
            seconds=round(seconds, 3),
            tokens_per_second=(tokens - len(decoded)) / decoding if decoding else 0.0,
        )


class NoEvaluator:
    """Takes the evaluator's place in a run that has nothing to measure acceptance on."""

    def __enter__(self) -> NoEvaluator:
        return self

    def __exit__(self, *_: object) -> None: ...

    def note(self, result: StepResult) -> None: ...
    def measure_if_due(self, step: int, drafter: nn.Module) -> None: ...

    def measure_last(self, step: int, drafter: nn.Module, give_up: Callable[[], bool]) -> None: ...
