"""trainer/drafter/optimizer.py: the schedule, and that a step is what the textbook says."""

import itertools
import math

import pytest
import torch
from torch import nn

from trainer.config import OptimizerConfig
from trainer.drafter.optimizer import Optimizer, learning_rate_at

BETAS, EPSILON = (0.9, 0.95), 1e-8


class TwoWeights(nn.Module):
    """A matrix, a norm and a frozen weight; gradients are set by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.arange(6.0).reshape(2, 3) - 2.5)
        self.norm = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.full((2,), 9.0), requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs * self.norm) @ self.matrix.T


def give_gradients(model: TwoWeights, seed: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    model.matrix.grad = scale * torch.randn(2, 3, generator=generator)
    model.norm.grad = scale * torch.randn(3, generator=generator)
    return model.matrix.grad.clone(), model.norm.grad.clone()


# The schedule.


def rates(config: OptimizerConfig, count: int = 1000) -> list[float]:
    return [learning_rate_at(step / count, config) for step in range(count + 1)]


def test_the_rate_rises_in_a_line_and_falls_along_a_cosine() -> None:
    config = OptimizerConfig(learning_rate=0.5, warmup_ratio=0.2)
    expected = {0.0: 0.0, 0.05: 0.125, 0.1: 0.25, 0.2: 0.5, 0.4: 0.5 * (1 + math.cos(math.pi / 4)) / 2, 0.6: 0.25, 1.0: 0.0}
    assert {progress: learning_rate_at(progress, config) for progress in expected} == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("warmup", [0.0, 0.04, 0.5, 1.0])
def test_it_peaks_where_the_warm_up_ends_and_has_no_jump(warmup: float) -> None:
    config = OptimizerConfig(learning_rate=0.01, warmup_ratio=warmup)
    curve = rates(config)
    peak = round(1000 * warmup)
    assert curve[peak] == pytest.approx(0.01)
    assert curve[: peak + 1] == sorted(curve[: peak + 1])
    assert curve[peak:] == sorted(curve[peak:], reverse=True)
    steepest = 0.01 * max(1 / max(peak, 1), math.pi / 2 / max(1000 - peak, 1))
    assert max(abs(after - before) for before, after in itertools.pairwise(curve)) <= steepest * 1.001


def test_the_rate_stays_at_its_end() -> None:
    config = OptimizerConfig(learning_rate=0.01)
    assert learning_rate_at(1.0, config) == learning_rate_at(1.5, config) == pytest.approx(0.0, abs=1e-15)


# A step.


def test_average_divides_by_the_summed_weight_and_tells_the_norm() -> None:
    model = TwoWeights()
    optimizer = Optimizer(model, OptimizerConfig())
    matrix, norm = give_gradients(model, seed=1)
    total = optimizer.average_gradients(torch.tensor(4.0))
    assert torch.equal(model.matrix.grad, matrix / 4)
    assert torch.equal(model.norm.grad, norm / 4)
    assert float(total) == pytest.approx(math.sqrt(float((matrix / 4).square().sum() + (norm / 4).square().sum())), rel=1e-6)


def test_without_weight_there_is_nothing_and_not_a_nan() -> None:
    model = TwoWeights()
    optimizer = Optimizer(model, OptimizerConfig())
    give_gradients(model, seed=1, scale=0.0)
    assert float(optimizer.average_gradients(torch.tensor(0.0))) == 0.0


def textbook(config: OptimizerConfig, gradients: list[tuple[torch.Tensor, torch.Tensor]], weight: float) -> list[torch.Tensor]:
    """AdamW as in Loshchilov & Hutter: mean gradient, clipped by its norm over all weights; matrices decay, vectors don't."""
    start = TwoWeights()
    weights = [start.matrix.detach().double(), start.norm.detach().double()]
    first, second = [torch.zeros_like(w) for w in weights], [torch.zeros_like(w) for w in weights]
    for step, pair in enumerate(gradients, 1):
        means = [gradient.double() / weight for gradient in pair]
        norm = math.sqrt(sum(float(mean.square().sum()) for mean in means))
        rate = learning_rate_at(step / 10, config)
        for i, decay in enumerate((config.weight_decay, 0.0)):
            clipped = means[i] * min(1.0, config.clip / norm)
            weights[i] = weights[i] * (1 - rate * decay)
            first[i] = BETAS[0] * first[i] + (1 - BETAS[0]) * clipped
            second[i] = BETAS[1] * second[i] + (1 - BETAS[1]) * clipped**2
            unbiased = first[i] / (1 - BETAS[0] ** step), second[i] / (1 - BETAS[1] ** step)
            weights[i] = weights[i] - rate * unbiased[0] / (unbiased[1].sqrt() + EPSILON)
    return weights


