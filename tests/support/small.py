"""Small parts to do sums on: batches laid out by hand, a small target's weights, a drafter in which no weight is neutral."""

from collections.abc import Sequence

import torch
from torch import nn
from transformers import LlamaConfig, Qwen3Config

from trainer.config import DrafterConfig
from trainer.data.batches import Cursor, TokenBatch
from trainer.drafter.model import Drafter, choose_layer_ids, drafter_architecture
from trainer.target.features import TargetWeights

VOCAB, MASK = 300, 299
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}


def lay_out(lengths: Sequence[int], supervised: Sequence[bool] | torch.Tensor | None = None, *, seq: int = 0) -> TokenBatch:
    """A batch of random documents of these lengths; every token is supervised unless said otherwise."""
    total = sum(lengths)
    dice = torch.Generator().manual_seed(1000 + seq)
    return TokenBatch(
        seq=seq,
        token_T=torch.randint(0, MASK, (total,), generator=dice),
        supervised_T=torch.ones(total, dtype=torch.bool) if supervised is None else torch.as_tensor(supervised),
        position_T=torch.tensor([position for length in lengths for position in range(length)]),
        document_T=torch.tensor([document for document, length in enumerate(lengths) for _ in range(length)]),
        samples=len(lengths),
        after=Cursor(epoch=0, position=len(lengths)),
    )


def some_of(total: int, share: float = 0.8) -> torch.Tensor:
    """A loss mask with gaps."""
    return torch.rand(total, generator=torch.Generator().manual_seed(5)) < share


def drafter_config(*, layers: int = 2, block_size: int = 8) -> Qwen3Config:
    target = LlamaConfig(**SHAPE, rope_parameters={"rope_type": "default", "rope_theta": 50_000.0})
    config = DrafterConfig(block_size=block_size, layers=layers, target_layers=3)
    return drafter_architecture(target, config, choose_layer_ids(7, config), MASK)


def lively_drafter(config: Qwen3Config | None = None) -> Drafter:
    """A drafter with large random weights, norms included, so that each of them shows in the output."""
    drafter = Drafter(config or drafter_config())
    dice = torch.Generator().manual_seed(6)
    for weight in drafter.parameters():
        vector = weight.ndim == 1
        nn.init.normal_(weight, mean=float(vector), std=0.2 if vector else 0.15, generator=dice)
    return drafter


def random_weights() -> TargetWeights:
    dice = torch.Generator().manual_seed(7)
    return TargetWeights(torch.randn(VOCAB, 64, generator=dice), torch.randn(VOCAB, 64, generator=dice) / 4)


def random_features(batch: TokenBatch, width: int = 3 * 64) -> torch.Tensor:
    return torch.randn(batch.tokens, width, generator=torch.Generator().manual_seed(8))
