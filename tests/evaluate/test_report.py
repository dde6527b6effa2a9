"""trainer/evaluate/report.py: figures of answers made by hand, by category too, and the sentences that tell them."""

import io
import json
from dataclasses import asdict
from typing import Any

import pytest
from rich.console import Console

from trainer.decoding.acceptance_length import Round
from trainer.decoding.speculative import Decoded
from trainer.evaluate.compare import AnsweredPrompt, TokenisedPrompt
from trainer.evaluate.lossless import Divergence
from trainer.evaluate.report import UNNAMED, Report, make_report

ROUNDING = Divergence(position=4, token=7, target_token=8, logit_gap=-1.5e-6, rounding=1e-6)
BUG = Divergence(position=1, token=7, target_token=8, logit_gap=2.25, rounding=1e-6)


def decoded(kept: list[int], seconds: float, first: float = 0.5) -> Decoded:
    """Rounds of blocks of 4, of which so many tokens are kept."""
    rounds = tuple(Round(drafted=3, accepted=count - 1, kept=count) for count in kept)
    return Decoded(token_ids=[1] * (1 + sum(kept)), rounds=rounds, prefill_seconds=first, decode_seconds=seconds)


def answered(
    number: int, category: str, kept: list[int], *, alone: float | None = 8.0, divergence: Divergence | None = None
) -> AnsweredPrompt:
    """An answer whose decoding took 2 s, and `alone` without the drafter."""
    slow = (
        None if alone is None else Decoded(token_ids=[1] * (1 + sum(kept)), rounds=(), prefill_seconds=0.25, decode_seconds=alone)
    )
    return AnsweredPrompt(
        prompt=TokenisedPrompt(number, category, [1] * 10), drafted=decoded(kept, 2.0), alone=slow, divergence=divergence
    )


SOME = [answered(0, "code", [4, 4, 4]), answered(1, "talk", [1, 1]), answered(5, "code", [2], divergence=ROUNDING)]


def found(answers: list[AnsweredPrompt], *, compared: bool = True) -> Report:
    return make_report(answers, 4, compared=compared)


def shown(told: Report) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(told.table("a, step 3"))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_rounds_are_pooled_over_prompts() -> None:
    total = found(SOME).total
    assert (total.prompts, total.tokens, total.rounds) == (3, 19, 6)
    assert (total.drafted_tokens, total.accepted_tokens) == (18, 10)
    assert total.acceptance_length == pytest.approx(16 / 6)
    assert total.acceptance_length_per_prompt == pytest.approx((4 + 1 + 2) / 3)
    assert total.acceptance_by_position == pytest.approx((4 / 6, 3 / 6, 3 / 6))


def test_rates_are_of_decoding_and_pooled_too() -> None:
    total = found(SOME).total
    assert total.tokens_per_second == pytest.approx(16 / 6)
    assert total.baseline_tokens_per_second == pytest.approx(16 / 24)
    assert total.speedup == pytest.approx(4.0)
    assert total.draft_tokens_per_second == pytest.approx(18 / 6)
    assert (total.time_to_first_token_seconds, total.baseline_time_to_first_token_seconds) == (0.5, 0.25)


def test_losslessness_is_counted() -> None:
    told = found(SOME)
    assert (told.total.identical_prompts, told.total.lossless) == (2, False)
    assert told.divergences() == [
        {"prompt": 5, "position": 4, "token": 7, "target_token": 8, "logit_gap": -1.5e-6, "rounding": 1e-6, "is_rounding": True}
    ]
    assert [row["identical"] for row in told.by_prompt()] == [True, True, False]
    assert found(SOME[:2]).total.lossless is True


def test_each_category_has_figures_of_its_own() -> None:
    told = found([*SOME, answered(6, "", [3])])
    assert list(told.by_category) == ["code", "talk", UNNAMED]
    assert told.by_category["code"] == found([SOME[0], SOME[2]]).total
    assert (told.by_category["talk"].acceptance_length, told.by_category["talk"].lossless) == (1.0, True)
    assert told.by_category["code"].lossless is False
    assert found([answered(6, "", [3])]).by_category == {}, "prompts of no category need no table of them"


def test_what_was_not_measured_is_none() -> None:
    told = found([answered(0, "code", [2, 2], alone=None)], compared=False)
    unknown = {name for name, value in asdict(told.total).items() if value is None}
    assert unknown == {
        "baseline_tokens_per_second",
        "baseline_time_to_first_token_seconds",
        "speedup",
        "identical_prompts",
        "lossless",
    }
    assert told.by_prompt()[0]["identical"] is None
    nothing = found([answered(0, "", [])]).total
    lengths = (nothing.acceptance_length, nothing.acceptance_length_per_prompt, nothing.acceptance_by_position)
    assert lengths == (None, None, (None, None, None))
    assert (nothing.tokens_per_second, nothing.speedup, nothing.draft_tokens_per_second) == (None, None, None)


def test_everything_can_be_told_in_strict_json() -> None:
    told = found([*SOME, answered(9, "", [])])
    parts: list[Any] = [
        asdict(told.total),
        told.by_prompt(),
        told.divergences(),
        [asdict(one) for one in told.by_category.values()],
    ]
    assert json.loads(json.dumps(parts, allow_nan=False))


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (SOME[:2], "Lossless: all 2 answers are the target's own, token for token."),
        (SOME[:1], "Lossless: the answer is the target's own, token for token."),
        (
            SOME,
            "2 of 3 answers are the target's own, token for token; 1 diverges where the target's logits of two tokens "
            "are equal, up to rounding (at most 2e-06 apart).",
        ),
        (
            [*SOME, answered(8, "", [2], divergence=BUG)],
            "NOT lossless: 2 of 4 answers are the target's own, token for token; 1 diverges where the target clearly prefers "
            "another token (first prompt 9, logits 2.2 apart, which rounding changes by 1e-06).",
        ),
    ],
)
def test_losslessness_in_words(answers: list[AnsweredPrompt], said: str) -> None:
    assert found(answers).lossless_sentence() == said


def test_an_answer_that_stopped_short_is_told_without_a_gap() -> None:
    short = Divergence(position=4, token=None, target_token=8, logit_gap=None, rounding=1e-6)
    assert found([answered(3, "", [2], divergence=short)]).lossless_sentence().endswith("another token (first prompt 4).")


def test_the_table_has_a_row_for_each_category_and_one_for_all() -> None:
    lines = shown(found(SOME)).splitlines()
    assert lines[0].strip() == "a, step 3"
    rows = {cells[0]: cells[1:] for line in lines if (cells := [cell.strip() for cell in line.split("│")[1:-1]])}
    assert rows["code"] == ["2", "16", "4", "3.50", "3.5", "0.9", "4.00x", "0.5 s"]
    assert rows["all"] == ["3", "19", "6", "2.67", "2.7", "0.7", "4.00x", "0.5 s"]
    assert "talk" in rows
    assert "target alone" in lines[2]


def test_a_category_cannot_paint_the_table() -> None:
    table = shown(found([answered(0, "[red]x[/red]\x1b[2J", [2])]))
    assert "[red]x[/red]" in table
    assert "\x1b" not in table


def test_the_drafting_in_words() -> None:
    assert found(SOME).drafting() == ["Acceptance by position: 1: 67 % · 2: 50 % · 3: 50 %.", "Drafted: 3 tokens/s."]
    assert found([answered(0, "", [])]).drafting() == [
        "Acceptance by position: 1: – · 2: – · 3: –.",
        "Drafted: – tokens/s.",
    ]