@pytest.mark.parametrize("clip", [0.5, 1e6], ids=["clipped", "not clipped"])
def test_steps_are_those_of_the_textbook(clip: float) -> None:
    config = OptimizerConfig(learning_rate=0.05, weight_decay=0.3, clip=clip)
    model = TwoWeights()
    optimizer = Optimizer(model, config)
    gradients = []
    for step in range(1, 6):
        gradients.append(give_gradients(model, seed=step, scale=1 + step))
        rate = optimizer.step(step / 10, optimizer.average_gradients(torch.tensor(3.0)))
        assert rate == learning_rate_at(step / 10, config)
    matrix, norm = textbook(config, gradients, weight=3.0)
    torch.testing.assert_close(model.matrix.detach().double(), matrix, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.norm.detach().double(), norm, rtol=1e-5, atol=1e-5)
    assert torch.equal(model.frozen, torch.full((2,), 9.0))


def test_norms_are_not_decayed() -> None:
    model = TwoWeights()
    optimizer = Optimizer(model, OptimizerConfig(learning_rate=0.1, weight_decay=0.5, warmup_ratio=0.0))
    give_gradients(model, seed=1, scale=0.0)
    before = model.matrix.detach().clone()
    optimizer.step(0.0, optimizer.average_gradients(torch.tensor(1.0)))
    torch.testing.assert_close(model.matrix.detach(), before * (1 - 0.1 * 0.5))
    assert torch.equal(model.norm, torch.ones(3))


def test_a_step_uses_gradients_up_and_so_does_forgetting() -> None:
    model = TwoWeights()
    optimizer = Optimizer(model, OptimizerConfig())
    give_gradients(model, seed=1)
    optimizer.step(0.5, optimizer.average_gradients(torch.tensor(1.0)))
    assert model.matrix.grad is None
    give_gradients(model, seed=2)
    before = model.matrix.detach().clone()
    optimizer.zero_grad()
    assert model.matrix.grad is None
    assert torch.equal(model.matrix, before)


def step_over(batches: list[torch.Tensor]) -> torch.Tensor:
    """One step over weighted sums of losses, batch by batch."""
    model = TwoWeights()
    optimizer = Optimizer(model, OptimizerConfig(learning_rate=0.1, warmup_ratio=0.0, clip=0.01))
    weight = torch.tensor(0.0)
    for rows in batches:
        weights = torch.linspace(0.1, 1, len(rows))
        (model(rows).square().sum(1) * weights).sum().backward()
        weight = weight + weights.sum()
    optimizer.step(0.0, optimizer.average_gradients(weight))
    return model.matrix.detach()


def test_adding_up_and_dividing_once_is_the_mean_over_all() -> None:
    rows = torch.randn(12, 3, generator=torch.Generator().manual_seed(3))
    model, weights = TwoWeights(), torch.cat([torch.linspace(0.1, 1, 5), torch.linspace(0.1, 1, 7)])
    optimizer = Optimizer(model, OptimizerConfig(learning_rate=0.1, warmup_ratio=0.0, clip=0.01))
    ((model(rows).square().sum(1) * weights).sum() / weights.sum()).backward()
    optimizer.step(0.0, optimizer.average_gradients(torch.tensor(1.0)))
    torch.testing.assert_close(step_over([rows[:5], rows[5:]]), model.matrix.detach(), rtol=1e-5, atol=1e-6)


def test_a_drafter_without_norms_can_be_trained() -> None:
    model = nn.Linear(3, 2, bias=False)
    optimizer = Optimizer(model, OptimizerConfig())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step(0.5, optimizer.average_gradients(torch.tensor(1.0)))


def test_a_weight_without_a_gradient_is_left_alone() -> None:
    model = TwoWeights()
    optimizer = Optimizer(model, OptimizerConfig(weight_decay=0.5))
    give_gradients(model, seed=1)
    model.norm.grad = None
    optimizer.step(0.5, optimizer.average_gradients(torch.tensor(1.0)))
    assert torch.equal(model.norm, torch.ones(3))
