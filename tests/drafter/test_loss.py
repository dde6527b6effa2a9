"""The loss and what it counts against loops that anyone can check, and the acceptance length against drafted text."""

import dataclasses
import math
import random

import pytest
import torch
from torch.nn import functional as F

from tests.support import reference_losses
from tests.support.reference_losses import Guesses
from tests.support.small import MASK, VOCAB, lay_out, lively_drafter, random_features, random_weights, some_of
from trainer.config import LossConfig, Objective
from trainer.data.batches import TokenBatch
from trainer.drafter.anchors import Blocks, build_blocks, draw_anchors, generator_for
from trainer.drafter.loss import LossSums, default_gamma, dpace_weights, drafter_loss, estimated_acceptance_length
from trainer.drafter.model import Drafter
from trainer.target.features import FeatureBatch, TargetWeights

BLOCK = 8
# Two words, of which the head always says one or the other, so that guesses are right now and then.
BATCH = dataclasses.replace(lay_out((30, 1, 25, 14), some_of(70, 0.93)), token_T=lay_out((70,)).token_T % 2)
WEIGHTS = random_weights()
WEIGHTS.head_VD[1], WEIGHTS.head_VD[2:] = -WEIGHTS.head_VD[0], 0
ANY_WORDS = random_weights()
LAST = 2 * torch.randn(BATCH.tokens, 64, generator=torch.Generator().manual_seed(9))
BLOCKS = build_blocks(BATCH, *draw_anchors(BATCH, 40, generator_for(1, 2)), BLOCK)
BLOCKS_WITH_UNUSED = build_blocks(BATCH, BLOCKS.anchor_A, torch.arange(40) < 30, BLOCK)
OBJECTIVES = {
    "cross-entropy": LossConfig(gamma=4.0),
    "another decay": LossConfig(gamma=0.7),
    "D-PACE": LossConfig(objective="dpace"),
    "another smoothing": LossConfig(objective="dpace", dpace_alpha=0.2),
    "distillation": LossConfig(objective="distillation", gamma=4.0),
    "distillation, another decay": LossConfig(objective="distillation", gamma=0.7),
}


def sums_of(
    drafter: Drafter, blocks: Blocks, config: LossConfig = OBJECTIVES["cross-entropy"], weights: TargetWeights = WEIGHTS
) -> LossSums:
    return drafter_loss(drafter, weights, FeatureBatch(BATCH, random_features(BATCH), last_TD=LAST), blocks, config)


def reference(drafter: Drafter, blocks: Blocks, config: LossConfig, weights: TargetWeights) -> tuple[torch.Tensor, float, Guesses]:
    """The weighted sum, the weight and the guesses, one at a time."""
    guesses = Guesses(drafter, weights, BATCH, random_features(BATCH), blocks, BLOCK)
    if config.objective == "dpace":
        return *reference_losses.dpace(guesses, config.dpace_alpha), guesses
    gamma = config.gamma or 4.0
    if config.objective == "distillation":
        return *reference_losses.distillation(guesses, gamma, LAST @ weights.head_VD.T), guesses
    return *reference_losses.cross_entropy(guesses, gamma), guesses


