"""What evaluations while training found: the newest one, and warnings where measured and estimated part company."""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from dataclasses import replace

from trainer import metrics
from trainer.moments import EvaluationFacts, evaluated_fields
from trainer.notices import Notices
from trainer.parting import why_apart
from trainer.recorder import Recorder
from trainer.wording import one_line

# A single step's estimate rests on one batch and jumps about; the mean of some is as steady as what it is compared with.
ESTIMATES_MEANT = 20
# Training goes on while an evaluation runs: estimates are remembered for as many steps as one may take.
ESTIMATES_KEPT = 4096


class Evaluations:
    """`trained` is called on the drafter's thread, the rest by whoever evaluates, one evaluation at a time. Memory only."""

    def __init__(self, notices: Notices, recorder: Recorder) -> None:
        self._notices = notices
        self._recorder = recorder
        self._estimates: deque[tuple[int, float]] = deque(maxlen=ESTIMATES_KEPT)
        self._shown: dict[str, str] = {}  # kind of parting → the sentence on the page
        self._told: set[str] = set()  # kinds that the log and the events have
        self._failure = ""  # the newest, on the page until an evaluation succeeds
        self.newest: EvaluationFacts | None = None

    def trained(self, step: int, estimated_length: float) -> None:
        if math.isfinite(estimated_length):
            self._estimates.append((step, estimated_length))

    def done(self, facts: EvaluationFacts) -> None:
        if facts.training_estimated_length is None:
            facts = replace(facts, training_estimated_length=self._training_estimate(facts.step))
        self.newest = facts
        self._notices.withdraw(self._failure)
        self._recorder.add(metrics.EVALUATIONS, 1, "done")
        self._recorder.record(metrics.EVALUATION_SECONDS, facts.seconds)
        self._recorder.add(metrics.EVALUATION_ROUNDS, facts.rounds)
        # Whole tokens, though the mean of them is not: rounded, so that no sum drifts.
        self._recorder.add(metrics.EVALUATION_ACCEPTED, round((facts.measured_length - 1) * facts.rounds))
        self._notices.tell(logging.INFO, "evaluated", sentence(facts), facts.step, **evaluated_fields(facts))
        self._compare(facts)

    def failed(self, message: str, step: int) -> None:
        self._recorder.add(metrics.EVALUATIONS, 1, "failed")
        sentence = one_line(message)
        self._notices.show(sentence, instead_of=self._failure)
        self._failure = sentence
        self._notices.tell(logging.WARNING, "evaluation_failed", sentence, step)

    def skipped(self, step: int) -> None:
        self._recorder.add(metrics.EVALUATIONS, 1, "skipped")
        if "skipped" not in self._told:
            self._told.add("skipped")
            message = f"No evaluation after step {step:,}, as the one before is still under way, which may happen again."
            self._notices.warn(f"{message} A greater evaluate.every, or a smaller evaluate.limit, leaves time for each.", step)

    def _training_estimate(self, step: int) -> float | None:
        before = [length for at, length in self._estimates.copy() if at <= step]
        return statistics.fmean(before[-ESTIMATES_MEANT:]) if before else None

    def _compare(self, facts: EvaluationFacts) -> None:
        """A kind of parting is told once in an attempt; the page shows it, with the newest numbers, for as long as it holds."""
        found = dict(why_apart(facts))
        for kind in self._shown.keys() - found.keys():
            self._notices.withdraw(self._shown.pop(kind))
        for kind, text in found.items():
            self._notices.show(text, instead_of=self._shown.get(kind, ""))
            self._shown[kind] = text
            if kind not in self._told:
                self._told.add(kind)
                self._notices.tell(logging.WARNING, "warning", text, facts.step)


def sentence(facts: EvaluationFacts) -> str:
    prompts = f"{facts.prompts:,} held-out prompt{'' if facts.prompts == 1 else 's'}"
    found = f"Measured acceptance length {facts.measured_length:.2f} on {prompts} after step {facts.step:,}"
    if facts.held_out_estimated_length is None:
        return f"{found}."
    return f"{found} (estimated there: {facts.held_out_estimated_length:.2f})."
