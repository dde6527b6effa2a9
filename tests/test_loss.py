"""The loss and what it counts against loops that anyone can check, and the acceptance length against drafted text."""

import dataclasses
import math
import random

import pytest
import torch
from torch.nn import functional as F

from tests.small import MASK, VOCAB, lay_out, lively_drafter, random_features, random_weights, some_of
from trainer import loss
from trainer.anchors import Blocks, draw_anchors, generator_for, lay_blocks, visible
from trainer.batches import TokenBatch
from trainer.drafter import Drafter
from trainer.loss import LossParts, decay_for, drafter_loss, estimated_acceptance_length, frozen_head_cross_entropy
from trainer.target import FeatureBatch, TargetWeights

BLOCK = 8
# Two words, of which the head always says one or the other, so that guesses are right now and then.
BATCH = dataclasses.replace(lay_out((30, 1, 25, 14), some_of(70, 0.93)), token_T=lay_out((70,)).token_T % 2)
WEIGHTS = random_weights()
WEIGHTS.head_VD[1], WEIGHTS.head_VD[2:] = -WEIGHTS.head_VD[0], 0
BLOCKS = lay_blocks(BATCH, *draw_anchors(BATCH, 40, generator_for(1, 2)), BLOCK)
BLOCKS_WITH_UNUSED = lay_blocks(BATCH, BLOCKS.anchor_A, torch.arange(40) < 30, BLOCK)


def parts_of(drafter: Drafter, blocks: Blocks, gamma: float = 4.0) -> LossParts:
    return drafter_loss(drafter, WEIGHTS, FeatureBatch(BATCH, random_features(BATCH)), blocks, gamma)


def reference(drafter: Drafter, blocks: Blocks, gamma: float) -> tuple[torch.Tensor, float, dict[str, list[int]]]:
    """The weighted sum, the weight and the counts, one guess at a time."""
    token_AB = torch.full((len(blocks.anchor_A), BLOCK), MASK)
    token_AB[:, 0] = BATCH.token_T[blocks.anchor_A]
    hidden_QD = drafter(
        random_features(BATCH),
        BATCH.position_T,
        F.embedding(token_AB.flatten(), WEIGHTS.embedding_VD),
        blocks.position_AB.flatten(),
        visible(BATCH, blocks),
    )
    logit_ABV = (hidden_QD @ WEIGHTS.head_VD.T).view(len(blocks.anchor_A), BLOCK, VOCAB)
    weighted, weight = torch.zeros(()), 0.0
    counts = {name: [0] * (BLOCK - 1) for name in ("hit", "asked", "kept", "at_risk")}
    for row, anchor in enumerate(blocks.anchor_A.tolist()):
        all_right = True
        for k in range(1, BLOCK):
            if not asked(blocks, row, anchor, k):
                break
            token = BATCH.token_T[anchor + k]
            w = math.exp(-(k - 1) / gamma)
            weighted = weighted - w * logit_ABV[row, k].log_softmax(0)[token]
            weight += w
            right = bool(logit_ABV[row, k].argmax() == token)
            counts["asked"][k - 1] += 1
            counts["hit"][k - 1] += right
            counts["at_risk"][k - 1] += all_right
            all_right = all_right and right
            counts["kept"][k - 1] += all_right
    return weighted, weight, counts


def asked(blocks: Blocks, row: int, anchor: int, k: int) -> bool:
    """Whether token anchor + k belongs to the anchor's turn; once it does not, neither do the rest."""
    place = anchor + k
    inside = place < BATCH.tokens and BATCH.document_T[place] == BATCH.document_T[anchor]
    return bool(blocks.used_A[row]) and inside and bool(BATCH.supervised_T[place])


