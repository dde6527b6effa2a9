"""trainer/preflight.py: what a run will be made of, checked without a weight, and what a checkpoint of it fits."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from trainer import models
from trainer.config import (
    BatchesConfig,
    ConfigError,
    DatasetConfig,
    DrafterConfig,
    LossConfig,
    OptimizerConfig,
    QueuesConfig,
    TrainConfig,
    WatchConfig,
)
from trainer.drafter import Drafter
from trainer.preflight import Plan, check
from trainer.tiny import MASK, tiny_config, tiny_model

CONFIG = TrainConfig(target="tiny", data="demo", target_devices=("cpu",), drafter_device="cpu")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return check(CONFIG)


def with_queues(plan: Plan, **queues: Any) -> Plan:
    return replace(plan, config=replace(plan.config, queues=QueuesConfig(**queues)))


def test_a_plan_tells_all_of_a_run_before_a_weight_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        pytest.fail("weights were loaded")

    real = sum(weight.numel() for weight in tiny_model().parameters())
    monkeypatch.setattr(models, "tiny_model", never)
    plan = check(CONFIG)
    assert plan.layer_ids == (1, 2, 3, 4, 5)
    assert plan.mask_token_id == MASK
    assert plan.target_parameters == real
    assert plan.drafter_parameters == sum(weight.numel() for weight in Drafter(plan.drafter).parameters())
    assert plan.drafter.dflash_config == {"mask_token_id": MASK, "target_layer_ids": [1, 2, 3, 4, 5], "block_size": 16}
    assert plan.placement.precision == torch.float32


def test_what_is_asked_for_wins_over_what_is_found() -> None:
    plan = check(replace(CONFIG, drafter=DrafterConfig(mask_token_id=7, target_layer_ids=(0, 4))))
    assert (plan.mask_token_id, plan.layer_ids) == (7, (0, 4))


def length(tokens: int) -> TrainConfig:
    return replace(CONFIG, dataset=DatasetConfig(max_length=tokens))


def test_a_conversation_may_be_as_long_as_the_target_can_read_and_no_longer() -> None:
    assert check(length(4096)).chat
    with pytest.raises(ConfigError) as refused:
        check(length(4097))
    assert str(refused.value) == "dataset.max_length must be at most the target's 4096 positions, got 4097"


def test_a_target_that_names_no_limit_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    described = replace(models.describe("tiny"), max_positions=0)
    monkeypatch.setattr("trainer.preflight.describe", lambda _: described)
    assert check(length(8192)).target.max_positions == 0


def test_frequencies_that_change_with_the_length_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def stretched() -> Any:
        config = tiny_config()
        config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
        return config

    monkeypatch.setattr(models, "tiny_config", stretched)
    with pytest.raises(ConfigError, match="the target's RoPE is of the type 'dynamic', which packed batches cannot train for"):
        check(CONFIG)


def test_feature_slots_are_bounded_by_number_and_by_memory(plan: Plan) -> None:
    batch = 5 * 64 * 4 * plan.config.batches.token_budget / 1e9  # GB of features: layers, hidden size, bytes, tokens
    assert with_queues(plan, features=3, gigabytes=10 * batch).feature_slots == 3
    assert with_queues(plan, features=9, gigabytes=3.01 * batch).feature_slots == 3
    assert with_queues(plan, features=9, gigabytes=2.99 * batch).feature_slots == 2
    assert with_queues(plan, features=9, gigabytes=0.5 * batch).feature_slots == 1, "without any nothing would move"
    half = replace(plan, placement=replace(plan.placement, precision=torch.bfloat16))
    assert with_queues(half, features=9, gigabytes=3.01 * batch).feature_slots == 6


CHANGES: dict[str, Callable[[Plan], Plan]] = {
    "target": lambda plan: replace(plan, target=replace(plan.target, name="other")),
    "data": lambda plan: replace(plan, fingerprint="other"),
    "layer_ids": lambda plan: replace(plan, layer_ids=(1, 2)),
    "mask_token_id": lambda plan: replace(plan, mask_token_id=7),
    "precision": lambda plan: replace(plan, placement=replace(plan.placement, precision=torch.bfloat16)),
    "seed": lambda plan: configured(plan, seed=1),
    "block_size": lambda plan: configured(plan, drafter=DrafterConfig(block_size=8)),
    "layers": lambda plan: configured(plan, drafter=DrafterConfig(layers=2)),
    "token_budget": lambda plan: configured(plan, batches=BatchesConfig(token_budget=4096)),
    "max_length": lambda plan: configured(plan, dataset=DatasetConfig(max_length=512)),
    "template_args": lambda plan: configured(plan, dataset=DatasetConfig(template_args={"enable_thinking": "false"})),
    "accumulate": lambda plan: configured(plan, optimizer=OptimizerConfig(accumulate=2)),
}


def configured(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, config=replace(plan.config, **changes))


def test_an_identity_names_all_that_decides_the_batches_and_the_weights(plan: Plan) -> None:
    assert plan.identity().keys() == CHANGES.keys()


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_made_of_something_else_has_another_identity(plan: Plan, name: str) -> None:
    before, after = plan.identity(), CHANGES[name](plan).identity()
    assert {field for field in before if before[field] != after[field]} == {name}


def test_what_a_resume_may_change_leaves_the_identity_alone(plan: Plan) -> None:
    free = {
        "max_steps": 7,
        "batches": BatchesConfig(epochs=9),
        "optimizer": OptimizerConfig(learning_rate=1e-3, clip=2.0),
        "loss": LossConfig(gamma=3.0),
        "queues": QueuesConfig(features=1),
        "watch": WatchConfig(port=-1),
        "target_devices": ("cpu", "cpu"),
        "data": "the same conversations, moved elsewhere",
    }
    assert configured(plan, **free).identity() == plan.identity()


def test_an_identity_is_the_same_once_a_checkpoint_has_held_it(plan: Plan) -> None:
    changed = CHANGES["template_args"](plan).identity()
    assert json.loads(json.dumps(changed)) == changed
