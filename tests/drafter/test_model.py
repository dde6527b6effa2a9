"""The drafter against a reference written in the plainest way: one block, one head, one query at a time."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoConfig, LlamaConfig, PretrainedConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.support.small import MASK, SHAPE, drafter_config, lay_out, lively_drafter, random_features, random_weights
from trainer.config import DrafterConfig
from trainer.data.batches import TokenBatch
from trainer.drafter.anchors import Blocks, attention_mask, build_blocks, draw_anchors, generator_for
from trainer.drafter.model import Drafter, choose_layer_ids, drafter_architecture, spread_layer_ids
from trainer.errors import ConfigError

BLOCK = 8
Weights = dict[str, torch.Tensor]


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * x / (x.pow(2).mean() + 1e-6).sqrt()


def turned(x: torch.Tensor, position: int) -> torch.Tensor:
    """RoPE: number i and number i + half are a point that turns by position / theta^(2i / size)."""
    half, out = len(x) // 2, x.clone()
    for i in range(half):
        angle = position * 50_000.0 ** (-2 * i / len(x))
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def head_output(w: Weights, layer: str, head: int, normed: list[torch.Tensor], seen: list[torch.Tensor]) -> list[torch.Tensor]:
    """One attention head: every draft position over the context before the anchor and the whole block."""

    def part(name: str, which: int, x: torch.Tensor) -> torch.Tensor:
        return w[f"{layer}.self_attn.{name}_proj.weight"][16 * which : 16 * (which + 1)] @ x

    shared = head // 2  # 4 heads share 2 keys and values
    inputs = [*seen, *normed]
    keys = [turned(rms(part("k", shared, x), w[f"{layer}.self_attn.k_norm.weight"]), place) for place, x in enumerate(inputs)]
    values = [part("v", shared, x) for x in inputs]
    outputs = []
    for slot, x in enumerate(normed):
        query = turned(rms(part("q", head, x), w[f"{layer}.self_attn.q_norm.weight"]), len(seen) + slot)
        weights = torch.stack([query @ key / math.sqrt(16) for key in keys]).exp()
        outputs.append(sum(share * value for share, value in zip(weights / weights.sum(), values, strict=True)))
    return outputs


def reference_block(w: Weights, layers: int, features: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
    """Hidden states of one block as at inference: all that exists is the document's features before the anchor."""
    seen = [rms(w["fc.weight"] @ row, w["hidden_norm.weight"]) for row in features]
    states = list(embeddings)
    for number in range(layers):
        layer = f"layers.{number}"
        normed = [rms(x, w[f"{layer}.input_layernorm.weight"]) for x in states]
        heads = [head_output(w, layer, head, normed, seen) for head in range(4)]
        for slot in range(len(states)):
            together = torch.cat([head[slot] for head in heads])
            states[slot] = states[slot] + w[f"{layer}.self_attn.o_proj.weight"] @ together
            x = rms(states[slot], w[f"{layer}.post_attention_layernorm.weight"])
            gate = w[f"{layer}.mlp.gate_proj.weight"] @ x
            inner = gate * gate.sigmoid() * (w[f"{layer}.mlp.up_proj.weight"] @ x)
            states[slot] = states[slot] + w[f"{layer}.mlp.down_proj.weight"] @ inner
    return torch.stack([rms(x, w["norm.weight"]) for x in states])


def block_embeddings(batch: TokenBatch, blocks: Blocks) -> torch.Tensor:
    """[A, B, D]: the clean token at the anchor, then masks."""
    token_AB = torch.full_like(blocks.label_AB, MASK)
    token_AB[:, 0] = batch.token_T[blocks.anchor_A]
    return F.embedding(token_AB, random_weights().embedding_VD)


def run(drafter: Drafter, batch: TokenBatch, blocks: Blocks, features_TF: torch.Tensor) -> torch.Tensor:
    draft_QD = block_embeddings(batch, blocks).flatten(0, 1)
    hidden_QD = drafter(features_TF, batch.position_T, draft_QD, blocks.position_AB.flatten(), attention_mask(batch, blocks))
    return hidden_QD.view(*blocks.index_AB.shape, -1).detach()


