"""Measurements over answered prompts, in total and by category, as JSON for scripts and as a table for people."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from rich.table import Table
from rich.text import Text

from trainer.decoding.acceptance_length import acceptance_by_position, acceptance_length
from trainer.decoding.speculative import Decoded
from trainer.evaluate.compare import AnsweredPrompt
from trainer.formatting import UNKNOWN, duration, number, percent, plain

UNNAMED = "(none)"
_COLUMNS = ("prompts", "tokens", "rounds", "acceptance length", "tokens/s", "target alone", "speed-up", "first token")


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Measurements over some answered prompts; None where there is nothing to measure.

    Lengths and rates are pooled over all rounds, whichever prompt a round belongs to. `acceptance_length_per_prompt` is the mean of
    the prompts' own means instead, as in z-lab's benchmark. Rates leave out an answer's first token: the prompt's pass yields it.
    """

    prompts: int
    tokens: int
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    acceptance_length: float | None
    acceptance_length_per_prompt: float | None
    acceptance_by_position: tuple[float | None, ...]
    tokens_per_second: float | None
    draft_tokens_per_second: float | None
    time_to_first_token_seconds: float | None
    baseline_tokens_per_second: float | None
    baseline_time_to_first_token_seconds: float | None
    speedup: float | None
    identical_prompts: int | None
    lossless: bool | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of an evaluation; `by_category` is empty where no prompt has a category."""

    answers: Sequence[AnsweredPrompt]
    total: Measurements
    by_category: dict[str, Measurements]

    @property
    def unexplained(self) -> list[AnsweredPrompt]:
        """The answers that diverge from the target's own where it clearly prefers another token: a bug, not rounding."""
        return [answer for answer in self.answers if answer.divergence and not answer.divergence.is_rounding]

    def divergences(self) -> list[dict[str, Any]]:
        """A row for each prompt whose drafted answer is not the target's own, for JSON."""
        return [
            {"prompt": answer.prompt.number, **asdict(answer.divergence), "is_rounding": answer.divergence.is_rounding}
            for answer in self.answers
            if answer.divergence
        ]

    def by_prompt(self) -> list[dict[str, Any]]:
        """A row for each prompt, for JSON."""
        return [{**_row(answer), "identical": self._is_identical(answer)} for answer in self.answers]

    def _is_identical(self, answer: AnsweredPrompt) -> bool | None:
        return answer.divergence is None if self.total.lossless is not None else None

    def lossless_sentence(self) -> str:
        """Says whether the drafter changed a text, for answers that were compared."""
        total, diverged = len(self.answers), [answer for answer in self.answers if answer.divergence]
        if not diverged:
            return f"Lossless: {'the answer is' if total == 1 else f'all {total} answers are'} the target's own, token for token."
        found = f"{total - len(diverged)} of {total} answers are the target's own, token for token"
        if not self.unexplained:
            gap = max(abs(answer.divergence.logit_gap or 0.0) for answer in diverged if answer.divergence)
            how = f"up to rounding (at most {gap:.1g} apart)"
            return f"{found}; {_diverge(len(diverged))} where the target's logits of two tokens are equal, {how}."
        first = self.unexplained[0]
        how = f"prompt {first.prompt.number + 1}"
        if first.divergence and first.divergence.logit_gap is not None:
            how += (
                f", logits {abs(first.divergence.logit_gap):.2g} apart, which rounding changes by {first.divergence.rounding:.1g}"
            )
        where = f"{_diverge(len(self.unexplained))} where the target clearly prefers another token"
        return f"NOT lossless: {found}; {where} (first {how})."

    def table(self, title: str) -> Table:
        """A row for each category and one for the total."""
        table = Table(title=Text(plain(title)), title_justify="left", title_style="bold")
        table.add_column("category" if self.by_category else "")
        for column in _COLUMNS:
            table.add_column(column, justify="right")
        for name, figures in self.by_category.items():
            table.add_row(Text(plain(name)), *_cells(figures))
        table.add_section()
        table.add_row("all", *_cells(self.total), style="bold")
        return table

    def drafting(self) -> list[str]:
        """What the drafter did, in sentences."""
        positions = enumerate(self.total.acceptance_by_position, start=1)
        shares = " · ".join(f"{position}: {UNKNOWN if share is None else percent(share)}" for position, share in positions)
        rate = number(self.total.draft_tokens_per_second, ",.0f")
        return [f"Acceptance by position: {shares}.", f"Drafted: {rate} tokens/s."]


