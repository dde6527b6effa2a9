"""The DFlash drafter: features of the context and blocks of masks in, hidden states of the draft positions out.

Architecture and names are z-lab's (arXiv 2602.06036; tensors as in their checkpoints), so that a state dict loads where theirs
does. The building blocks are transformers' Qwen3 ones, which their inference code uses too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PretrainedConfig, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm, Qwen3RotaryEmbedding, rotate_half

from trainer.config import DrafterConfig
from trainer.errors import ConfigError

Rope = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, each [N, d] for N positions and heads of d numbers."""
KeysValues = tuple[torch.Tensor, torch.Tensor]
"""One layer's keys, normed and turned to their positions, and its values, each [heads, N, d]."""


def spread_layer_ids(layers: int, count: int) -> tuple[int, ...]:
    """The `count` of `layers` target layers to tap, by DFlash's rule: from layer 1 to layer N-3, evenly.

    Ids are 0-based outputs of decoder layers (`hidden_states[id + 1]` in transformers).
    """
    if count == 1:
        return (layers // 2,)
    return tuple(round(1 + place * (layers - 4) / (count - 1)) for place in range(count))


def choose_layer_ids(layers: int, config: DrafterConfig) -> tuple[int, ...]:
    """The tapped layers, checked against a target of `layers` layers. Raises `ConfigError`."""
    ids = config.target_layer_ids or spread_layer_ids(layers, config.target_layers)
    if len(set(ids)) < len(ids) or min(ids) < 0:
        raise ConfigError(
            f"drafter.target_layers must fit the target's {layers} layers, got {config.target_layers}; "
            f"choose at most {max(1, layers - 3)} or name them with --drafter.target-layer-ids"
        )
    if max(ids) > layers - 2:
        # The last layer's output means the normed state to some servers and the raw one to others.
        field = "drafter.target_layer_ids" if config.target_layer_ids else "the layers that drafter.target_layers asks for"
        raise ConfigError(f"{field} must lie between 0 and {layers - 2} for this target, got {max(ids)}")
    return ids


def drafter_architecture(target: PretrainedConfig, config: DrafterConfig, layer_ids: tuple[int, ...], mask_id: int) -> Qwen3Config:
    """The drafter's config: the target's shape and RoPE, Qwen3's style, DFlash's own keys.

    Equal to the target's where serving needs it: hidden size and vocabulary (its embedding and head are used), RoPE (or acceptance
    collapses in silence). Raises `ConfigError` for a target that has none of it.
    """
    for needed in ("num_attention_heads", "intermediate_size", "rope_parameters", "max_position_embeddings"):
        if getattr(target, needed, None) is None:
            raise ConfigError(f"a drafter takes its shape from the target's, and a {target.model_type!r} has no {needed}")
    heads = target.num_attention_heads
    return Qwen3Config(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=heads,
        num_key_value_heads=getattr(target, "num_key_value_heads", None) or heads,
        head_dim=getattr(target, "head_dim", None) or target.hidden_size // heads,
        rms_norm_eps=getattr(target, "rms_norm_eps", 1e-6),
        max_position_embeddings=target.max_position_embeddings,
        rope_parameters=_rope_of(target),
        attention_bias=False,
        tie_word_embeddings=False,
        block_size=config.block_size,
        num_target_layers=target.num_hidden_layers,
        dflash_config={"mask_token_id": mask_id, "target_layer_ids": list(layer_ids), "block_size": config.block_size},
    )


def _rope_of(target: PretrainedConfig) -> dict[str, Any]:
    """The target's RoPE; of a target whose kinds of layer differ in it (Gemma 3), the full-attention layers'."""
    rope = dict(target.rope_parameters)
    rope = dict(rope["full_attention"]) if "full_attention" in rope else rope
    if rope.get("rope_type") in ("dynamic", "longrope"):
        # transformers changes their frequencies in place with the length that it sees: packing and threads would disagree.
        raise ConfigError(f"the target's RoPE is of the type {rope['rope_type']!r}, which packed batches cannot train for")
    return rope


class Attention(nn.Module):
    """Draft positions attend to the context's fused features, as extra keys and values, and to their own block."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.q_norm = Qwen3RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def read(self, rows_ND: torch.Tensor, rope: Rope) -> KeysValues:
        """Keys and values of these rows, context or draft: one projection serves both."""
        return _turn(self.k_norm(self._heads(self.k_proj(rows_ND))), rope), self._heads(self.v_proj(rows_ND))

    def forward(self, draft_QD: torch.Tensor, context: KeysValues, rope: Rope, mask_QK: torch.Tensor | None) -> torch.Tensor:
        query = _turn(self.q_norm(self._heads(self.q_proj(draft_QD))), rope)
        key, value = (torch.cat(both, dim=1) for both in zip(context, self.read(draft_QD, rope), strict=True))
        if mask_QK is not None and query.is_cuda and len(key) < len(query):
            # With a mask and grouped heads only the math kernel is left there, which keeps every score for backward.
            key, value = (heads.repeat_interleave(len(query) // len(heads), 0) for heads in (key, value))
        seen = F.scaled_dot_product_attention(
            query[None], key[None].to(query.dtype), value[None].to(query.dtype), attn_mask=mask_QK, enable_gqa=True
        )
        return self.o_proj(seen[0].transpose(0, 1).flatten(1))  # type: ignore[no-any-return]

    def _heads(self, rows_ND: torch.Tensor) -> torch.Tensor:
        return rows_ND.view(len(rows_ND), -1, self.head_dim).transpose(0, 1)


def _turn(heads: torch.Tensor, rope: Rope) -> torch.Tensor:
    cos, sin = rope
    return heads * cos + rotate_half(heads) * sin  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, draft_QD: torch.Tensor, context: KeysValues, rope: Rope, mask_QK: torch.Tensor | None) -> torch.Tensor:
        draft_QD = draft_QD + self.self_attn(self.input_layernorm(draft_QD), context, rope, mask_QK)
        return draft_QD + self.mlp(self.post_attention_layernorm(draft_QD))  # type: ignore[no-any-return]


class Drafter(nn.Module):
    """DFlash. It holds neither an embedding nor a head: both are the target's."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.config = config
        self.block_size: int = config.block_size
        self.mask_token_id: int = config.dflash_config["mask_token_id"]
        width = len(config.dflash_config["target_layer_ids"]) * config.hidden_size
        self.fc = nn.Linear(width, config.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary = Qwen3RotaryEmbedding(config)
        self.apply(self._initialise)

    def forward(
        self,
        features_TF: torch.Tensor,
        context_position_T: torch.Tensor,
        draft_QD: torch.Tensor,
        draft_position_Q: torch.Tensor,
        mask_QK: torch.Tensor,
    ) -> torch.Tensor:
        """`draft` over the context that `read` makes of the features: the forward of training."""
        return self.draft(self.read(features_TF, context_position_T), draft_QD, draft_position_Q, mask_QK)

    def read(self, features_TF: torch.Tensor, position_T: torch.Tensor) -> list[KeysValues]:
        """The context's keys and values, layer by layer, which nothing that follows in the text changes.

        Positions are absolute within a document.
        """
        context_TD = self.hidden_norm(self.fc(features_TF))
        rope = self._rope(context_TD, position_T)
        return [layer.self_attn.read(context_TD, rope) for layer in self._layers]

    def draft(
        self,
        context: list[KeysValues],
        draft_QD: torch.Tensor,
        position_Q: torch.Tensor,
        mask_QK: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states [Q, D] of the draft positions, ready for the target's head.

        `draft_QD` are the target's embeddings of the blocks, and `mask_QK` (bool [Q, T + Q]) is True where a draft position may
        look; without it, everywhere.
        """
        rope = self._rope(draft_QD, position_Q)
        for layer, read in zip(self._layers, context, strict=True):
            draft_QD = layer(draft_QD, read, rope, mask_QK)
        return self.norm(draft_QD)  # type: ignore[no-any-return]

    @property
    def _layers(self) -> list[Layer]:
        return list(self.layers)  # type: ignore[arg-type]

    def _rope(self, like_ND: torch.Tensor, position_N: torch.Tensor) -> Rope:
        cos, sin = self.rotary(like_ND, position_N[None])
        return cos[0], sin[0]

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