@pytest.mark.parametrize("layers", [1, 2])
def test_every_block_of_a_packed_batch_equals_the_plain_reference(layers: int) -> None:
    drafter = lively_drafter(drafter_config(layers=layers))
    batch = lay_out((9, 2, 12))
    blocks = build_blocks(batch, *draw_anchors(batch, 24, generator_for(1, 2)), BLOCK)
    features_TF = random_features(batch)
    hidden_ABD = run(drafter, batch, blocks, features_TF)
    weights = {name: weight.double() for name, weight in drafter.state_dict().items()}
    embedding_ABD = block_embeddings(batch, blocks).double()
    checked = 0
    for place in blocks.used_A.nonzero().flatten().tolist():
        anchor = int(blocks.anchor_A[place])
        context = features_TF[anchor - int(batch.position_T[anchor]) : anchor].double()
        wanted = reference_block(weights, layers, context, embedding_ABD[place])
        assert (hidden_ABD[place] - wanted).abs().max() < 2e-5, f"the block at {anchor}"
        checked += 1
    assert checked == 8 + 1 + 11
    assert 0 in batch.position_T[blocks.anchor_A[blocks.used_A]], "an anchor without any context is among them"


def test_positions_matter_and_only_their_differences() -> None:
    drafter, batch = lively_drafter(), lay_out((30,))
    blocks = build_blocks(batch, torch.tensor([12]), torch.tensor([True]), BLOCK)
    features_TF = random_features(batch)
    mask, draft_QD = attention_mask(batch, blocks), block_embeddings(batch, blocks)[0]

    def hidden(shift_context: int, shift_draft: int) -> torch.Tensor:
        positions = batch.position_T + shift_context, blocks.position_AB[0] + shift_draft
        return drafter(features_TF, positions[0], draft_QD, positions[1], mask).detach()

    torch.testing.assert_close(hidden(100, 100), hidden(0, 0), rtol=1e-4, atol=1e-4)
    assert (hidden(0, 1) - hidden(0, 0)).abs().max() > 0.01


