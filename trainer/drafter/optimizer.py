"""AdamW with warm-up, cosine schedule and clipping by norm, over gradients of summed losses.

Losses are summed over the batches of a step; their gradients are divided by the summed weight here, once, so that how samples were
packed into batches makes no difference.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from trainer.config import OptimizerConfig


def learning_rate_at(progress: float, config: OptimizerConfig) -> float:
    """The rate at `progress` (0 to 1 of the run): a linear warm-up, then half a cosine down to 0."""
    if progress < config.warmup_ratio:
        return config.learning_rate * progress / config.warmup_ratio
    rest = (progress - config.warmup_ratio) / max(1e-12, 1 - config.warmup_ratio)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, rest)))


class Optimizer:
    """AdamW over a drafter's float32 weights, without weight decay for vectors (the norms)."""

    def __init__(self, drafter: nn.Module, config: OptimizerConfig) -> None:
        self._config = config
        self._parameters = [parameter for parameter in drafter.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in self._parameters if parameter.ndim >= 2]
        vectors = [parameter for parameter in self._parameters if parameter.ndim < 2]
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        fused = self._parameters[0].device.type == "cuda"
        self._adam = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=fused)

    def average_gradients(self, weight: torch.Tensor) -> torch.Tensor:
        """Divide the summed gradients by `weight`, a scalar tensor; returns their norm, which stays on the device."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        torch._foreach_div_(gradients, weight.clamp(min=1e-12))
        return torch.nn.utils.get_total_norm(gradients)

    def step(self, progress: float, norm: torch.Tensor) -> float:
        """Clip gradients of that `norm`, update the weights and drop the gradients; returns the learning rate used."""
        rate = learning_rate_at(progress, self._config)
        for group in self._adam.param_groups:
            group["lr"] = rate
        torch.nn.utils.clip_grads_with_norm_(self._parameters, self._config.clip, norm)
        self._adam.step()
        self.zero_grad()
        return rate

    def zero_grad(self) -> None:
        """Drop the gradients without an update."""
        self._adam.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        return self._adam.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load step counts and moments. Weight decay and the choice of the fused kernel stay this process's own."""
        own = [{"weight_decay": group["weight_decay"], "fused": group["fused"]} for group in self._adam.param_groups]
        self._adam.load_state_dict(state)
        for group, settings in zip(self._adam.param_groups, own, strict=True):
            group.update(settings)
