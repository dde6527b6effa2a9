"""The DFlash drafter: from the context's features and masked blocks to the hidden states of the draft positions.

Architecture and tensor names are z-lab's (arXiv 2602.06036), so that a state dict loads into their class and into the servers that
read their checkpoints. The building blocks are those of transformers' Qwen3, which their inference code uses too.

Shapes: T context tokens, Q draft positions, K = T + Q keys, N any of them, D hidden size, F = target layers x D features, H heads,
d head size.
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
"""Cosines and sines, each [N, d]."""
KeysValues = tuple[torch.Tensor, torch.Tensor]
"""One layer's keys, normed and rotated, and its values; each [H, N, d]."""


def spread_layer_ids(layers: int, count: int) -> tuple[int, ...]:
    """The target layers to tap by DFlash's rule: `count` of `layers`, evenly spaced from layer 1 to layer `layers` - 3.

    Ids count the outputs of decoder layers from 0: id i is `hidden_states[i + 1]` in transformers.
    """
    if count == 1:
        return (layers // 2,)
    return tuple(round(1 + i * (layers - 4) / (count - 1)) for i in range(count))


def choose_layer_ids(layers: int, config: DrafterConfig) -> tuple[int, ...]:
    """The target layers to tap: those that the config names, else by the rule. Raises `ConfigError` if the target lacks one."""
    ids = config.target_layer_ids or spread_layer_ids(layers, config.target_layers)
    if len(set(ids)) < len(ids) or min(ids) < 0:
        raise ConfigError(
            f"drafter.target_layers must fit the target's {layers} layers, got {config.target_layers}; "
            f"choose at most {max(1, layers - 3)} or name them with --drafter.target-layer-ids"
        )
    if max(ids) > layers - 2:
        # Servers disagree on the last layer's output: some read it after the final norm, others before.
        field = "drafter.target_layer_ids" if config.target_layer_ids else "the layers that drafter.target_layers asks for"
        raise ConfigError(f"{field} must lie between 0 and {layers - 2} for this target, got {max(ids)}")
    return ids


def drafter_architecture(target: PretrainedConfig, config: DrafterConfig, layer_ids: tuple[int, ...], mask_id: int) -> Qwen3Config:
    """The drafter's config: shape and RoPE of the target, layers of Qwen3, and DFlash's own keys.

    Hidden size and vocabulary must equal the target's, whose embedding and head the drafter uses. So must RoPE: with another base
    acceptance collapses without an error. Raises `ConfigError` for a target that lacks one of them.
    """
    for needed in ("num_attention_heads", "intermediate_size", "rope_parameters", "max_position_embeddings"):
        if getattr(target, needed, None) is None:
            raise ConfigError(f"a drafter takes its shape from the target, and a {target.model_type!r} has no {needed}")
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
    """The target's RoPE. Where it differs by kind of layer (Gemma 3), that of the full-attention layers."""
    rope = dict(target.rope_parameters)
    rope = dict(rope["full_attention"]) if "full_attention" in rope else rope
    if rope.get("rope_type") in ("dynamic", "longrope"):
        # transformers changes these frequencies in place with the longest text seen: packed batches and threads would disagree.
        raise ConfigError(f"the target's RoPE is of type {rope['rope_type']!r}, which packed batches cannot train for")
    return rope


class Attention(nn.Module):
    """Attention of draft positions over the context's fused features, injected as keys and values, and their own block.

    Non-causal: a position sees its whole block (mask tokens carry no future) and the context strictly before the anchor.
    """

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

    def project_kv(self, hidden_ND: torch.Tensor, rope: Rope) -> KeysValues:
        """Keys and values of context or draft positions: one pair of projections serves both."""
        key_HNd = self.k_norm(self._split_heads(self.k_proj(hidden_ND)))
        return apply_rotary_pos_emb(key_HNd, rope), self._split_heads(self.v_proj(hidden_ND))

    def forward(self, draft_QD: torch.Tensor, context: KeysValues, rope: Rope, mask_QK: torch.Tensor | None) -> torch.Tensor:
        query_HQd = apply_rotary_pos_emb(self.q_norm(self._split_heads(self.q_proj(draft_QD))), rope)
        draft = self.project_kv(draft_QD, rope)
        key_HKd, value_HKd = (torch.cat(parts, dim=1) for parts in zip(context, draft, strict=True))
        if mask_QK is not None and query_HQd.is_cuda and len(key_HKd) < len(query_HQd):
            # With a mask and grouped heads CUDA has only the math kernel, which keeps all Q x K scores for backward.
            groups = len(query_HQd) // len(key_HKd)
            key_HKd, value_HKd = key_HKd.repeat_interleave(groups, 0), value_HKd.repeat_interleave(groups, 0)
        attended_1HQd = F.scaled_dot_product_attention(
            query_HQd[None],
            key_HKd[None].to(query_HQd.dtype),
            value_HKd[None].to(query_HQd.dtype),
            attn_mask=mask_QK,
            enable_gqa=True,
        )
        return self.o_proj(attended_1HQd[0].transpose(0, 1).flatten(1))  # type: ignore[no-any-return]

    def _split_heads(self, rows_NX: torch.Tensor) -> torch.Tensor:
        """[N, H x d] to [H, N, d]."""
        return rows_NX.view(len(rows_NX), -1, self.head_dim).transpose(0, 1)


def apply_rotary_pos_emb(heads_HNd: torch.Tensor, rope: Rope) -> torch.Tensor:
    """RoPE: number i and number i + d/2 of a head are a point, turned by an angle that grows with the position."""
    cos_Nd, sin_Nd = rope
    return heads_HNd * cos_Nd + rotate_half(heads_HNd) * sin_Nd  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
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
    """DFlash. It has neither an embedding nor a head of its own: both are the target's."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.config = config
        self.block_size: int = config.block_size
        self.mask_token_id: int = config.dflash_config["mask_token_id"]
        width = len(config.dflash_config["target_layer_ids"]) * config.hidden_size
        self.fc = nn.Linear(width, config.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
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
        """The forward of training: every block of a batch at once. Shapes as in `encode_context` and `draft`."""
        return self.draft(self.encode_context(features_TF, context_position_T), draft_QD, draft_position_Q, mask_QK)

    def encode_context(self, features_TF: torch.Tensor, position_T: torch.Tensor) -> list[KeysValues]:
        """The context's keys and values in every layer; positions are absolute within a document.

        Tokens do not attend to each other here, so that decoding caches the result and appends to it as the text grows.
        """
        context_TD = self.hidden_norm(self.fc(features_TF))
        rope = self._rope(context_TD, position_T)
        return [layer.self_attn.project_kv(context_TD, rope) for layer in self._layers]

    def draft(
        self,
        context: list[KeysValues],
        draft_QD: torch.Tensor,
        position_Q: torch.Tensor,
        mask_QK: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states [Q, D] of the draft positions, ready for the target's head.

        `draft_QD` are the target's embeddings of the blocks. `mask_QK` (bool) is True where a draft position may attend; without
        it every position attends to everything, which is right for a single block.
        """
        rope = self._rope(draft_QD, position_Q)
        for layer, keys_values in zip(self._layers, context, strict=True):
            draft_QD = layer(draft_QD, keys_values, rope, mask_QK)
        return self.norm(draft_QD)  # type: ignore[no-any-return]

    @property
    def _layers(self) -> list[DecoderLayer]:
        return list(self.layers)  # type: ignore[arg-type]

    def _rope(self, like_ND: torch.Tensor, position_N: torch.Tensor) -> Rope:
        cos, sin = self.rotary(like_ND, position_N[None])
        return cos[0], sin[0]

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
