"""Acceptance arithmetic: which drafted tokens a round keeps, and the measured acceptance length over many rounds. No tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Round:
    """Token counts of one round of drafting and verification."""

    drafted: int
    """Drafted tokens that count: none beyond the end of the text."""
    accepted: int
    """Length of the prefix of these that the target confirmed."""
    kept: int
    """Tokens that the text gained: `accepted` and one of the target's own, unless the text ended before that one."""


def accepted_prefix(draft: Sequence[int], target: Sequence[int]) -> list[int]:
    """The longest common prefix, and one token of the target's own: greedy verification. `target` is longer by that one."""
    for k, (drafted, wanted) in enumerate(zip(draft, target, strict=False)):
        if drafted != wanted:
            return list(target[: k + 1])
    return list(target)


def up_to_stop(token_ids: list[int], stop_ids: Sequence[int]) -> list[int]:
    """The tokens up to the first that ends the text, that one included; all of them if none does."""
    for k, token in enumerate(token_ids):
        if token in stop_ids:
            return token_ids[: k + 1]
    return token_ids


def round_of(drafted: int, verified: int, kept: list[int], stop_ids: Sequence[int]) -> Round:
    """The counts of a round of `drafted` tokens in which verification let `verified` stay and the text's end left `kept` of these.

    A text that ended needed no guesses beyond its end; the token that ended it was one to guess.
    """
    counted = min(drafted, len(kept)) if kept[-1] in stop_ids else drafted
    return Round(drafted=counted, accepted=min(verified - 1, len(kept)), kept=len(kept))


def acceptance_length(rounds: Sequence[Round]) -> float | None:
    """Mean number of tokens kept per round, the target's own token included; None without rounds."""
    return sum(one.kept for one in rounds) / len(rounds) if rounds else None


def acceptance_by_position(rounds: Sequence[Round], block_size: int) -> tuple[float | None, ...]:
    """For draft positions k = 1 … B-1: the share of rounds that kept token k, among those that drafted that far; else None."""
    shares: list[float | None] = []
    for position in range(1, block_size):
        kept = [one.accepted >= position for one in rounds if one.drafted >= position]
        shares.append(sum(kept) / len(kept) if kept else None)
    return tuple(shares)
