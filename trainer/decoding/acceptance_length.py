"""Rounds of drafting and checking in, tokens kept per round out: the measured acceptance length, and by position."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.decoding.speculative import Round


def acceptance_length(rounds: Sequence[Round]) -> float | None:
    """Mean of tokens kept per round, the target's own token included; None without a round."""
    return sum(one.kept for one in rounds) / len(rounds) if rounds else None


def acceptance_by_position(rounds: Sequence[Round], block_size: int) -> tuple[float | None, ...]:
    """For draft positions k = 1 … B-1: the share of the rounds which drafted that far that kept token k."""
    shares: list[float | None] = []
    for position in range(1, block_size):
        asked = [one.accepted >= position for one in rounds if one.drafted >= position]
        shares.append(sum(asked) / len(asked) if asked else None)
    return tuple(shares)