def test_names_and_shapes_are_z_labs() -> None:
    drafter = Drafter(drafter_config(layers=5))
    wide, inner, features = SHAPE["hidden_size"], SHAPE["intermediate_size"], 3 * SHAPE["hidden_size"]
    wanted = {"fc.weight": (wide, features), "hidden_norm.weight": (wide,), "norm.weight": (wide,)}
    for layer in range(5):
        of_layer = {
            "input_layernorm": (wide,),
            "post_attention_layernorm": (wide,),
            "self_attn.q_proj": (4 * 16, wide),
            "self_attn.k_proj": (2 * 16, wide),
            "self_attn.v_proj": (2 * 16, wide),
            "self_attn.o_proj": (wide, 4 * 16),
            "self_attn.q_norm": (16,),
            "self_attn.k_norm": (16,),
            "mlp.gate_proj": (inner, wide),
            "mlp.up_proj": (inner, wide),
            "mlp.down_proj": (wide, inner),
        }
        wanted |= {f"layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    assert len(wanted) == 58
    assert {name: tuple(weight.shape) for name, weight in drafter.state_dict().items()} == wanted
    assert sum(weight.numel() for weight in drafter.parameters()) == sum(math.prod(shape) for shape in wanted.values())


def test_first_weights_are_small_norms_neutral_and_the_seed_decides() -> None:
    def made(seed: int) -> Weights:
        torch.manual_seed(seed)
        return Drafter(drafter_config()).state_dict()

    one, same, other = made(1), made(1), made(2)
    for name, weight in one.items():
        assert torch.equal(weight, same[name])
        if weight.ndim == 1:
            assert torch.equal(weight, torch.ones_like(weight))
        else:
            assert not torch.equal(weight, other[name])
            assert 0.018 < weight.std() < 0.022


RULE = {
    24: (1, 6, 11, 16, 21),
    28: (1, 7, 13, 19, 25),
    32: (1, 8, 15, 22, 29),
    36: (1, 9, 17, 25, 33),
    40: (1, 10, 19, 28, 37),
    64: (1, 16, 31, 46, 61),
}


@pytest.mark.parametrize(("layers", "ids"), RULE.items())
def test_layers_are_tapped_by_dflashs_rule(layers: int, ids: tuple[int, ...]) -> None:
    assert spread_layer_ids(layers, 5) == ids
    assert choose_layer_ids(layers, DrafterConfig()) == ids


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_the_rule_spreads_evenly_from_layer_1_to_n_minus_3(count: int) -> None:
    for layers in range(5, 100):
        ids = spread_layer_ids(layers, count)
        assert len(ids) == count
        assert (ids[0], ids[-1]) == (1, layers - 3)
        steps = [later - earlier for earlier, later in pairwise(ids)]
        assert max(steps) - min(steps) <= 2, "no more than rounding"


def test_a_single_layer_is_the_middle_one() -> None:
    assert [spread_layer_ids(layers, 1) for layers in (24, 29, 32)] == [(12,), (14,), (16,)]


def test_named_layers_win_over_the_rule() -> None:
    assert choose_layer_ids(12, DrafterConfig(target_layer_ids=(0, 4, 10), target_layers=5)) == (0, 4, 10)


@pytest.mark.parametrize(
    ("layers", "config", "message"),
    [
        (7, DrafterConfig(target_layers=5), r"drafter.target_layers must fit the target's 7 layers, got 5; choose at most 4"),
        (4, DrafterConfig(target_layers=2), r"4 layers, got 2; choose at most 1"),
        (12, DrafterConfig(target_layer_ids=(3, 11)), r"target_layer_ids must lie between 0 and 10 for this target, got 11"),
        (12, DrafterConfig(target_layer_ids=(3, 40)), r"between 0 and 10 for this target, got 40"),
    ],
)
def test_layers_that_cannot_be_tapped(layers: int, config: DrafterConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_layer_ids(layers, config)


@pytest.mark.parametrize("layers", [4, 5, 7, 12])
def test_what_the_error_advises_works(layers: int) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_layer_ids(layers, DrafterConfig(target_layers=layers))
    advised = int(str(caught.value).partition("at most ")[2].split()[0])
    assert len(choose_layer_ids(layers, DrafterConfig(target_layers=advised))) == advised


def architecture(target: PretrainedConfig) -> Any:
    return drafter_architecture(target, DrafterConfig(block_size=BLOCK, layers=2), (1, 2, 4), MASK)


def test_the_config_holds_what_serving_reads() -> None:
    config = drafter_config(block_size=BLOCK)
    assert (config.hidden_size, config.vocab_size) == (SHAPE["hidden_size"], SHAPE["vocab_size"]), "the target's embedding and head"
    assert config.num_hidden_layers == 2
    assert config.num_target_layers == 7
    assert config.block_size == BLOCK
    assert config.dflash_config == {"mask_token_id": MASK, "target_layer_ids": [1, 2, 4], "block_size": BLOCK}
    assert config.layer_types == ["full_attention"] * 2
    assert not config.tie_word_embeddings
    assert not config.attention_bias
    assert Drafter(config).mask_token_id == MASK
    assert Drafter(config).block_size == BLOCK


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


@pytest.mark.parametrize("rope", [{"rope_type": "default", "rope_theta": 12_345.0}, LLAMA3], ids=["plain", "llama3"])
def test_rope_is_the_targets(rope: dict[str, Any]) -> None:
    target = LlamaConfig(**SHAPE, rope_parameters=rope)
    positions, like = torch.arange(500)[None], torch.empty(1, 1)
    wanted = LlamaRotaryEmbedding(target)(like, positions)
    for mine, theirs in zip(Drafter(architecture(target)).rotary(like, positions), wanted, strict=True):
        assert torch.equal(mine, theirs)


def test_rope_of_a_target_with_two_kinds_is_that_of_full_attention() -> None:
    ropes = {
        "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    target = AutoConfig.for_model("gemma3_text", **SHAPE, rope_parameters=ropes)
    positions, like = torch.arange(500)[None], torch.empty(1, 1)
    wanted = Gemma3RotaryEmbedding(target)(like, positions, "full_attention")
    for mine, theirs in zip(Drafter(architecture(target)).rotary(like, positions), wanted, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text"])
def test_every_family_gets_a_drafter_that_runs(family: str) -> None:
    drafter = Drafter(architecture(AutoConfig.for_model(family, **SHAPE)))
    batch = lay_out((20,))
    blocks = build_blocks(batch, torch.tensor([3, 9]), torch.tensor([True, True]), BLOCK)
    assert run(drafter, batch, blocks, random_features(batch)).isfinite().all()


def test_a_target_without_grouped_heads_or_a_head_size_is_understood() -> None:
    target = AutoConfig.for_model("gpt_neox", vocab_size=300, hidden_size=64, num_attention_heads=4, num_hidden_layers=7)
    config = architecture(target)
    assert (config.num_key_value_heads, config.head_dim) == (4, 16)