def assert_gradients_equal(drafter: Drafter, plain: Drafter) -> None:
    largest = max(weight.grad.abs().max() for weight in plain.parameters())
    for (name, one), other in zip(drafter.named_parameters(), plain.named_parameters(), strict=True):
        assert other[1].grad.abs().max() > 0, name
        torch.testing.assert_close(
            one.grad, other[1].grad, rtol=1e-4, atol=1e-5 * float(largest), msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("weights", [WEIGHTS, ANY_WORDS], ids=["two words", "any words"])
@pytest.mark.parametrize("config", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.parametrize("blocks", [BLOCKS, BLOCKS_WITH_UNUSED], ids=["all used", "some unused"])
def test_loss_and_gradients_equal_the_plain_reference(blocks: Blocks, config: LossConfig, weights: TargetWeights) -> None:
    drafter, plain = lively_drafter(), lively_drafter()
    sums = sums_of(drafter, blocks, config, weights)
    weighted, weight, guesses = reference(plain, blocks, config, weights)
    assert sums.loss_sum.item() == pytest.approx(weighted.item(), rel=1e-5)
    assert sums.weight.item() == pytest.approx(weight, rel=1e-6)
    counts = guesses.counts()
    assert {name: getattr(sums, name).tolist() for name in counts} == counts
    assert 0 < counts["asked"][-1] < counts["asked"][0], "some blocks are cut off, some are not"
    if weights is WEIGHTS:
        assert 0 < counts["kept"][1] < counts["hit"][1] < counts["asked"][1]
    sums.loss_sum.backward()
    weighted.backward()
    assert_gradients_equal(drafter, plain)


def alone(document: int) -> tuple[FeatureBatch, Blocks]:
    """One document of the batch by itself, with its own blocks."""
    rows = BATCH.document_T == document
    start = int(rows.nonzero()[0])
    tensors = (BATCH.token_T[rows], BATCH.supervised_T[rows], BATCH.position_T[rows], BATCH.document_T[rows] * 0)
    batch = TokenBatch(document, *tensors, samples=1, after=BATCH.after)
    mine_A = BLOCKS.anchor_A[BATCH.document_T[BLOCKS.anchor_A] == document] - start
    features = FeatureBatch(batch, random_features(BATCH)[rows], last_TD=LAST[rows])
    return features, build_blocks(batch, mine_A, torch.ones(len(mine_A), dtype=torch.bool), BLOCK)


@pytest.mark.parametrize("config", OBJECTIVES.values(), ids=OBJECTIVES)
def test_packed_documents_lose_what_they_lose_alone(config: LossConfig) -> None:
    packed, unpacked = lively_drafter(), lively_drafter()
    together = sums_of(packed, BLOCKS, config)
    apart = [drafter_loss(unpacked, WEIGHTS, *alone(document), config) for document in (0, 2, 3)]
    torch.testing.assert_close(sum(sums.packed() for sums in apart), together.packed(), rtol=1e-5, atol=1e-5)
    together.loss_sum.backward()
    for sums in apart:
        sums.loss_sum.backward()
    assert_gradients_equal(packed, unpacked)


@pytest.mark.parametrize("config", OBJECTIVES.values(), ids=OBJECTIVES)
def test_unused_blocks_change_nothing(config: LossConfig) -> None:
    used = BLOCKS_WITH_UNUSED.used_A
    fewer = build_blocks(BATCH, BLOCKS.anchor_A[used], torch.ones(30, dtype=torch.bool), BLOCK)
    torch.testing.assert_close(
        sums_of(lively_drafter(), BLOCKS_WITH_UNUSED, config).packed(), sums_of(lively_drafter(), fewer, config).packed()
    )


class Words:
    """A drafter whose hidden states are given."""

    mask_token_id = MASK

    def __init__(self, hidden_QD: torch.Tensor) -> None:
        self.hidden_QD = hidden_QD

    def __call__(self, *_: torch.Tensor) -> torch.Tensor:
        return self.hidden_QD


def exact_setting() -> tuple[torch.Tensor, TargetWeights, FeatureBatch, Blocks]:
    """Hidden states in float64 for three blocks of 4, the last of which the document cuts short, and what goes with them."""
    batch = lay_out((20,))
    blocks = build_blocks(batch, torch.tensor([2, 9, 17]), torch.ones(3, dtype=torch.bool), 4)
    dice = torch.Generator().manual_seed(1)
    hidden_QD = torch.randn(12, 6, dtype=torch.double, generator=dice).requires_grad_()
    head_VD, last_TD = (torch.randn(rows, 6, dtype=torch.double, generator=dice) for rows in (VOCAB, 20))
    return hidden_QD, TargetWeights(head_VD, head_VD), FeatureBatch(batch, torch.empty(20, 1), last_TD=last_TD), blocks


@pytest.mark.parametrize("objective", ["cross_entropy", "distillation"])
def test_gradients_are_right_to_the_last_digits(objective: str) -> None:
    hidden_QD, *setting = exact_setting()
    config = LossConfig(objective=objective, gamma=1.5)
    assert torch.autograd.gradcheck(lambda hidden: drafter_loss(Words(hidden), *setting, config).loss_sum, hidden_QD)


def test_unsmoothed_dpace_climbs_the_expected_length_of_what_is_kept() -> None:
    """What its weights are for: with q itself as the chance to be right, the gradient is that of minus sum_m prod_{i <= m} q_i."""
    hidden_QD, weights, features, blocks = exact_setting()
    drafter_loss(Words(hidden_QD), weights, features, blocks, LossConfig(objective="dpace", dpace_alpha=1e-12)).loss_sum.backward()
    plain_QD = hidden_QD.detach().clone().requires_grad_()
    chance_ABV = (plain_QD @ weights.head_VD.T).softmax(1).view(3, 4, VOCAB)
    length = torch.zeros((), dtype=torch.double)
    for row, (anchor, asked) in enumerate([(2, 3), (9, 3), (17, 2)]):
        right = torch.stack([chance_ABV[row, k, features.batch.token_T[anchor + k]] for k in range(1, asked + 1)])
        length = length + right.cumprod(0).sum()
    (-length).backward()
    assert hidden_QD.grad is not None
    assert hidden_QD.grad.abs().max() > 0
    torch.testing.assert_close(hidden_QD.grad, plain_QD.grad, rtol=1e-6, atol=1e-14)


def test_dpace_weights_by_hand() -> None:
    chance = torch.tensor([[0.5, 0.8, 0.2], [0.5, 0.8, 0.2], [1.0, 1.0, 1.0]])
    valid = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])
    # Half of the way to 1: 0.75, 0.9, 0.6, so blocks are kept up to m with 0.75, 0.675, 0.405.
    wanted = torch.tensor([[0.75 + 0.675 + 0.405, 0.675 + 0.405, 0.405], [0.75 + 0.675, 0.675, 0], [0, 0, 0]])
    torch.testing.assert_close(dpace_weights(-chance.log(), valid, 0.5), wanted)


