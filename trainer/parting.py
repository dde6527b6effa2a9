"""An evaluation in, why its acceptance lengths part company out, in sentences for people. Pure functions.

Three numbers for the same weights, from easy to honest: estimated on training data, estimated on held-out conversations, measured
by decoding. Where one promises tokens that the next does not keep, the step between the two names the cause.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from trainer.moments import EvaluationFacts

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


def why_apart(facts: EvaluationFacts) -> tuple[Parting, ...]:
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


def standard_error(facts: EvaluationFacts) -> float:
    """Of the measured length, as if rounds were independent.

    From the shares alone: with K tokens kept in a round, E[K] = sum_k P(K >= k) and E[K^2] = sum_k (2k - 1) P(K >= k).
    """
    shares = [share or 0.0 for share in facts.acceptance_by_position]
    squares = sum((2 * k - 1) * share for k, share in enumerate(shares, start=1))
    return math.sqrt(max(0.0, squares - sum(shares) ** 2) / facts.rounds) if facts.rounds else math.inf


def _apart(promised: float, kept: float, facts: EvaluationFacts) -> bool:
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
