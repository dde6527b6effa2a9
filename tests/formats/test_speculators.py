"""trainer/formats/speculators.py: loaded by their own class, and the same drafts out of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.made_runs import make_run, tiny_architecture, tiny_drafter, weights_at
from trainer.errors import ConfigError
from trainer.formats import speculators, zlab
from trainer.formats.export import ExportConfig, export
from trainer.formats.load import build_drafter
from trainer.target.load import Target
from trainer.target.tiny import tiny_model, tiny_tokenizer

BLOCK = 4


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target on disk, where others can load it."""
    folder = tmp_path_factory.mktemp("target")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path, target_folder: Path) -> Path:
    make_run(tmp_path / "runs")
    where = {"runs": str(tmp_path / "runs"), "output": str(tmp_path / "out"), "target": str(target_folder)}
    return export(ExportConfig(checkpoint="a", format="speculators", **where))  # type: ignore[arg-type]


def test_the_config_names_target_blocks_and_layers(folder: Path, target_folder: Path) -> None:
    config = json.loads((folder / zlab.CONFIG).read_text())
    assert (config["speculators_model_type"], config["architectures"]) == ("dflash", ["DFlashDraftModel"])
    assert config["aux_hidden_state_layer_ids"] == [2, 4, 6], "counted from the embedding's output: 1, 3 and 5 of z-lab's"
    assert (config["draft_vocab_size"], config["block_size"], config["mask_token_id"]) == (260, BLOCK, 259)
    assert (config["sample_from_anchor"], config["sliding_window_non_causal"]) == (False, False)
    served = config["speculators_config"]
    assert served["verifier"] == {"name_or_path": str(target_folder), "architectures": ["LlamaForCausalLM"]}
    assert served["proposal_methods"][0]["speculative_tokens"] == BLOCK - 1
    layers = config["transformer_layer_config"]
    assert (layers["model_type"], layers["num_hidden_layers"], layers["rope_theta"]) == ("qwen3", 2, 10000.0)
    assert not {"dflash_config", "auto_map", "architectures"} & layers.keys()


def test_the_tensors_are_z_labs(folder: Path) -> None:
    weights = zlab.read_weights(folder)
    assert {name: list(tensor.shape) for name, tensor in weights.items()} == zlab.tensor_shapes(tiny_architecture())


def test_it_reads_back_as_the_same_drafter(folder: Path) -> None:
    config = speculators.read_architecture(folder)
    assert config.dflash_config == {"mask_token_id": 259, "target_layer_ids": [1, 3, 5], "block_size": BLOCK}
    assert build_drafter(config, zlab.read_weights(folder), folder).block_size == BLOCK


def test_a_target_that_only_we_know_cannot_be_named() -> None:
    with pytest.raises(ConfigError, match="only Draftscope knows `tiny`: give --target"):
        speculators.config_json(tiny_architecture(), Target.find("tiny"), torch.float32)


def their_drafter(folder: Path) -> Any:
    theirs = pytest.importorskip(
        "speculators.models.dflash", reason="speculators==0.9.0 is not installed (make test gets it, where it can be had)"
    )
    config = theirs.DFlashSpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"  # their default needs a GPU to be fast, and a compiler here
    return theirs.DFlashDraftModel.from_pretrained(folder, config=config).eval()


@pytest.fixture
def theirs(folder: Path) -> Any:
    return their_drafter(folder)


def test_their_class_loads_every_tensor_and_finds_the_rest_in_the_target(theirs: Any) -> None:
    weights = weights_at(tiny_drafter(), 3)
    borrowed = {"embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
    loaded = theirs.state_dict()
    assert loaded.keys() == weights.keys() | borrowed
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())
    target = tiny_model()
    assert torch.equal(loaded["embed_tokens.weight"], target.get_input_embeddings().weight)
    assert torch.equal(loaded["lm_head.weight"], target.get_output_embeddings().weight)


def test_their_forward_gives_our_hidden_states_and_logits(theirs: Any) -> None:
    drafter, target, length = tiny_drafter(), tiny_model(), 24
    drafter.load_state_dict(weights_at(drafter, 3))
    dice = torch.Generator().manual_seed(1)
    features_TF = torch.randn(length, 3 * 64, generator=dice)
    token_T = torch.randint(0, 256, (length,), generator=dice)
    supervised_T = torch.zeros(length, dtype=torch.bool)
    anchor_A = torch.tensor([5, 6, 17])
    supervised_T[anchor_A] = True
    with torch.no_grad():
        their_hidden, their_logits, _, _, their_places = theirs._backbone_forward(
            features_TF[None],
            token_T[None],
            supervised_T[None].long(),
            torch.randn(1, length, 64, generator=dice),
            torch.zeros(1, length, dtype=torch.long),
            max_anchors=len(anchor_A),
        )
        block_AB = torch.full((len(anchor_A), BLOCK), drafter.mask_token_id)
        block_AB[:, 0] = token_T[anchor_A]
        position_Q = (anchor_A[:, None] + torch.arange(BLOCK)).flatten()
        block_Q = torch.arange(len(anchor_A)).repeat_interleave(BLOCK)
        mask_QK = torch.cat([torch.arange(length) < anchor_A[block_Q, None], block_Q[:, None] == block_Q], dim=1)
        draft_QD = target.get_input_embeddings()(block_AB.flatten())
        hidden_QD = drafter(features_TF, torch.arange(length), draft_QD, position_Q, mask_QK)
        logits_QV = target.get_output_embeddings()(hidden_QD)
    assert torch.equal(their_places, position_Q)
    torch.testing.assert_close(hidden_QD, their_hidden[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(logits_QV, their_logits[0], rtol=0, atol=1e-4)
    assert logits_QV.std() > 0.1, "a comparison of nothing would be equal too"