@pytest.mark.parametrize("gamma", [4.0, 0.7])
@pytest.mark.parametrize("blocks", [BLOCKS, BLOCKS_WITH_UNUSED], ids=["all used", "some unused"])
def test_loss_and_gradients_equal_the_plain_reference(blocks: Blocks, gamma: float) -> None:
    drafter, plain = lively_drafter(), lively_drafter()
    parts = parts_of(drafter, blocks, gamma)
    weighted, weight, counts = reference(plain, blocks, gamma)
    assert parts.weighted.item() == pytest.approx(weighted.item(), rel=1e-5)
    assert parts.weight.item() == pytest.approx(weight, rel=1e-6)
    assert {name: getattr(parts, name).tolist() for name in counts} == counts
    assert 0 < counts["asked"][-1] < counts["asked"][0], "some blocks are cut off, some are not"
    assert 0 < counts["kept"][1] < counts["hit"][1] < counts["asked"][1]
    parts.weighted.backward()
    weighted.backward()
    for (name, one), other in zip(drafter.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


def test_unused_blocks_change_nothing() -> None:
    used = BLOCKS_WITH_UNUSED.used_A
    fewer = lay_blocks(BATCH, BLOCKS.anchor_A[used], torch.ones(30, dtype=torch.bool), BLOCK)
    torch.testing.assert_close(
        parts_of(lively_drafter(), BLOCKS_WITH_UNUSED).numbers(), parts_of(lively_drafter(), fewer).numbers()
    )


def test_numbers_are_all_parts_in_one_vector() -> None:
    parts = parts_of(lively_drafter(), BLOCKS)
    numbers = parts.numbers()
    assert numbers.dtype == torch.float64
    assert not numbers.requires_grad
    assert numbers[:2].tolist() == [parts.weighted.item(), parts.weight.item()]
    counts = [value for part in (parts.hit, parts.asked, parts.kept, parts.at_risk) for value in part.tolist()]
    assert numbers[2:].tolist() == counts
    assert len(counts) == 4 * (BLOCK - 1)


@pytest.mark.parametrize(("block_size", "gamma"), [(16, 7), (10, 5), (8, 4)])
def test_the_decay_that_goes_with_a_block_size(block_size: int, gamma: float) -> None:
    assert decay_for(block_size) == pytest.approx(gamma)


def test_the_decay_grows_with_the_block() -> None:
    gammas = [decay_for(size) for size in range(2, 40)]
    assert gammas == sorted(set(gammas))
    assert gammas[0] > 0


def test_gradient_of_the_frozen_head_is_right_to_the_last_digits() -> None:
    dice = torch.Generator().manual_seed(1)
    head_VD = torch.randn(20, 6, dtype=torch.double, generator=dice)
    hidden_RD = torch.randn(5, 6, dtype=torch.double, generator=dice, requires_grad=True)
    label_R = torch.tensor([3, 0, 19, 3, 7])
    assert torch.autograd.gradcheck(lambda hidden: frozen_head_cross_entropy(hidden, head_VD, label_R)[0], hidden_RD)


def test_frozen_head_equals_torch_and_takes_no_gradient() -> None:
    head_VD, label_R = random_weights().head_VD, torch.arange(50)
    hidden_RD = torch.randn(50, 64, requires_grad=True)
    entropy_R, best_R = frozen_head_cross_entropy(hidden_RD, head_VD, label_R)
    logit_RV = hidden_RD @ head_VD.T
    torch.testing.assert_close(entropy_R, F.cross_entropy(logit_RV, label_R, reduction="none"))
    assert torch.equal(best_R, logit_RV.argmax(1))
    assert entropy_R.dtype == torch.float32
    assert not best_R.requires_grad
    entropy_R.sum().backward()
    assert head_VD.grad is None


def test_the_sum_over_a_vocabulary_is_made_in_float32_at_least() -> None:
    hidden_RD = torch.randn(4, 64).bfloat16().requires_grad_()
    entropy_R, _ = frozen_head_cross_entropy(hidden_RD, random_weights().head_VD.bfloat16(), torch.arange(4))
    assert entropy_R.dtype == torch.float32
    entropy_R.sum().backward()
    assert hidden_RD.grad is not None
    assert hidden_RD.grad.dtype == torch.bfloat16


def test_rows_are_worked_on_in_chunks_and_it_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden_RD = torch.randn(50, 64, requires_grad=True)
    head_VD, label_R = random_weights().head_VD, torch.arange(50)

    def outcome() -> tuple[torch.Tensor, ...]:
        hidden_RD.grad = None
        entropy_R, best_R = frozen_head_cross_entropy(hidden_RD, head_VD, label_R)
        (entropy_R * torch.linspace(0, 1, 50)).sum().backward()
        return entropy_R.detach(), best_R, hidden_RD.grad

    whole = outcome()
    for rows in (1, 7, 49, 50):
        monkeypatch.setattr(loss, "_CHUNK_ROWS", rows)
        for one, other in zip(outcome(), whole, strict=True):
            torch.testing.assert_close(one, other)


def test_logits_never_exist_for_more_rows_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and VOCAB in out.shape:
                seen.append(out.numel() // VOCAB)
            return out

    monkeypatch.setattr(loss, "_CHUNK_ROWS", 70)
    with Watch():
        parts_of(lively_drafter(), BLOCKS).weighted.backward()
    assert BLOCKS.label_AB[:, 1:].numel() == 4 * 70
    assert max(seen) == 70, "the head itself has 64"


def test_half_precision_weights_give_a_float32_loss_near_the_full_one() -> None:
    half = TargetWeights(WEIGHTS.embedding_VD.bfloat16(), WEIGHTS.head_VD.bfloat16())
    features = FeatureBatch(BATCH, random_features(BATCH).bfloat16())
    drafter = lively_drafter()
    with torch.autocast("cpu", torch.bfloat16):
        parts = drafter_loss(drafter, half, features, BLOCKS, 4.0)
    assert parts.weighted.dtype == torch.float32
    assert parts.weighted.item() == pytest.approx(parts_of(drafter, BLOCKS).weighted.item(), rel=0.02)
    parts.weighted.backward()
    assert all(weight.grad.dtype == torch.float32 and weight.grad.isfinite().all() for weight in drafter.parameters())


class Speaker:
    """A drafter that says at each slot what it is told to: rows of the unit head are its words."""

    mask_token_id = MASK

    def __init__(self, said_AB: torch.Tensor) -> None:
        self.said_AB = said_AB

    def __call__(self, *_: torch.Tensor) -> torch.Tensor:
        return 50.0 * F.one_hot(self.said_AB.flatten(), VOCAB).float()


def counted(batch: TokenBatch, said: list[list[bool]], *anchors: int) -> LossParts:
    """The parts for blocks in which slot k = 1 … is right where `said` has True."""
    blocks = lay_blocks(batch, torch.tensor(anchors), torch.ones(len(anchors), dtype=torch.bool), len(said[0]) + 1)
    right_AB = F.pad(torch.tensor(said), (1, 0))
    words = torch.where(right_AB, blocks.label_AB, (blocks.label_AB + 1) % MASK)
    unit = torch.eye(VOCAB)
    return drafter_loss(Speaker(words), TargetWeights(unit, unit), FeatureBatch(batch, torch.empty(batch.tokens, 1)), blocks, 4.0)


def length_of(parts: LossParts) -> float:
    return estimated_acceptance_length(parts.kept.tolist(), parts.at_risk.tolist())


def test_a_perfect_drafter_keeps_the_whole_block_and_a_hopeless_one_the_bonus_token() -> None:
    batch = lay_out((40,))
    perfect = counted(batch, [[True] * 7] * 3, 0, 9, 25)
    assert length_of(perfect) == 8.0
    assert perfect.weighted.item() == pytest.approx(0, abs=1e-6)
    assert length_of(counted(batch, [[False] * 7] * 3, 0, 9, 25)) == 1.0


def test_a_right_guess_after_a_wrong_one_is_a_hit_but_not_kept() -> None:
    parts = counted(lay_out((40,)), [[True, False, True], [True, True, False]], 0, 9)
    assert parts.hit.tolist() == [2, 1, 1]
    assert parts.asked.tolist() == [2, 2, 2]
    assert parts.kept.tolist() == [2, 1, 0]
    assert parts.at_risk.tolist() == [2, 2, 1]
    assert length_of(parts) == 1 + 1 + 1 / 2 + 0


def test_a_block_cut_off_counts_as_far_as_it_goes() -> None:
    # The block at 18 ends with the document after one guess, right: it says nothing of the second.
    parts = counted(lay_out((20,)), [[True, True, True], [True, False, False], [True, True, True]], 0, 9, 18)
    assert parts.asked.tolist() == [3, 2, 2]
    assert parts.kept.tolist() == [3, 1, 1]
    assert parts.at_risk.tolist() == [3, 2, 1]
    assert length_of(parts) == 1 + 1 + 1 / 2 + 1 / 2


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
