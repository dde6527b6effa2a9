"""trainer/prepare/summary.py: why prompts became no conversations, and what to do about it."""

from collections import Counter

import pytest

from trainer.prepare.summary import DropSummary, warn_of_few_held_out


def left_out(*, cut_short: Counter[str] | None = None, **dropped: int) -> DropSummary:
    return DropSummary(dropped=Counter(dropped), cut_short=cut_short or Counter(), max_new_tokens=64, target="tiny", positions=4096)


def test_reasons_are_told_in_words_the_most_frequent_first() -> None:
    assert left_out(unfinished=1, nothing_to_learn=3).sentences() == (
        "Left out 4: 3 with an answer too short to learn from, 1 cut off by --max-new-tokens 64 (--keep-unfinished keeps such "
        "answers, a larger number lets them end)."
    )
    told = left_out(cut_short=Counter(too_long=1200)).sentences()
    assert told == "Cut short 1,200: 1,200 with no room for --max-new-tokens 64 in the 4,096 positions of target 'tiny'."
    assert left_out(no_answer=1).sentences() == "Left out 1: 1 no answer."


def test_where_all_is_well_nothing_is_told() -> None:
    talk = left_out()
    assert talk.dropped["looked_at"] == 0
    assert talk.sentences() == ""


@pytest.mark.parametrize(
    ("reason", "way"),
    [
        ("unfinished", "pass --keep-unfinished, or remove d.partial and raise --max-new-tokens"),
        ("too_long", "shorten the prompts, or give a smaller number than --max-new-tokens 64"),
        ("template", "check the prompts and the target's template, and remove d.partial"),
    ],
)
def test_if_nothing_is_left_there_is_a_way_out(reason: str, way: str) -> None:
    assert left_out(**{reason: 2}).error("d.partial").endswith(f": {way}")


@pytest.mark.parametrize(("count", "said"), [(0, "No conversation is"), (1, "Only 1 is"), (7, "Only 7 are"), (8, None), (99, None)])
def test_too_few_to_measure_on(count: int, said: str | None) -> None:
    warning = warn_of_few_held_out(count)
    assert warning is None if said is None else warning is not None and warning.startswith(f"Warning: {said} held out")