def test_dpace_looks_further_ahead_as_the_drafter_improves() -> None:
    valid = torch.ones(1, 15, dtype=torch.bool)
    hopeless, perfect = (dpace_weights(torch.full((1, 15), loss), valid, 0.5)[0] for loss in (20.0, 0.0))
    assert perfect.tolist() == [15 - k for k in range(15)]
    assert hopeless[0] == pytest.approx(1, abs=1e-3)
    assert hopeless[14] / hopeless[0] < 1e-4 < perfect[14] / perfect[0]


def test_distillation_needs_the_targets_last_hidden_states() -> None:
    features = FeatureBatch(BATCH, random_features(BATCH))
    with pytest.raises(ValueError, match="last hidden states"):
        drafter_loss(lively_drafter(), WEIGHTS, features, BLOCKS, LossConfig(objective="distillation"))


def test_numbers_are_all_parts_in_one_vector() -> None:
    sums = sums_of(lively_drafter(), BLOCKS)
    numbers = sums.packed()
    assert numbers.dtype == torch.float64
    assert not numbers.requires_grad
    assert numbers[:2].tolist() == [sums.loss_sum.item(), sums.weight.item()]
    counts = [value for part in (sums.hit, sums.asked, sums.kept, sums.at_risk) for value in part.tolist()]
    assert numbers[2:].tolist() == counts
    assert len(counts) == 4 * (BLOCK - 1)


@pytest.mark.parametrize(("block_size", "gamma"), [(16, 7), (10, 5), (8, 4)])
def test_the_decay_that_goes_with_a_block_size(block_size: int, gamma: float) -> None:
    assert default_gamma(block_size) == pytest.approx(gamma)


def test_the_decay_grows_with_the_block_and_leaves_its_end_something() -> None:
    sizes = range(2, 129)
    gammas = [default_gamma(size) for size in sizes]
    assert gammas == sorted(set(gammas))
    lasts = [math.exp(-(size - 2) / gamma) for size, gamma in zip(sizes, gammas, strict=True)]
    assert lasts == sorted(lasts, reverse=True)
    assert lasts[0] == 1
    assert lasts[-1] > 0.05


@pytest.mark.parametrize("block_size", [8, 10, 16])
def test_unless_told_otherwise_the_decay_goes_with_the_block(block_size: int) -> None:
    blocks = build_blocks(lay_out((40,)), torch.tensor([0, 9]), torch.ones(2, dtype=torch.bool), block_size)
    silent = Words(torch.zeros(2 * block_size, 64))
    features = FeatureBatch(lay_out((40,)), torch.empty(40, 1))
    own, told = (
        drafter_loss(silent, WEIGHTS, features, blocks, LossConfig(gamma=gamma)) for gamma in (None, default_gamma(block_size))
    )
    assert own.weight == told.weight
    assert own.weight == pytest.approx(2 * sum(math.exp(-k / default_gamma(block_size)) for k in range(block_size - 1)))


@pytest.mark.parametrize("config", OBJECTIVES.values(), ids=OBJECTIVES)
def test_half_precision_gives_a_finite_float32_loss_near_the_full_one(config: LossConfig) -> None:
    half = TargetWeights(ANY_WORDS.embedding_VD.bfloat16(), ANY_WORDS.head_VD.bfloat16())
    features = FeatureBatch(BATCH, random_features(BATCH).bfloat16(), last_TD=LAST.bfloat16())
    drafter = lively_drafter()
    with torch.autocast("cpu", torch.bfloat16):
        sums = drafter_loss(drafter, half, features, BLOCKS, config)
    assert sums.loss_sum.dtype == torch.float32
    assert sums.loss_sum.item() == pytest.approx(sums_of(drafter, BLOCKS, config, ANY_WORDS).loss_sum.item(), rel=0.02)
    sums.loss_sum.backward()
    assert all(weight.grad.dtype == torch.float32 and weight.grad.isfinite().all() for weight in drafter.parameters())


