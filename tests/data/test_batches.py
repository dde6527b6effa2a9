"""Samples in, batches out: what goes into which batch, and how it lies there."""

from collections.abc import Iterator

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.batches import Cursor, TokenBatch, pack
from trainer.data.samples import Sample

TENSORS = ("token_T", "supervised_T", "position_T", "document_T")


def sample(length: int, position: int, epoch: int = 0) -> Sample:
    """Its token ids say which sample it is and where in it they stand."""
    token_ids = 1000 * (position + 1) + torch.arange(length)
    return Sample(token_ids, torch.arange(length) % 3 > 0, index=position, epoch=epoch, position=position)


def samples_of(*lengths: int) -> Iterator[Sample]:
    return (sample(length, position) for position, length in enumerate(lengths))


def sizes(batches: list[TokenBatch]) -> list[list[int]]:
    return [torch.bincount(batch.document_T).tolist() for batch in batches]


def assert_same(one: TokenBatch, other: TokenBatch) -> None:
    assert (one.seq, one.samples, one.after) == (other.seq, other.samples, other.after)
    for name in TENSORS:
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0)


def test_a_batch_is_closed_by_the_first_sample_that_does_not_fit() -> None:
    batches = list(pack(samples_of(5, 5, 1, 4, 6, 3), token_budget=10))
    assert sizes(batches) == [[5, 5], [1, 4], [6, 3]], "never reordered: the 3 does not slip in beside 1 and 4"
    assert [batch.seq for batch in batches] == [0, 1, 2]
    assert [batch.samples for batch in batches] == [2, 2, 2]
    assert [batch.tokens for batch in batches] == [10, 5, 9]


def test_documents_lie_end_to_end_each_with_positions_of_its_own() -> None:
    (batch,) = pack(samples_of(3, 1, 2), token_budget=6)
    assert batch.token_T.tolist() == [1000, 1001, 1002, 2000, 3000, 3001]
    assert batch.supervised_T.tolist() == [False, True, True, False, False, True]
    assert batch.position_T.tolist() == [0, 1, 2, 0, 0, 1]
    assert batch.document_T.tolist() == [0, 0, 0, 1, 2, 2]
    assert {getattr(batch, name).dtype for name in TENSORS} == {torch.int64, torch.bool}
    assert batch.supervised_T.dtype == torch.bool


def test_a_sample_over_the_budget_is_alone() -> None:
    assert sizes(list(pack(samples_of(2, 12, 3, 4), token_budget=10))) == [[2], [12], [3, 4]]


def test_the_cursor_names_the_first_conversation_not_used() -> None:
    # Positions 2 and 4 were dropped for having nothing to learn from; then the next epoch begins.
    visits = [sample(6, 0), sample(4, 1), sample(6, 3), sample(6, 0, epoch=1), sample(3, 1, epoch=1)]
    batches = list(pack(iter(visits), token_budget=10))
    assert [batch.after for batch in batches] == [Cursor(0, 3), Cursor(1, 0), Cursor(1, 2)]


def test_no_samples_make_no_batch() -> None:
    assert list(pack(iter([]), token_budget=10)) == []


def test_batches_are_handed_on_as_soon_as_they_are_full() -> None:
    read = []

    def watched() -> Iterator[Sample]:
        for one in samples_of(5, 5, 5, 5, 5):
            read.append(one.position)
            yield one

    next(pack(watched(), token_budget=10))
    assert read == [0, 1, 2], "one sample ahead, no more"


def test_bytes_are_those_of_the_tensors() -> None:
    (batch,) = pack(samples_of(7), token_budget=10)
    assert batch.nbytes == 7 * (8 + 1 + 8 + 8)


def test_moving_a_batch_changes_nothing_but_the_device() -> None:
    (batch,) = pack(samples_of(3, 4), token_budget=10, first_seq=6)
    assert_same(batch.to(torch.device("cpu")), batch)
    moved = batch.to(torch.device("meta"))
    assert {getattr(moved, name).device.type for name in TENSORS} == {"meta"}
    assert (moved.seq, moved.samples, moved.after) == (6, 2, batch.after)


@settings(max_examples=60, deadline=None, database=None)
@given(lengths=st.lists(st.integers(1, 13), max_size=40))
def test_a_batch_holds_as_many_of_the_next_samples_as_fit(lengths: list[int]) -> None:
    """The rule with plain sums, for the running total of `pack`."""
    expected: list[list[int]] = []
    for length in lengths:
        if expected and sum(expected[-1]) + length <= 10:
            expected[-1].append(length)
        else:
            expected.append([length])
    assert sizes(list(pack(samples_of(*lengths), token_budget=10))) == expected


@settings(max_examples=30, deadline=None, database=None)
@given(lengths=st.lists(st.integers(1, 13), min_size=1, max_size=30), first_seq=st.sampled_from([0, 41]))
def test_going_on_from_any_cursor_gives_the_same_batches(lengths: list[int], first_seq: int) -> None:
    visits = [sample(length, place % 7, epoch=place // 7) for place, length in enumerate(lengths)]
    batches = list(pack(iter(visits), token_budget=10, first_seq=first_seq))
    assert [batch.seq for batch in batches] == list(range(first_seq, first_seq + len(batches)))
    assert torch.cat([batch.token_T for batch in batches]).tolist() == torch.cat([v.token_ids for v in visits]).tolist()
    for place, batch in enumerate(batches):
        rest = (visit for visit in visits if (visit.epoch, visit.position) >= batch.after)
        again = list(pack(rest, token_budget=10, first_seq=batch.seq + 1))
        assert len(again) == len(batches) - place - 1
        for one, other in zip(again, batches[place + 1 :], strict=True):
            assert_same(one, other)