def make_report(answers: Sequence[AnsweredPrompt], block_size: int, *, compared: bool) -> Report:
    """Measure these answers. `compared` says whether each was compared with the target's own, token for token."""
    names = list(dict.fromkeys(answer.prompt.category for answer in answers))
    return Report(
        answers=answers,
        total=measure(answers, block_size, compared=compared),
        by_category={
            name or UNNAMED: measure([one for one in answers if one.prompt.category == name], block_size, compared=compared)
            for name in names
            if names != [""]
        },
    )


def measure(answers: Sequence[AnsweredPrompt], block_size: int, *, compared: bool) -> Measurements:
    drafted = [answer.drafted for answer in answers]
    alone = [answer.alone for answer in answers if answer.alone]
    rounds = list(chain.from_iterable(text.rounds for text in drafted))
    lengths = [length for text in drafted if (length := acceptance_length(text.rounds)) is not None]
    rate, baseline = _tokens_per_second(drafted), _tokens_per_second(alone)
    draft_tokens, seconds = sum(one.drafted for one in rounds), sum(text.decode_seconds for text in drafted)
    identical = sum(answer.divergence is None for answer in answers) if compared else None
    return Measurements(
        prompts=len(answers),
        tokens=sum(len(text.token_ids) for text in drafted),
        rounds=len(rounds),
        drafted_tokens=draft_tokens,
        accepted_tokens=sum(one.accepted for one in rounds),
        acceptance_length=acceptance_length(rounds),
        acceptance_length_per_prompt=statistics.fmean(lengths) if lengths else None,
        acceptance_by_position=acceptance_by_position(rounds, block_size),
        tokens_per_second=rate,
        draft_tokens_per_second=draft_tokens / seconds if rounds and seconds else None,
        time_to_first_token_seconds=_first_token_seconds(drafted),
        baseline_tokens_per_second=baseline,
        baseline_time_to_first_token_seconds=_first_token_seconds(alone),
        speedup=rate / baseline if rate and baseline else None,
        identical_prompts=identical,
        lossless=identical == len(answers) if compared else None,
    )


def _diverge(count: int) -> str:
    return "1 diverges" if count == 1 else f"{count} diverge"


def _row(answer: AnsweredPrompt) -> dict[str, Any]:
    drafted, alone = answer.drafted, answer.alone
    return {
        "prompt": answer.prompt.number,
        "category": answer.prompt.category,
        "prompt_tokens": len(answer.prompt.token_ids),
        "tokens": len(drafted.token_ids),
        "rounds": len(drafted.rounds),
        "acceptance_length": acceptance_length(drafted.rounds),
        "tokens_per_second": _tokens_per_second([drafted]),
        "time_to_first_token_seconds": drafted.prefill_seconds,
        "baseline_tokens_per_second": _tokens_per_second([alone]) if alone else None,
        "baseline_time_to_first_token_seconds": alone.prefill_seconds if alone else None,
    }


def _cells(figures: Measurements) -> list[str]:
    return [
        f"{figures.prompts:,}",
        f"{figures.tokens:,}",
        f"{figures.rounds:,}",
        number(figures.acceptance_length, ".2f"),
        number(figures.tokens_per_second, ",.1f"),
        number(figures.baseline_tokens_per_second, ",.1f"),
        UNKNOWN if figures.speedup is None else f"{figures.speedup:.2f}x",
        duration(figures.time_to_first_token_seconds),
    ]


def _tokens_per_second(texts: Sequence[Decoded]) -> float | None:
    seconds, tokens = sum(text.decode_seconds for text in texts), sum(len(text.token_ids) - 1 for text in texts)
    return tokens / seconds if tokens and seconds else None


def _first_token_seconds(texts: Sequence[Decoded]) -> float | None:
    return statistics.median(text.prefill_seconds for text in texts) if texts else None
