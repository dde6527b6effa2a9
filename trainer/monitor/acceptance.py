"""What evaluations beside training found, and why estimated and measured acceptance length differ where they do.

There are three numbers for the same weights, from easy to honest: estimated on training data, estimated on held-out conversations,
measured by decoding. Where one promises tokens that the next does not keep, the gap between the two names the cause.
"""

from __future__ import annotations

import logging
import math
from typing import NamedTuple

from trainer.formatting import one_line
from trainer.metrics.catalogue.training import EVALUATION_ACCEPTED, EVALUATION_ROUNDS, EVALUATION_SECONDS, EVALUATIONS
from trainer.monitor.monitor import Monitor
from trainer.record.format import EvaluationLine, fields_of

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


class Evaluations:
    """Who the evaluator reports to, one evaluation at a time, from any thread. Memory only."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._exporter = monitor.exporter
        self._shown: dict[str, str] = {}  # kind of gap → its sentence on the page
        self._logged: set[str] = set()  # kinds that the log and the events have
        self._failure = ""  # the newest, on the page until an evaluation succeeds

    def evaluated(self, line: EvaluationLine) -> None:
        """The drafter of `line.step` has been measured; training may be at a later step by now."""
        self._monitor.update(evaluation=line)
        self._monitor.withdraw(self._failure)
        self._exporter.add(EVALUATIONS, 1, "done")
        self._exporter.record(EVALUATION_SECONDS, line.seconds)
        self._exporter.add(EVALUATION_ROUNDS, line.rounds)
        # Whole tokens, though the mean of them is not: rounded, so that no sum drifts.
        self._exporter.add(EVALUATION_ACCEPTED, round((line.measured_length - 1) * line.rounds))
        self._monitor.announce(logging.INFO, "evaluated", sentence(line), **fields_of(line))
        self._compare(line)

    def evaluation_failed(self, message: str) -> None:
        """Training goes on without it."""
        self._exporter.add(EVALUATIONS, 1, "failed")
        self._monitor.show(message, instead_of=self._failure)
        self._failure = message
        self._monitor.announce(logging.WARNING, "evaluation_failed", one_line(message))

    def evaluation_skipped(self, step: int) -> None:
        """One was due after `step`, and the one before was still under way."""
        self._exporter.add(EVALUATIONS, 1, "skipped")
        if "skipped" not in self._logged:
            self._logged.add("skipped")
            message = f"No evaluation after step {step:,}: the one before is still under way, which may happen again."
            self._monitor.warn(f"{message} A greater evaluate.every, or a smaller evaluate.limit, leaves time for each.")

    def _compare(self, line: EvaluationLine) -> None:
        """A kind of gap is logged once in an attempt; the page shows it, with the newest numbers, for as long as it holds."""
        found = {gap.kind: gap.sentence for gap in gaps(line)}
        for kind in self._shown.keys() - found.keys():
            self._monitor.withdraw(self._shown.pop(kind))
        for kind, text in found.items():
            self._monitor.show(text, instead_of=self._shown.get(kind, ""))
            self._shown[kind] = text
            if kind not in self._logged:
                self._logged.add(kind)
                self._monitor.announce(logging.WARNING, "warning", text, line.step)


def sentence(line: EvaluationLine) -> str:
    prompts = f"{line.prompts:,} held-out prompt{'' if line.prompts == 1 else 's'}"
    found = f"Measured acceptance length {line.measured_length:.2f} on {prompts} after step {line.step:,}"
    if line.held_out_estimated_length is None:
        return f"{found}."
    return f"{found} (estimated there: {line.held_out_estimated_length:.2f})."


class Gap(NamedTuple):
    """`kind` is one of memorised, decoding, either."""

    kind: str
    sentence: str


def gaps(line: EvaluationLine) -> tuple[Gap, ...]:
    """The gaps between the three lengths, easiest to most honest; empty while all is well, and while it is too early to tell."""
    training, held_out, measured = line.training_estimated_length, line.held_out_estimated_length, line.measured_length
    after = f"After step {line.step:,}"
    found = []
    if training is not None and held_out is not None and _is_far(training, held_out, line):
        found.append(Gap("memorised", f"{after} {_memorised(training, held_out)}"))
    if held_out is not None and _is_far(held_out, measured, line):
        found.append(Gap("decoding", f"{after} {_decoding(held_out, measured)}"))
    if not found and training is not None and _is_far(training, measured, line):
        found.append(Gap("either", f"{after} {_either(training, measured)}"))
    return tuple(found)


def standard_error(line: EvaluationLine) -> float:
    """Of the measured length, as if rounds were independent.

    From the shares alone: with K tokens kept in a round, E[K] = sum_k P(K >= k) and E[K^2] = sum_k (2k - 1) P(K >= k).
    """
    shares = [share or 0.0 for share in line.acceptance_by_position]
    squares = sum((2 * k - 1) * share for k, share in enumerate(shares, start=1))
    return math.sqrt(max(0.0, squares - sum(shares) ** 2) / line.rounds) if line.rounds else math.inf


def _is_far(promised: float, kept: float, line: EvaluationLine) -> bool:
    if line.rounds < ROUNDS or promised - 1 < PROMISED_TOKENS:
        return False
    return kept - 1 < KEPT_SHARE * (promised - 1) and promised - kept > STANDARD_ERRORS * standard_error(line)


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
