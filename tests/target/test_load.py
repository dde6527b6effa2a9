import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BloomConfig,
    LlamaForCausalLM,
    PhiConfig,
    PretrainedConfig,
    Qwen3NextConfig,
    T5Config,
)

from trainer.errors import ConfigError
from trainer.target import load, smollm2
from trainer.target.load import Target
from trainer.target.tiny import tiny_config, tiny_model, tiny_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model().save_pretrained(tmp_path / "target")
    tiny_tokenizer().save_pretrained(tmp_path / "target")
    return tmp_path / "target"


def test_a_folder_is_read(folder: Path) -> None:
    description = Target.find(str(folder)).description
    assert (description.architecture, description.layers, description.hidden_size) == ("LlamaForCausalLM", 8, 64)
    assert (description.vocab_size, description.max_positions, description.note) == (260, 4096, "")
    assert Target.find(str(folder)).tokenizer("Hi")["input_ids"] == [72, 105]
    model = Target.find(str(folder)).load(torch.bfloat16, "cpu")
    assert (model.dtype, model.training) == (torch.bfloat16, False)
    assert not any(weight.requires_grad for weight in model.parameters())
    assert torch.equal(model.lm_head.weight, tiny_model(torch.bfloat16).lm_head.weight)


def test_tiny_needs_no_folder() -> None:
    assert Target.find("tiny").description.source == "tiny"
    assert Target.find("tiny").load(torch.float32, "cpu").dtype == torch.float32
    assert Target.find("tiny").tokenizer.eos_token == "<|im_end|>"


def test_the_demo_says_so_where_its_target_cannot_be_had(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(smollm2, "missing_parts", lambda: "the package x is not installed")
    target = Target.find("demo")
    description = target.description
    sentence = "The demo target is not available, since the package x is not installed; a tiny random target stands in for it."
    assert (description.name, description.source, description.note) == ("demo", "tiny", sentence)
    _ = target.tokenizer
    assert [record.getMessage() for record in caplog.records] == [sentence]


def test_a_model_that_cannot_be_had_gets_a_sentence(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a file").touch()
    unweighted = tmp_path / "unweighted"
    unweighted.mkdir()
    (unweighted / "config.json").write_text((folder / "config.json").read_text())
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    (broken / "model.safetensors").touch()
    cases = {
        "./nowhere": "is no folder and no hub id",
        str(tmp_path / "nowhere"): "is no folder and no hub id",
        str(tmp_path / "a file"): "is no folder and no hub id",
        str(tmp_path / "empty"): "without a config.json",
        str(unweighted): "without weights",
        str(broken): "the config of target .* cannot be read",
        "nobody/no-such-model": "is no folder here, and the hub .* cannot be reached",
    }
    for name, complaint in cases.items():
        with pytest.raises(ConfigError, match=complaint) as raised:
            _ = Target.find(name).description
        sentence = str(raised.value)
        assert name in sentence
        assert sentence.endswith(load.ACCEPTED)
        assert "\n" not in sentence


def test_an_architecture_that_nobody_knows(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "no-such-type"}))
    with pytest.raises(ConfigError, match=r"cannot be read .*no-such-type"):
        _ = Target.find(str(folder)).description


def test_broken_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ConfigError, match="the weights of target"):
        Target.find(str(folder)).load(torch.float32, "cpu")


def rewrite(folder: Path, drop: Sequence[str]) -> None:
    """The same weights without those that are named so."""
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if name not in drop}
    assert len(kept) == len(weights) - len(drop)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def test_weights_that_are_missing_are_named_and_not_made_up(folder: Path) -> None:
    rewrite(folder, ["lm_head.weight"])
    with pytest.raises(ConfigError) as refused:
        Target.find(str(folder)).load(torch.float32, "cpu")
    assert str(refused.value) == (
        f"target {str(folder)!r} has no weights for lm_head.weight, and a drafter would learn from random ones: "
        "copy or download the whole model again"
    )


def test_of_many_missing_weights_some_are_named(folder: Path) -> None:
    rewrite(
        folder, ["model.embed_tokens.weight", "model.norm.weight", *(f"model.layers.{n}.mlp.up_proj.weight" for n in (0, 5, 6))]
    )
    with pytest.raises(ConfigError, match=r"for model.embed_tokens.weight, model.layers.0.\S+, model.layers.5.\S+ and 2 more, and"):
        Target.find(str(folder)).load(torch.float32, "cpu")


def test_a_head_that_is_the_embedding_need_not_be_there(tmp_path: Path) -> None:
    config = tiny_config()
    config.tie_word_embeddings = True
    LlamaForCausalLM(config).save_pretrained(tmp_path / "tied")
    assert "lm_head.weight" not in load_file(tmp_path / "tied" / "model.safetensors")
    model = Target.find(str(tmp_path / "tied")).load(torch.float32, "cpu")
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_a_tokenizer_without_a_chat_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="has no chat template: use the model's instruct version"):
        _ = Target.find(str(folder)).tokenizer


def test_a_slow_tokenizer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SimpleNamespace(is_fast=False, chat_template="x")
    monkeypatch.setattr(load.AutoTokenizer, "from_pretrained", lambda *_, **__: slow)
    with pytest.raises(ConfigError, match="has a slow tokenizer"):
        _ = Target.find(str(folder)).tokenizer


def saved(folder: Path, config: PretrainedConfig) -> str:
    """A folder with a config and weights that nobody reads."""
    config.save_pretrained(folder)
    (folder / "model.safetensors").touch()
    return str(folder)


def test_an_outline_has_the_shape_and_no_memory() -> None:
    outline = Target.find("tiny").outline()
    assert {weight.device.type for weight in outline.parameters()} == {"meta"}
    whole = sum(weight.numel() for weight in tiny_model().parameters())
    assert sum(weight.numel() for weight in outline.parameters()) == whole


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            BloomConfig(hidden_size=32, n_layer=6, n_head=2, vocab_size=99),
            "BloomForCausalLM, whose decoder is not made of `layers`",
        ),
        (PhiConfig(hidden_size=32, num_hidden_layers=6, num_attention_heads=2, vocab_size=99), "PhiForCausalLM"),
        (T5Config(d_model=32, num_layers=2, vocab_size=99), "no causal language model"),
    ],
)
def test_a_target_that_is_built_otherwise_is_refused_before_its_weights_are_read(
    tmp_path: Path, config: PretrainedConfig, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Target.find(saved(tmp_path / "other", config)).outline()


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "quantised", tiny_config())
    config = json.loads((tmp_path / "quantised" / "config.json").read_text())
    (tmp_path / "quantised" / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(ConfigError, match="is quantised"):
        Target.find(folder).outline()


def test_layers_that_mix_packed_documents_are_refused(tmp_path: Path) -> None:
    hybrid = Qwen3NextConfig(hidden_size=32, num_hidden_layers=4, num_attention_heads=2, vocab_size=99, num_experts=2)
    with pytest.raises(ConfigError, match=r"linear_attention.* cannot keep packed documents apart"):
        Target.find(saved(tmp_path / "hybrid", hybrid)).outline()


def test_a_head_with_a_bias_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    biased = tiny_model()
    biased.lm_head.bias = torch.nn.Parameter(torch.zeros(260))
    monkeypatch.setattr(load.AutoModelForCausalLM, "from_config", lambda *_, **__: biased)
    with pytest.raises(ConfigError, match="no plain output head without a bias"):
        Target.find("tiny").outline()
