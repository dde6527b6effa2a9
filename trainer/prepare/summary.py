"""Summary for people: how many prompts were dropped or cut short, why, and what to do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from trainer import formatting


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSummary:
    """`dropped` counts prompts without a conversation, `cut_short` conversations without their last turns, both by reason.

    `positions` is the target's limit, 0 where it has none.
    """

    dropped: Counter[str]
    cut_short: Counter[str]
    max_new_tokens: int
    target: str
    positions: int

    def sentences(self) -> str:
        """One sentence for each of the two that is not empty."""
        found = ((self.dropped, "Left out"), (self.cut_short, "Cut short"))
        return " ".join(f"{what} {sum(counter.values()):,}: {self._reasons(counter)}." for counter, what in found if counter)

    def error(self, answers: str | None) -> str:
        """The error message where no conversation is left; `answers` is the folder that holds the answers, if there is one."""
        if self.dropped["unfinished"]:
            way = f"pass --keep-unfinished, or remove {answers} and raise --max-new-tokens"
        elif self.dropped["too_long"]:
            way = f"shorten the prompts, or give a smaller number than --max-new-tokens {self.max_new_tokens}"
        else:
            way = "check the prompts and the target's template" + (f", and remove {answers}" if answers else "")
        return f"none of the prompts becomes a conversation ({self._reasons(self.dropped)}): {way}"

    def _reasons(self, counter: Counter[str]) -> str:
        return ", ".join(f"{count:,} {self._words(reason)}" for reason, count in counter.most_common() if count)

    def _words(self, reason: str) -> str:
        most = f"--max-new-tokens {self.max_new_tokens}"
        words = {
            "unfinished": f"cut off by {most} (--keep-unfinished keeps such answers, a larger number lets them end)",
            "too_long": f"with no room for {most} in the {self.positions:,} positions of target {self.target!r}",
            "nothing_to_learn": "with an answer too short to learn from",
            "template": "refused by the target's chat template",
        }
        return words.get(reason, formatting.words(reason))


def warn_of_few_held_out(conversations: int, enough: int = 8) -> str | None:
    """A warning where acceptance would be measured on too few conversations to be meaningful."""
    if conversations >= enough:
        return None
    held = "No conversation is" if conversations == 0 else "Only 1 is" if conversations == 1 else f"Only {conversations} are"
    return (
        f"Warning: {held} held out, and acceptance measured on fewer than {enough} says little: raise --held-out-ratio or "
        "--limit, or measure with prompts of your own (--evaluate.prompts)."
    )
