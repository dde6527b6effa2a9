"""trainer/formats/zlab.py: every key that a loader asks for, every tensor with its shape; and folders of others read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen3Config

from tests.support.made_runs import tiny_architecture, tiny_drafter
from trainer.drafter.model import Drafter
from trainer.errors import ConfigError
from trainer.formats import zlab
from trainer.target.tiny import tiny_config

# The keys that z-lab's published folders have, and those of other spellings of the same.
# fmt: off
KEYS = {
    "architectures", "auto_map", "model_type", "block_size", "dflash_config", "num_target_layers", "hidden_size",
    "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act",
    "rms_norm_eps", "attention_bias", "attention_dropout", "layer_types", "sliding_window", "use_sliding_window",
    "max_window_layers", "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters", "vocab_size",
    "tie_word_embeddings", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "dtype", "use_cache",
    "transformers_version",
}
# fmt: on


def written(**changes: Any) -> dict[str, Any]:
    config = zlab.config_json(tiny_architecture(), tiny_config(), torch.bfloat16)
    told: dict[str, Any] = json.loads(json.dumps(config))
    return {**told, **changes}


def put(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / zlab.CONFIG).write_text(json.dumps(config))
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        zlab.read_architecture(folder)
    return str(refused.value)


def test_the_config_has_every_key() -> None:
    config = written()
    assert config.keys() == KEYS
    assert (config["architectures"], config["auto_map"]) == (["DFlashDraftModel"], {"AutoModel": "dflash.DFlashDraftModel"})
    assert config["dflash_config"] == {
        "mask_token_id": 259,
        "target_layer_ids": [1, 3, 5],
        "block_size": 4,
        "input_embedding_scale": 1.0,
    }
    assert (config["block_size"], config["num_target_layers"], config["num_hidden_layers"]) == (4, 8, 2)
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (256, 257, 258)
    assert (config["model_type"], config["dtype"], config["hidden_act"]) == ("qwen3", "bfloat16", "silu")
    assert config["layer_types"] == ["full_attention"] * 2
    assert (config["attention_bias"], config["tie_word_embeddings"]) == (False, False)


def test_rope_is_spelled_for_old_loaders_and_new_ones() -> None:
    config = written()
    assert (config["rope_theta"], config["rope_scaling"]) == (10000.0, None)
    assert config["rope_parameters"] == {"rope_theta": 10000.0, "rope_type": "default"}
    drafter = tiny_architecture()
    drafter.rope_parameters = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 1024}
    scaled = zlab.config_json(drafter, tiny_config(), torch.float32)
    assert scaled["rope_theta"] == 1e6
    assert scaled["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    assert scaled["rope_parameters"] == drafter.rope_parameters


def test_the_tensors_are_those_of_the_format() -> None:
    shapes = zlab.tensor_shapes(tiny_architecture())
    assert len(shapes) == 3 + 11 * 2
    assert {name: list(tensor.shape) for name, tensor in tiny_drafter().state_dict().items()} == shapes
    assert shapes["fc.weight"] == [64, 3 * 64]
    assert shapes["layers.1.self_attn.k_proj.weight"] == [2 * 16, 64]
    assert shapes["layers.0.mlp.down_proj.weight"] == [64, 128]


def test_what_is_written_reads_back_as_the_same_drafter(tmp_path: Path) -> None:
    config = zlab.read_architecture(put(tmp_path / "f", written()))
    again = zlab.config_json(config, tiny_config(), torch.bfloat16)
    assert json.loads(json.dumps(again)) == written()
    assert Drafter(config).state_dict().keys() == tiny_drafter().state_dict().keys()


def test_what_a_drafter_asks_of_the_logits_is_kept(tmp_path: Path) -> None:
    own = {"mask_token_id": 259, "target_layer_ids": [1], "final_logit_softcapping": 30.0}
    config = zlab.read_architecture(put(tmp_path / "f", written(dflash_config=own)))
    again = zlab.config_json(config, tiny_config(), torch.float32)
    assert again["dflash_config"]["final_logit_softcapping"] == 30.0


def test_older_folders_have_keys_at_the_top_or_leave_them_out(tmp_path: Path) -> None:
    old = written(dflash_config={"mask_token_id": 259}, block_size=10, num_target_layers=36, num_hidden_layers=5)
    del old["rope_parameters"], old["layer_types"]
    config = zlab.read_architecture(put(tmp_path / "f", old))
    assert config.dflash_config["target_layer_ids"] == [1, 9, 17, 25, 33]
    assert (config.block_size, config.dflash_config["block_size"]) == (10, 10)
    assert config.rope_parameters["rope_theta"] == 10000.0
    named = {**old, "dflash_config": None, "mask_token_id": 7, "target_layer_ids": [2, 4]}
    del named["block_size"]
    config = zlab.read_architecture(put(tmp_path / "f", named))
    assert (config.dflash_config["mask_token_id"], config.dflash_config["target_layer_ids"]) == (7, [2, 4])
    assert config.block_size == 16, "what every loader takes where none is named"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["DFlash2DraftModel"]}, "holds a DFlash2DraftModel, and no DFlashDraftModel"),
        ({"architectures": None}, "holds a model without a name"),
        (
            {"speculators_model_type": "dflash"},
            "in the speculators format, which can only be written, not read: give the checkpoint",
        ),
        ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 64}, "some of its layers have sliding windows"),
        ({"is_causal": True}, "its blocks are causal"),
        ({"attention_bias": True}, "its attention has biases"),
        ({"hidden_act": "gelu"}, "its activation is 'gelu'"),
        (
            {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1], "input_embedding_scale": 8.0}},
            "scales embeddings by 8.0",
        ),
        ({"dflash_config": {"target_layer_ids": [1]}}, "it names no mask token"),
        ({"hidden_size": "wide"}, "is no config of a drafter that Draftscope can run"),
    ],
)
def test_what_our_drafter_does_not_do_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    assert words in refusal(put(tmp_path / "f", written(**changes)))


def test_a_key_that_is_missing_is_named(tmp_path: Path) -> None:
    config = written(dflash_config={"mask_token_id": 1})
    del config["num_target_layers"]
    assert "it has no num_target_layers" in refusal(put(tmp_path / "f", config))


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / zlab.CONFIG).write_text('{"architectures": ["DFl')
    assert "config.json cannot be read" in refusal(tmp_path)
    (tmp_path / zlab.CONFIG).write_text("[]")
    assert "holds no JSON object" in refusal(tmp_path)


def test_weights_in_several_files_are_put_together(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "two.safetensors")
    (tmp_path / zlab.INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    assert {name: tensor.tolist() for name, tensor in zlab.read_weights(tmp_path).items()} == {"a": [1, 1], "b": [0, 0, 0]}


def test_special_tokens_that_the_target_lacks_are_null() -> None:
    config = zlab.config_json(tiny_architecture(), Qwen3Config(), torch.float32)
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (None, None, None)
