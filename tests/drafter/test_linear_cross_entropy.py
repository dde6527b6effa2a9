"""Losses through the frozen head against torch's own, to the last digits, and never more logits than a chunk's."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from tests.support.small import VOCAB, random_weights
from trainer.drafter import linear_cross_entropy as module
from trainer.drafter.linear_cross_entropy import linear_cross_entropy, linear_soft_cross_entropy

ROWS, PLACES = 50, 37
LABEL = torch.arange(ROWS)
PLACE = torch.randint(PLACES, (ROWS,), generator=torch.Generator().manual_seed(2))
Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def hard(hidden_RD: torch.Tensor, head_VD: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return linear_cross_entropy(hidden_RD, head_VD, LABEL[: len(hidden_RD)])


def soft(hidden_RD: torch.Tensor, head_VD: torch.Tensor, last_TD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return linear_soft_cross_entropy(hidden_RD, head_VD, last_TD, PLACE[: len(hidden_RD)] % len(last_TD))


def torchs_hard(logit_RV: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logit_RV, LABEL, reduction="none")


def torchs_soft(logit_RV: torch.Tensor, target_logit_TV: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logit_RV, target_logit_TV[PLACE].softmax(1), reduction="none")


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("loss", [hard, soft])
def test_gradients_are_right_to_the_last_digits(loss: Loss) -> None:
    hidden_RD = drawn(5, 6, seed=1, dtype=torch.double).requires_grad_()
    head_VD, last_TD = (drawn(rows, 6, seed=rows, dtype=torch.double) for rows in (VOCAB, 4))
    assert torch.autograd.gradcheck(lambda hidden: loss(hidden, head_VD, last_TD)[0], hidden_RD)


@pytest.mark.parametrize(("loss", "torchs"), [(hard, torchs_hard), (soft, torchs_soft)])
def test_it_equals_torch_and_the_head_takes_no_gradient(loss: Loss, torchs: Callable[..., torch.Tensor]) -> None:
    head_VD, last_TD = random_weights().head_VD, drawn(PLACES, 64, seed=3)
    hidden_RD, plain_RD = (drawn(ROWS, 64, seed=4).requires_grad_() for _ in range(2))
    loss_R, best_R = loss(hidden_RD, head_VD, last_TD)
    logit_RV = plain_RD @ head_VD.T
    wanted_R = torchs(logit_RV, last_TD @ head_VD.T)
    torch.testing.assert_close(loss_R, wanted_R)
    assert torch.equal(best_R, logit_RV.argmax(1))
    assert loss_R.dtype == torch.float32
    assert not best_R.requires_grad
    weight_R = torch.linspace(0, 1, ROWS)
    (loss_R * weight_R).sum().backward()
    (wanted_R * weight_R).sum().backward()
    torch.testing.assert_close(hidden_RD.grad, plain_RD.grad)
    assert head_VD.grad is None


def test_the_target_itself_loses_its_entropy_and_has_nothing_to_learn() -> None:
    head_VD, last_TD = random_weights().head_VD, drawn(PLACES, 64, seed=3)
    hidden_RD = last_TD[PLACE].requires_grad_()
    loss_R, best_R = soft(hidden_RD, head_VD, last_TD)
    logit_TV = last_TD @ head_VD.T
    torch.testing.assert_close(loss_R, torch.distributions.Categorical(logits=logit_TV).entropy()[PLACE])
    assert torch.equal(best_R, logit_TV.argmax(1)[PLACE])
    loss_R.sum().backward()
    assert hidden_RD.grad is not None
    assert hidden_RD.grad.abs().max() < 1e-5


@pytest.mark.parametrize("loss", [hard, soft])
def test_half_precision_is_summed_up_in_float32_and_stays_finite(loss: Loss) -> None:
    # Logits of some hundreds: certain of one token, as fresh drafters are.
    half = [
        tensor.bfloat16() for tensor in (60 * drawn(ROWS, 64, seed=4), random_weights().head_VD, 60 * drawn(PLACES, 64, seed=3))
    ]
    hidden_RD = half[0].requires_grad_()
    loss_R, _ = loss(hidden_RD, *half[1:])
    assert loss_R.dtype == torch.float32
    assert loss_R.isfinite().all()
    loss_R.sum().backward()
    assert hidden_RD.grad is not None
    assert hidden_RD.grad.dtype == torch.bfloat16
    assert hidden_RD.grad.isfinite().all()


@pytest.mark.parametrize("loss", [hard, soft])
def test_autocast_takes_no_digit_from_the_sums(loss: Loss) -> None:
    half = [tensor.bfloat16() for tensor in (drawn(ROWS, 64, seed=4), random_weights().head_VD, drawn(PLACES, 64, seed=3))]
    plain_R, _ = loss(*half)
    with torch.autocast("cpu", torch.bfloat16):
        cast_R, _ = loss(*half)
    assert torch.equal(cast_R, plain_R)


@pytest.mark.parametrize("loss", [hard, soft])
def test_rows_are_worked_on_in_chunks_and_it_does_not_show(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden_RD = drawn(ROWS, 64, seed=4).requires_grad_()
    head_VD, last_TD = random_weights().head_VD, drawn(PLACES, 64, seed=3)

    def outcome() -> tuple[torch.Tensor, ...]:
        hidden_RD.grad = None
        loss_R, best_R = loss(hidden_RD, head_VD, last_TD)
        (loss_R * torch.linspace(0, 1, ROWS)).sum().backward()
        return loss_R.detach(), best_R, hidden_RD.grad

    whole = outcome()
    for rows in (1, 7, 49, 50):
        monkeypatch.setattr(module, "_CHUNK_ROWS", rows)
        for one, other in zip(outcome(), whole, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("loss", "at_once"), [(hard, 14), (soft, 7)])
def test_logits_never_exist_for_more_rows_than_a_chunk(loss: Loss, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The soft loss holds the target's logits too, and so works on half as many rows."""
    seen: list[int] = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and VOCAB in out.shape and 64 not in out.shape:  # that is the head
                seen.append(out.numel() // VOCAB)
            return out

    monkeypatch.setattr(module, "_CHUNK_ROWS", 14)
    hidden_RD = drawn(ROWS, 64, seed=4).requires_grad_()
    with Watch():
        loss(hidden_RD, random_weights().head_VD, drawn(PLACES, 64, seed=3))[0].sum().backward()
    assert max(seen) == at_once


@pytest.mark.parametrize("loss", [hard, soft])
def test_without_gradients_the_losses_are_the_same(loss: Loss) -> None:
    arguments = drawn(ROWS, 64, seed=4), random_weights().head_VD, drawn(PLACES, 64, seed=3)
    wanted_R, _ = loss(arguments[0].clone().requires_grad_(), *arguments[1:])
    with torch.no_grad():
        assert torch.equal(loss(*arguments)[0], wanted_R)
