"""Where blocks begin, what they are asked, and what they may look at."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tests.support.small import MASK, lay_out, lively_drafter, random_features, random_weights, some_of
from trainer.data.batches import TokenBatch
from trainer.drafter import anchors
from trainer.drafter.anchors import Blocks, attention_mask, build_blocks, draw_anchors, generator_for

BLOCK = 4
BATCH = lay_out((30, 1, 25, 44), some_of(100))


def draw(batch: TokenBatch, count: int, seed: int = 1, seq: int = 2) -> tuple[list[int], list[bool]]:
    anchor_A, used_A = draw_anchors(batch, count, generator_for(seed, seq))
    return anchor_A.tolist(), used_A.tolist()


def blocks_at(batch: TokenBatch, *anchors: int, unused: int = 0, size: int = BLOCK) -> Blocks:
    anchor_A = torch.tensor([*anchors, *[0] * unused])
    return build_blocks(batch, anchor_A, torch.arange(len(anchor_A)) < len(anchors), size)


def eligible(batch: TokenBatch) -> list[int]:
    supervised, document = batch.supervised_T.tolist(), batch.document_T.tolist()
    return [t for t in range(batch.tokens - 1) if supervised[t] and supervised[t + 1] and document[t] == document[t + 1]]


@pytest.mark.parametrize("count", [1, 7, 20])
def test_anchors_are_sorted_distinct_and_eligible(count: int) -> None:
    for seq in range(50):
        anchors, used = draw(BATCH, count, seq=seq)
        assert used == [True] * count
        assert anchors == sorted(set(anchors))
        assert set(anchors) <= set(eligible(BATCH))


def counts_of(batch: TokenBatch, anchors: list[int]) -> list[int]:
    """Anchors in each document."""
    return torch.bincount(batch.document_T[anchors], minlength=batch.samples).tolist()


@st.composite
def batches(draw: st.DrawFn) -> TokenBatch:
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    total = sum(lengths)
    return lay_out(lengths, draw(st.lists(st.booleans(), min_size=total, max_size=total)))


@settings(deadline=None)
@given(batch=batches(), count=st.integers(1, 60), seed=st.integers(0, 2**63 - 1), seq=st.integers(0, 10**9))
def test_whatever_the_batch_anchors_are_sorted_distinct_eligible_and_fair(
    batch: TokenBatch, count: int, seed: int, seq: int
) -> None:
    anchors, used = draw(batch, count, seed, seq)
    places = eligible(batch)
    assert len(anchors) == len(used) == count
    found = min(count, len(places))
    assert used == [True] * found + [False] * (count - found)
    chosen = anchors[:found]
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(places)
    had, could = counts_of(batch, chosen), counts_of(batch, places)
    for poor in range(batch.samples):
        if had[poor] < could[poor]:
            assert max(had) <= had[poor] + 1, "one that has more could give it one without having less than it"


def test_documents_take_turns_as_in_the_worked_example() -> None:
    document_P = torch.tensor([0, 0, 0, 1])  # positions a0 a1 a2 b0
    drawn = {tuple(anchors._round_robin(document_P, 2, generator_for(seed, 0)).tolist()) for seed in range(99)}
    assert (1, 3, 5, 0) in drawn, "ranks 0 1 2 0, documents in the order b, a: three anchors are b0, a0, a1"
    assert len(drawn) == 12, "3! orders within a, 2 orders of the documents"
    assert {turns.index(0) for turns in drawn} == {0, 1, 2, 3}
    assert all(sorted(turns.index(turn) for turn in range(2))[-1] == 3 for turns in drawn), "each document once, b0 among them"


def test_within_a_document_every_eligible_place_is_drawn_about_equally_often() -> None:
    places = torch.tensor(eligible(BATCH))
    counts = torch.zeros(BATCH.tokens)
    for seq in range(1500):
        counts[draw(BATCH, 10, seq=seq)[0]] += 1
    assert counts.sum() == counts[places].sum() == 15_000
    for document in (0, 2, 3):
        own = counts[places[BATCH.document_T[places] == document]]
        assert own.min() > 0.7 * own.mean()
        assert own.max() < 1.3 * own.mean()


def test_whose_anchor_is_left_over_is_drawn_and_length_has_no_say() -> None:
    batch = lay_out((90, 5, 30))
    lucky = torch.zeros(3)
    for seq in range(900):
        counts = counts_of(batch, draw(batch, 10, seq=seq)[0])
        assert sorted(counts) == [3, 3, 4]
        lucky[counts.index(4)] += 1
    assert (lucky - 300).abs().max() < 60


def test_short_documents_are_not_starved_by_long_ones_beside_them() -> None:
    """Eight conversations in a batch of 8,192 tokens, 54 % supervised, and 512 anchors: a plain draw over all of them, as the
    public trainers do it, gives the short one a sixth of what it has places for."""
    lengths = (3000, 2200, 1100, 700, 500, 346, 250, 96)
    batch = lay_out(lengths, [place % 100 < 54 for length in lengths for place in range(length)])
    places = torch.tensor(eligible(batch))
    fair, plain = torch.zeros(8), torch.zeros(8)
    for seq in range(20):
        fair += torch.tensor(counts_of(batch, draw(batch, 512, seq=seq)[0]))
        uniform = places[torch.randperm(len(places), generator=generator_for(1, seq))[:512]]
        plain += torch.tensor(counts_of(batch, uniform.tolist()))
    fair, plain = fair / 20, plain / 20
    assert counts_of(batch, places.tolist())[-1] == 53
    assert fair[-1] == 53, "all that it has; 64 would be its share"
    assert plain[-1] < 53 / 5
    assert fair[:-1].min() > 65
    assert fair[:-1].max() < 66
    assert plain[0] > 15 * plain[-1]


def test_anchors_are_drawn_anew_for_each_seed_and_seq() -> None:
    drawn = {tuple(draw(BATCH, 10, seed=seed, seq=seq)[0]) for seed in range(10) for seq in range(10)}
    assert len(drawn) == 100
    assert draw(BATCH, 10, seed=3, seq=4) == draw(BATCH, 10, seed=3, seq=4)


def test_no_random_state_but_seed_and_seq_counts() -> None:
    torch.manual_seed(1)
    once = draw(BATCH, 10)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert draw(BATCH, 10) == once
    assert torch.equal(torch.get_rng_state(), state)


def test_all_threads_draw_the_same() -> None:
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda seq: draw(BATCH, 10, seq=seq % 5), range(40)))
    assert drawn == [draw(BATCH, 10, seq=seq % 5) for seq in range(40)]


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**62, 2**64 + 5])
def test_any_seed_will_do(seed: int) -> None:
    assert generator_for(seed, 10**9).initial_seed() >= 0


def test_the_count_is_constant_and_the_rest_unused() -> None:
    batch = lay_out((10,), [True, True, True, False, True, False, False, True, True, False])
    anchors, used = draw(batch, 6)
    assert used == [True] * 3 + [False] * 3
    assert anchors[:3] == [0, 1, 7], "a lone supervised token is no anchor: there is nothing to guess"
    assert len(anchors) == 6


@pytest.mark.parametrize("batch", [lay_out((5,), [False] * 5), lay_out((1, 1)), lay_out((1,)), lay_out((4,), [True, False] * 2)])
def test_nothing_to_draw(batch: TokenBatch) -> None:
    assert draw(batch, 3)[1] == [False] * 3


def test_no_anchor_where_the_next_token_is_another_documents() -> None:
    assert draw(lay_out((2, 1, 3)), 10)[0][:3] == [0, 3, 4]


def test_slot_k_is_asked_for_the_token_k_after_the_anchor() -> None:
    blocks = blocks_at(BATCH, 3, 35, size=8)
    for row, anchor in enumerate((3, 35)):
        assert blocks.index_AB[row].tolist() == list(range(anchor, anchor + 8))
        assert blocks.label_AB[row].tolist() == BATCH.token_T[anchor : anchor + 8].tolist()
        first = int(BATCH.position_T[anchor])
        assert blocks.position_AB[row].tolist() == list(range(first, first + 8))


def test_the_anchor_itself_is_never_asked_for() -> None:
    blocks = build_blocks(BATCH, *draw_anchors(BATCH, 60, generator_for(1, 1)), BLOCK)
    assert not blocks.valid_AB[:, 0].any()
    assert blocks.valid_AB[blocks.used_A, 1].all(), "the next token of each anchor is"


@pytest.mark.parametrize(
    ("supervised", "anchor", "asked"),
    [
        ([1, 1, 1, 1, 1, 1, 1, 1], 0, [0, 1, 1, 1]),
        ([0, 1, 1, 0, 0, 0, 1, 1], 1, [0, 1, 0, 0]),
        ([1, 1, 0, 1, 1, 1, 1, 1], 0, [0, 1, 0, 0]),  # what follows a gap is another turn
        ([1, 1, 1, 1, 1, 1, 1, 1], 3, [0, 1, 0, 0]),  # the next document begins at 5
        ([1, 1, 1, 1, 1, 1, 1, 1], 6, [0, 1, 0, 0]),  # the batch ends at 8
        ([1, 1, 1, 1, 1, 1, 1, 1], 5, [0, 1, 1, 0]),
    ],
)
def test_a_block_ends_for_good_where_turn_or_document_does(supervised: list[int], anchor: int, asked: list[int]) -> None:
    batch = lay_out((5, 3), torch.tensor(supervised, dtype=torch.bool))
    assert blocks_at(batch, anchor).valid_AB.int().tolist() == [asked]


def test_unused_blocks_are_asked_for_nothing() -> None:
    batch = lay_out((20,))
    assert blocks_at(batch, 3, 0).valid_AB[1].any()
    assert not blocks_at(batch, 3, unused=2).valid_AB[1:].any()


def test_what_is_visible_follows_the_rule_cell_by_cell() -> None:
    batch = lay_out((6, 1, 7))
    blocks = build_blocks(batch, torch.tensor([0, 4, 8, 12, 13]), torch.tensor([True] * 4 + [False]), BLOCK)
    mask = attention_mask(batch, blocks)
    anchors, document = blocks.anchor_A.tolist(), batch.document_T.tolist()
    assert mask.shape == (5 * BLOCK, 14 + 5 * BLOCK)
    assert mask.dtype == torch.bool
    for query in range(5 * BLOCK):
        block = query // BLOCK
        for place in range(14):
            wanted = block < 4 and place < anchors[block] and document[place] == document[anchors[block]]
            assert mask[query, place] == wanted, (query, place)
        for other in range(5 * BLOCK):
            assert mask[query, 14 + other] == (other // BLOCK == block), (query, other)


def hidden_of(batch: TokenBatch, features_TF: torch.Tensor, blocks: Blocks) -> torch.Tensor:
    token_AB = torch.full_like(blocks.label_AB, MASK)
    token_AB[:, 0] = batch.token_T[blocks.anchor_A]
    draft_QD = F.embedding(token_AB.flatten(), random_weights().embedding_VD)
    with torch.no_grad():
        hidden_QD = lively_drafter()(
            features_TF, batch.position_T, draft_QD, blocks.position_AB.flatten(), attention_mask(batch, blocks)
        )
    return hidden_QD.view(*token_AB.shape, -1)


ANCHORS = (4, 9, 15, 28, 33)


@pytest.mark.parametrize("changed", range(38))
def test_only_what_comes_before_the_anchor_in_its_document_reaches_a_block(changed: int) -> None:
    """A feature at or after the anchor does not exist yet when the block is drafted: seeing it would be a leak."""
    batch = lay_out((20, 18))
    blocks, features_TF = blocks_at(batch, *ANCHORS), random_features(batch)
    before = hidden_of(batch, features_TF, blocks)
    features_TF[changed] += 1
    batch.token_T[changed] = (batch.token_T[changed] + 1) % MASK
    after = hidden_of(batch, features_TF, blocks)
    for row, anchor in enumerate(ANCHORS):
        reaches = changed <= anchor and batch.document_T[changed] == batch.document_T[anchor]
        moved = (after[row] - before[row]).abs().amax(dim=1)
        assert (moved > 1e-4).all() if reaches else (moved == 0).all(), f"the block at {anchor}"


def test_the_feature_at_the_anchor_is_not_seen() -> None:
    batch = lay_out((20, 18))
    blocks, features_TF = blocks_at(batch, *ANCHORS), random_features(batch)
    before = hidden_of(batch, features_TF, blocks)
    for row, anchor in enumerate(ANCHORS):
        changed = features_TF.clone()
        changed[anchor] = 100.0
        assert torch.equal(hidden_of(batch, changed, blocks)[row], before[row])


def test_a_block_sees_nothing_of_another() -> None:
    batch = lay_out((20, 18))
    features_TF, alone = random_features(batch), []
    for anchor in ANCHORS:
        alone.append(hidden_of(batch, features_TF, blocks_at(batch, anchor))[0])
    together = hidden_of(batch, features_TF, blocks_at(batch, *ANCHORS, unused=3))[: len(ANCHORS)]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-4, atol=1e-5)


def test_within_a_block_every_slot_sees_every_other() -> None:
    batch = lay_out((20,))
    blocks, features_TF = blocks_at(batch, 9), random_features(batch)
    drafter, mask = lively_drafter(), attention_mask(batch, blocks)
    embedding_BD = torch.randn(BLOCK, 64, generator=torch.Generator().manual_seed(1))

    def hidden(embedding_BD: torch.Tensor) -> torch.Tensor:
        return drafter(features_TF, batch.position_T, embedding_BD, blocks.position_AB[0], mask).detach()

    before = hidden(embedding_BD)
    for slot in range(BLOCK):
        changed = embedding_BD.clone()
        changed[slot] += 1
        assert ((hidden(changed) - before).abs().amax(dim=1) > 1e-4).all()
