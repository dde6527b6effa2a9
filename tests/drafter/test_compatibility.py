"""trainer/drafter/compatibility.py: a drafter that does not belong to its target is told so, by both values."""

from typing import Any

import pytest
from transformers import LlamaConfig, PretrainedConfig, Qwen2_5_VLConfig, Qwen3Config

from tests.support.made_runs import tiny_architecture
from trainer.drafter.compatibility import check_fit, mismatches
from trainer.errors import ConfigError
from trainer.target.tiny import tiny_config


def target(**changes: Any) -> LlamaConfig:
    return LlamaConfig(**{**tiny_config().to_dict(), **changes})


def told(drafter: Qwen3Config, config: PretrainedConfig) -> list[str]:
    return list(mismatches(drafter, config, "T"))


def test_a_drafter_fits_the_target_that_it_was_made_for() -> None:
    check_fit(tiny_architecture(), tiny_config(), "tiny")


def test_the_first_reason_is_raised() -> None:
    with pytest.raises(ConfigError) as refused:
        check_fit(tiny_architecture(), target(hidden_size=128, head_dim=32, vocab_size=300), "bigger")
    reason, _, way = str(refused.value).partition(": ")
    assert [word in reason for word in ("hidden size", "64", "'bigger'", "128")] == [True] * 4
    assert "target" in way


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": 300}, "a vocabulary of 260, target 'T' one of 300"),
        ({"num_hidden_layers": 9}, "a number of target layers of 8, target 'T' one of 9"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
            "has rope_theta 10000.0, that of target 'T' has",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
            "has no factor, rope_type default, that",
        ),
        ({"eos_token_id": [1, 259]}, "mask token is 259, which is also the eos token of target 'T'"),
        ({"pad_token_id": 259}, "mask token is 259, which is also the pad token of target 'T'"),
    ],
)
def test_each_difference_is_one_sentence(changes: dict[str, Any], words: str) -> None:
    (sentence,) = told(tiny_architecture(), target(**changes))
    assert words in sentence
    assert ": " in sentence, "a way out follows"


@pytest.mark.parametrize("ids", [[1, 7], [0, 8], [-1, 2]])
def test_layers_that_cannot_be_read_alike_everywhere(ids: list[int]) -> None:
    drafter = tiny_architecture()
    drafter.dflash_config = {**drafter.dflash_config, "target_layer_ids": ids}
    (sentence,) = told(drafter, tiny_config())
    outside = next(id_ for id_ in ids if not 0 <= id_ <= 6)
    assert f"reads layer {outside}, but target 'T' has 8 layers, of which 0 to 6 can be read" in sentence


@pytest.mark.parametrize("mask_id", [-1, 260])
def test_a_mask_token_outside_the_vocabulary(mask_id: int) -> None:
    drafter = tiny_architecture()
    drafter.dflash_config = {**drafter.dflash_config, "mask_token_id": mask_id}
    (sentence,) = told(drafter, tiny_config())
    assert f"mask token is {mask_id}, but the vocabulary of target 'T' ends at 259" in sentence


def test_numbers_are_compared_and_not_their_spelling() -> None:
    assert told(tiny_architecture(), target(rope_parameters={"rope_type": "default", "rope_theta": 10000})) == []


def test_what_a_drafter_has_no_use_for_is_no_difference() -> None:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 2]}
    assert told(tiny_architecture(), target(rope_parameters=rope)) == []


def test_of_a_target_with_eyes_its_text_is_looked_at() -> None:
    text = {
        key: value for key, value in tiny_config().to_dict().items() if key not in ("model_type", "architectures", "layer_types")
    }
    assert told(tiny_architecture(), Qwen2_5_VLConfig(text_config=text)) == []
