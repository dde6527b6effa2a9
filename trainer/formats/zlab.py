"""Reads and writes z-lab's format of a drafter: a folder with `config.json` and `model.safetensors`.

z-lab's own package, SGLang and vLLM load it. Our tensors already have z-lab's names; the target's embedding and head are not
stored.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PretrainedConfig, Qwen3Config

from trainer.drafter.model import spread_layer_ids
from trainer.errors import ConfigError

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ARCHITECTURE = "DFlashDraftModel"

# Keys that are copied from the drafter's config.
_SAME = (
    "attention_bias",
    "attention_dropout",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "max_window_layers",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_target_layers",
    "rms_norm_eps",
    "sliding_window",
    "use_cache",
    "use_sliding_window",
    "vocab_size",
)
_DEFAULT_BLOCK_SIZE = 16  # what every loader assumes where the config names none


def read_architecture(folder: Path) -> Qwen3Config:
    """The drafter's config, in the form that `Drafter` takes. Raises `ConfigError`."""
    raw = read_json(folder / CONFIG)
    if raw.get("speculators_model_type"):
        way = "give the checkpoint or the z-lab folder that it was made from"
        raise ConfigError(f"{folder} holds a drafter in the speculators format, which can only be written, not read: {way}")
    named = raw.get("architectures") or []
    if named != [ARCHITECTURE]:
        raise ConfigError(f"{folder} holds a {', '.join(map(str, named)) or 'model without a name'}, and no {ARCHITECTURE}")
    own = {**(raw.get("dflash_config") or {})}
    for key in ("mask_token_id", "target_layer_ids", "block_size"):  # older folders have them at the top level
        own.setdefault(key, raw.get(key))
    own["block_size"] = own["block_size"] or _DEFAULT_BLOCK_SIZE
    try:
        own["target_layer_ids"] = list(
            own["target_layer_ids"] or spread_layer_ids(raw["num_target_layers"], raw["num_hidden_layers"])
        )
        if own["mask_token_id"] is None:
            raise ValueError("it names no mask token")
        config = Qwen3Config.from_dict({**raw, "block_size": own["block_size"], "dflash_config": own})
        _check_supported(config)
    except Exception as error:  # unexpected keys and types make transformers' own checks raise anything
        reason = f"it has no {error.args[0]}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise ConfigError(f"{folder / CONFIG} is no config of a drafter that Draftscope can run: {reason}") from error
    return config


def config_json(drafter: Qwen3Config, target: PretrainedConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The content of `config.json`: the drafter's architecture, spelled for old loaders and new ones.

    `target` is the target's text config; its special tokens are the drafter's too.
    """
    rope = dict(drafter.rope_parameters)
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    own = drafter.dflash_config
    config = {
        "architectures": [ARCHITECTURE],
        "auto_map": {"AutoModel": f"dflash.{ARCHITECTURE}"},
        "model_type": drafter.model_type,
        "block_size": drafter.block_size,
        "dflash_config": {
            **own,
            "mask_token_id": own["mask_token_id"],
            "target_layer_ids": list(own["target_layer_ids"]),
            "block_size": drafter.block_size,
            "input_embedding_scale": 1.0,  # of every target, Gemma's too: docs/decisions/0007
        },
        **{key: getattr(drafter, key) for key in _SAME},
        "rope_parameters": rope,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None if rope["rope_type"] == "default" else scaling,
        "tie_word_embeddings": False,
        **{key: getattr(target, key, None) for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
        "dtype": str(dtype).removeprefix("torch."),
        "transformers_version": transformers.__version__,
    }
    return dict(sorted(config.items()))


def tensor_shapes(drafter: Qwen3Config) -> dict[str, list[int]]:
    """Every tensor of the format with its shape: 3, and 11 for each layer. Loaders expect these, however `Drafter` is built."""
    width, inner, head = drafter.hidden_size, drafter.intermediate_size, drafter.head_dim
    queries, keys = drafter.num_attention_heads * head, drafter.num_key_value_heads * head
    layer = {
        "input_layernorm": [width],
        "post_attention_layernorm": [width],
        "self_attn.q_proj": [queries, width],
        "self_attn.k_proj": [keys, width],
        "self_attn.v_proj": [keys, width],
        "self_attn.o_proj": [width, queries],
        "self_attn.q_norm": [head],
        "self_attn.k_norm": [head],
        "mlp.gate_proj": [inner, width],
        "mlp.up_proj": [inner, width],
        "mlp.down_proj": [width, inner],
    }
    layers = {f"layers.{i}.{name}": shape for i in range(drafter.num_hidden_layers) for name, shape in layer.items()}
    features = len(drafter.dflash_config["target_layer_ids"]) * width
    whole = {"fc": [width, features], "hidden_norm": [width], "norm": [width], **layers}
    return {f"{name}.weight": shape for name, shape in whole.items()}


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor in the folder, as stored, on the CPU. Raises `ConfigError` where a file is missing or truncated."""
    files = {WEIGHTS}
    if not (folder / WEIGHTS).is_file() and (folder / INDEX).is_file():
        files = set(read_json(folder / INDEX).get("weight_map", {}).values())
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(files):
        try:
            weights |= load_file(folder / file)
        except (OSError, SafetensorError) as error:
            found = f"is there but cannot be read ({error})" if (folder / file).is_file() else "is missing"
            way = "the folder was not copied completely, so copy it or export it again"
            raise ConfigError(f"{folder / file} {found}: {way}") from error
    return weights


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises `ConfigError`."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file} holds no JSON object")
    return value


def _check_supported(config: Qwen3Config) -> None:
    """Raise `ValueError` for what the format allows and `Drafter` does not support."""
    if "sliding_attention" in (config.layer_types or ()):
        raise ValueError("some of its layers have sliding windows")
    if getattr(config, "is_causal", None):
        raise ValueError("its blocks are causal")
    if config.attention_bias:
        raise ValueError("its attention has biases")
    if config.hidden_act != "silu":
        raise ValueError(f"its activation is {config.hidden_act!r} instead of 'silu'")
    if config.dflash_config.get("input_embedding_scale") not in (None, 1.0):
        raise ValueError(f"it scales embeddings by {config.dflash_config['input_embedding_scale']}")
