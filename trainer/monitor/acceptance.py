"""What evaluations while training found: the newest one, and warnings where measured and estimated part company."""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from dataclasses import replace
from typing import NamedTuple

from trainer.formatting import one_line
from trainer.metrics.catalogue.training import EVALUATION_ACCEPTED, EVALUATION_ROUNDS, EVALUATION_SECONDS, EVALUATIONS
from trainer.metrics.exporter import Exporter
from trainer.monitor.warnings import Notices
from trainer.record.format import EvaluationLine, fields_of

# A single step's estimate rests on one batch and jumps about; the mean of some is as steady as what it is compared with.
ESTIMATES_MEANT = 20
# Training goes on while an evaluation runs: estimates are remembered for as many steps as one may take.
ESTIMATES_KEPT = 4096


class Evaluations:
    """`trained` is called on the drafter's thread, the rest by whoever evaluates, one evaluation at a time. Memory only."""

    def __init__(self, notices: Notices, exporter: Exporter) -> None:
        self._notices = notices
        self._exporter = exporter
        self._estimates: deque[tuple[int, float]] = deque(maxlen=ESTIMATES_KEPT)
        self._shown: dict[str, str] = {}  # kind of parting → the sentence on the page
        self._told: set[str] = set()  # kinds that the log and the events have
        self._failure = ""  # the newest, on the page until an evaluation succeeds
        self.newest: EvaluationLine | None = None

    def trained(self, step: int, estimated_length: float) -> None:
        if math.isfinite(estimated_length):
            self._estimates.append((step, estimated_length))

    def done(self, facts: EvaluationLine) -> None:
        if facts.training_estimated_length is None:
            facts = replace(facts, training_estimated_length=self._training_estimate(facts.step))
        self.newest = facts
        self._notices.withdraw(self._failure)
        self._exporter.add(EVALUATIONS, 1, "done")
        self._exporter.record(EVALUATION_SECONDS, facts.seconds)
        self._exporter.add(EVALUATION_ROUNDS, facts.rounds)
        # Whole tokens, though the mean of them is not: rounded, so that no sum drifts.
        self._exporter.add(EVALUATION_ACCEPTED, round((facts.measured_length - 1) * facts.rounds))
        self._notices.tell(logging.INFO, "evaluated", sentence(facts), **fields_of(facts))
        self._compare(facts)

    def failed(self, message: str, step: int) -> None:
        self._exporter.add(EVALUATIONS, 1, "failed")
        sentence = one_line(message)
        self._notices.show(sentence, instead_of=self._failure)
        self._failure = sentence
        self._notices.tell(logging.WARNING, "evaluation_failed", sentence, step)

    def skipped(self, step: int) -> None:
        self._exporter.add(EVALUATIONS, 1, "skipped")
        if "skipped" not in self._told:
            self._told.add("skipped")
            message = f"No evaluation after step {step:,}, as the one before is still under way, which may happen again."
            self._notices.warn(f"{message} A greater evaluate.every, or a smaller evaluate.limit, leaves time for each.", step)

    def _training_estimate(self, step: int) -> float | None:
        before = [length for at, length in self._estimates.copy() if at <= step]
        return statistics.fmean(before[-ESTIMATES_MEANT:]) if before else None

    def _compare(self, facts: EvaluationLine) -> None:
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


def sentence(facts: EvaluationLine) -> str:
    prompts = f"{facts.prompts:,} held-out prompt{'' if facts.prompts == 1 else 's'}"
    found = f"Measured acceptance length {facts.measured_length:.2f} on {prompts} after step {facts.step:,}"
    if facts.held_out_estimated_length is None:
        return f"{found}."
    return f"{found} (estimated there: {facts.held_out_estimated_length:.2f})."


# At least this share is to be left of the tokens that a drafter adds (the length less the bonus token). Not more: an estimate
# starts blocks anywhere, while decoding passes easy text in few rounds and hard text in many, so that measured may lie well below
# estimated with nothing wrong. What goes wrong, goes wrong by far: of "99 % right" a tenth is accepted.
KEPT_SHARE = 0.5


# Below that many promised tokens it is too early to tell: a fresh drafter promises next to nothing, and keeps less.
PROMISED_TOKENS = 0.25


# A difference must be more than noise. Three errors and not two, as the rounds of one prompt resemble each other.
STANDARD_ERRORS = 3.0


ROUNDS = 50


LIKELY = (
    "the data's answers are not this target's own (`prepare` makes them), or they were made in another precision, "
    "with another chat template or thinking mode, or sampled instead of greedy"
)


class Parting(NamedTuple):
    """`kind` is one of memorised, decoding, either."""

    kind: str
    sentence: str


def why_apart(facts: EvaluationLine) -> tuple[Parting, ...]:
    """What each step from promise to fact says; empty while all is well, and while it is too early to tell."""
    training, held_out, measured = facts.training_estimated_length, facts.held_out_estimated_length, facts.measured_length
    after = f"After step {facts.step:,}"
    found = []
    if training is not None and held_out is not None and _apart(training, held_out, facts):
        found.append(Parting("memorised", f"{after} {_memorised(training, held_out)}"))
    if held_out is not None and _apart(held_out, measured, facts):
        found.append(Parting("decoding", f"{after} {_decoding(held_out, measured)}"))
    if not found and training is not None and _apart(training, measured, facts):
        found.append(Parting("either", f"{after} {_either(training, measured)}"))
    return tuple(found)


def standard_error(facts: EvaluationLine) -> float:
    """Of the measured length, as if rounds were independent.

    From the shares alone: with K tokens kept in a round, E[K] = sum_k P(K >= k) and E[K^2] = sum_k (2k - 1) P(K >= k).
    """
    shares = [share or 0.0 for share in facts.acceptance_by_position]
    squares = sum((2 * k - 1) * share for k, share in enumerate(shares, start=1))
    return math.sqrt(max(0.0, squares - sum(shares) ** 2) / facts.rounds) if facts.rounds else math.inf


def _apart(promised: float, kept: float, facts: EvaluationLine) -> bool:
    if facts.rounds < ROUNDS or promised - 1 < PROMISED_TOKENS:
        return False
    return kept - 1 < KEPT_SHARE * (promised - 1) and promised - kept > STANDARD_ERRORS * standard_error(facts)


def _memorised(training: float, held_out: float) -> str:
    return (
        f"the acceptance length is estimated at {training:.2f} on training data and at {held_out:.2f} on held-out conversations: "
        "the drafter knows its training data by heart. More conversations or fewer epochs help."
    )


def _decoding(held_out: float, measured: float) -> str:
    return (
        f"the acceptance length is estimated at {held_out:.2f} on held-out conversations and measured at {measured:.2f} there: "
        f"decoding differs from training. Likely {LIKELY}."
    )


def _either(training: float, measured: float) -> str:
    return (
        f"the acceptance length is estimated at {training:.2f} on training data and measured at {measured:.2f} on held-out "
        f"prompts. Likely the drafter knows its training data by heart (more conversations or fewer epochs help), or {LIKELY}."
    )