def counted(batch: TokenBatch, said: list[list[bool]], *anchors: int, objective: Objective = "cross_entropy") -> LossSums:
    """The sums for blocks in which slot k = 1 … is right where `said` has True; the target itself has no opinion."""
    blocks = build_blocks(batch, torch.tensor(anchors), torch.ones(len(anchors), dtype=torch.bool), len(said[0]) + 1)
    right_AB = F.pad(torch.tensor(said), (1, 0))
    words = torch.where(right_AB, blocks.label_AB, (blocks.label_AB + 1) % MASK)
    unit = torch.eye(VOCAB)
    speaker = Words(50.0 * F.one_hot(words.flatten(), VOCAB).float())
    features = FeatureBatch(batch, torch.empty(batch.tokens, 1), last_TD=torch.zeros(batch.tokens, VOCAB))
    return drafter_loss(speaker, TargetWeights(unit, unit), features, blocks, LossConfig(objective=objective))


def length_of(sums: LossSums) -> float:
    return estimated_acceptance_length(sums.kept.tolist(), sums.at_risk.tolist())


def test_a_perfect_drafter_keeps_the_whole_block_and_a_hopeless_one_the_bonus_token() -> None:
    batch = lay_out((40,))
    perfect = counted(batch, [[True] * 7] * 3, 0, 9, 25)
    assert length_of(perfect) == 8.0
    assert perfect.loss_sum.item() == pytest.approx(0, abs=1e-6)
    assert length_of(counted(batch, [[False] * 7] * 3, 0, 9, 25)) == 1.0


def test_a_right_guess_after_a_wrong_one_is_a_hit_but_not_kept() -> None:
    sums = counted(lay_out((40,)), [[True, False, True], [True, True, False]], 0, 9)
    assert sums.hit.tolist() == [2, 1, 1]
    assert sums.asked.tolist() == [2, 2, 2]
    assert sums.kept.tolist() == [2, 1, 0]
    assert sums.at_risk.tolist() == [2, 2, 1]
    assert length_of(sums) == 1 + 1 + 1 / 2 + 0


@pytest.mark.parametrize("objective", ["dpace", "distillation"])
def test_a_guess_is_right_where_it_is_the_datas_token_whatever_is_minimised(objective: Objective) -> None:
    said = [[True, False, True], [True, True, False]]
    sums = counted(lay_out((40,)), said, 0, 9, objective=objective)
    assert sums.packed()[2:].equal(counted(lay_out((40,)), said, 0, 9).packed()[2:])
    assert sums.loss_sum > 0


def test_a_block_cut_off_counts_as_far_as_it_goes() -> None:
    # The block at 18 ends with the document after one guess, right: it says nothing of the second.
    sums = counted(lay_out((20,)), [[True, True, True], [True, False, False], [True, True, True]], 0, 9, 18)
    assert sums.asked.tolist() == [3, 2, 2]
    assert sums.kept.tolist() == [3, 1, 1]
    assert sums.at_risk.tolist() == [3, 2, 1]
    assert length_of(sums) == 1 + 1 + 1 / 2 + 1 / 2


@pytest.mark.parametrize(
    ("kept", "at_risk", "length"),
    [
        ([], [], 1.0),
        ([0.0], [0.0], 1.0),
        ([3.0, 1.0], [4.0, 2.0], 1 + 3 / 4 + 3 / 4 * 1 / 2),
        ([4.0, 0.0, 0.0], [4.0, 0.0, 0.0], 2.0),  # what nobody was asked for is not claimed
    ],
)
def test_acceptance_length_by_hand(kept: list[float], at_risk: list[float], length: float) -> None:
    assert estimated_acceptance_length(kept, at_risk) == pytest.approx(length)


def test_acceptance_length_is_what_drafting_would_give_though_turns_cut_blocks_off() -> None:
    dice = random.Random(3)
    chances = [0.9, 0.8, 0.85, 0.6, 0.5, 0.7, 0.4]  # of position k, once all before it were right
    kept, at_risk, drafted = [0.0] * 7, [0.0] * 7, []
    for _ in range(40_000):
        first_wrong = next((k for k, chance in enumerate(chances) if dice.random() > chance), 7)
        drafted.append(1 + first_wrong)
        end = dice.choice([7, 7, 1, 2, 3, 5])
        for k in range(min(end, first_wrong + 1)):
            at_risk[k] += 1
            kept[k] += k < first_wrong
    assert estimated_acceptance_length(kept, at_risk) == pytest.approx(sum(drafted) / len(drafted), rel=0.01)
    assert kept[0] / at_risk[0] == pytest.approx(0.9, abs=0.01)
