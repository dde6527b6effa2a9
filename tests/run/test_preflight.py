"""trainer/run/preflight.py: what a run will be made of, checked without a weight, and what a checkpoint of it fits."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from tests.support.made_runs import make_run, tiny_architecture, tiny_drafter
from trainer.config import (
    BatchesConfig,
    DatasetConfig,
    DrafterConfig,
    LossConfig,
    OptimizerConfig,
    Precision,
    QueuesConfig,
    TrainConfig,
    WatchConfig,
)
from trainer.data.chat_template import Chat
from trainer.data.conversations import Rejected
from trainer.data.samples import tokenise
from trainer.drafter.model import Drafter
from trainer.errors import ConfigError
from trainer.run import preflight
from trainer.run.data_checks import SURVEY_SIZE
from trainer.run.preflight import Plan, check
from trainer.target import load
from trainer.target.load import Target
from trainer.target.smollm2 import missing_parts
from trainer.target.tiny import MASK, tiny_config, tiny_model

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
    monkeypatch.setattr(load, "tiny_model", never)
    plan = check(CONFIG)
    assert plan.layer_ids == (1, 2, 3, 4, 5)
    assert plan.mask_token_id == MASK
    assert plan.target_parameters == real
    assert plan.drafter_parameters == sum(weight.numel() for weight in Drafter(plan.drafter).parameters())
    assert plan.drafter.dflash_config == {"mask_token_id": MASK, "target_layer_ids": [1, 2, 3, 4, 5], "block_size": 16}
    assert plan.placement.precision == torch.float32


def test_one_pass_tokenises_each_conversation_that_it_examines_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenise, prompt_ids = Chat.tokenise, Chat.prompt_ids
    calls: Counter[str] = Counter()

    def counted(self: Chat, messages: Any) -> Any:
        calls[str(messages)] += 1
        return tokenise(self, messages)

    def prompted(self: Chat, messages: Any, **arguments: Any) -> Any:
        calls[f"prompt {messages}"] += 1
        return prompt_ids(self, messages, **arguments)

    monkeypatch.setattr(Chat, "tokenise", counted)
    monkeypatch.setattr(Chat, "prompt_ids", prompted)
    plan = check(CONFIG)
    assert plan.held_out is not None
    assert sum(calls.values()) == len(calls) == SURVEY_SIZE + 2 * len(plan.held_out.prompts)


def test_what_is_asked_for_wins_over_what_is_found() -> None:
    plan = check(replace(CONFIG, drafter=DrafterConfig(mask_token_id=7, target_layer_ids=(0, 4))))
    assert (plan.mask_token_id, plan.layer_ids) == (7, (0, 4))


def length(tokens: int) -> TrainConfig:
    return replace(CONFIG, dataset=DatasetConfig(max_length=tokens))


def test_a_conversation_may_be_as_long_as_the_target_can_read_and_no_longer() -> None:
    assert check(length(4096)).chat
    with pytest.raises(ConfigError) as refused:
        check(length(4097))
    assert str(refused.value) == "--dataset.max-length must be at most the target's 4096 positions, got 4097"


def test_a_target_that_names_no_limit_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    described = replace(Target.find("tiny").description, max_positions=0)
    monkeypatch.setattr(Target, "description", described)
    assert check(length(8192)).target.description.max_positions == 0


def test_frequencies_that_change_with_the_length_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def stretched() -> Any:
        config = tiny_config()
        config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
        return config

    monkeypatch.setattr(load, "tiny_config", stretched)
    with pytest.raises(ConfigError, match="the target's RoPE is of type 'dynamic', which packed batches cannot train for"):
        check(CONFIG)


def test_feature_slots_are_bounded_by_number_and_by_memory(plan: Plan) -> None:
    batch = 5 * 64 * 4 * plan.config.batches.token_budget / 1e9  # GB of features: layers, hidden size, bytes, tokens
    assert with_queues(plan, features=3, gigabytes=10 * batch).feature_slots == 3
    assert with_queues(plan, features=9, gigabytes=3.01 * batch).feature_slots == 3
    assert with_queues(plan, features=9, gigabytes=2.99 * batch).feature_slots == 2
    assert with_queues(plan, features=9, gigabytes=0.5 * batch).feature_slots == 1, "without any nothing would move"
    half = replace(plan, placement=replace(plan.placement, precision=torch.bfloat16))
    assert with_queues(half, features=9, gigabytes=3.01 * batch).feature_slots == 6


def saved(folder: Path, *answers: str, held_out: bool = True) -> str:
    rows = [{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": answer}]} for answer in answers]
    split = datasets.Dataset.from_list(rows)
    datasets.DatasetDict({"train": split, **({"held_out": split} if held_out else {})}).save_to_disk(folder)
    return str(folder)


def test_all_well_is_no_warning(tmp_path: Path) -> None:
    assert check(replace(CONFIG, data=saved(tmp_path / "data", "Yes.", "No."))).warnings == ()


def test_answers_made_otherwise_are_warned_of(plan: Plan) -> None:
    """The demo's are by the demo target, in float32, with nothing for the template."""
    (another_target,) = plan.warnings
    assert another_target == (
        "The data's answers are by target 'demo', but the target is 'tiny': "
        "the drafter would learn to guess what another model says."
    )
    _, precision, template = check(
        replace(CONFIG, precision="bfloat16", dataset=DatasetConfig(template_args={"enable_thinking": "false"}))
    ).warnings
    assert precision.startswith("The data's answers were made in float32, but the target runs in bfloat16: ")
    assert "enable_thinking not given then and false now" in template


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "warned"), [("float32", 0), ("bfloat16", 1)])
def test_the_demo_data_are_made_for_the_demo_target_in_float32(precision: Precision, warned: int) -> None:
    if reason := missing_parts():
        pytest.skip(reason)
    assert len(check(replace(CONFIG, target="demo", precision=precision)).warnings) == warned


def test_data_that_say_how_they_were_made_need_no_guess_about_thoughts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(tmp_path / "data", "Yes.", "No.")
    monkeypatch.setattr(preflight, "warn_of_missing_thoughts", lambda *_: iter(["No thoughts."]))
    assert check(replace(CONFIG, data=data)).warnings == ("No thoughts.",)
    (tmp_path / "data" / "provenance.json").write_text('{"target": "tiny"}')
    assert check(replace(CONFIG, data=data)).warnings == ()


def test_what_may_be_meant_is_a_warning_and_no_more(tmp_path: Path) -> None:
    data = saved(tmp_path / "data", "Yes.", "", "", held_out=False)
    plan = check(replace(CONFIG, data=data, loss=LossConfig(gamma=1.0)))
    assert [warning.split(",")[0].split(" can be")[0] for warning in plan.warnings] == [
        "Only 1 of the 3 conversations examined",
        "loss.gamma is 1",
        "No acceptance will be measured while training",
    ]
    assert plan.held_out is None


def test_a_common_token_is_no_mask() -> None:
    with pytest.raises(ConfigError, match=r"got 101 \(e\), which 128 of the 128 conversations examined hold: leave it out"):
        check(replace(CONFIG, drafter=DrafterConfig(mask_token_id=ord("e"))))


def test_one_poisoned_conversation_is_turned_away_and_stops_nothing(tmp_path: Path) -> None:
    plan = check(replace(CONFIG, data=saved(tmp_path / "data", "Yes.", "Look: <|mask|>.", "No.")))
    told = [tokenise(plan.chat, row) for row in plan.conversations]
    assert [isinstance(tokenised, Rejected) for tokenised in told] == [False, True, False]
    assert isinstance(told[1], Rejected)
    assert told[1].reason == "mask_token"


def test_a_tokenizer_with_more_words_than_the_target_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def smaller() -> Any:
        config = tiny_config()
        config.vocab_size = 200
        return config

    monkeypatch.setattr(load, "tiny_config", smaller)
    with pytest.raises(ConfigError, match="target 'tiny' has embeddings for 200 tokens, but its tokenizer gives ids up to 255"):
        check(CONFIG)


@pytest.mark.parametrize(
    ("drafter", "sentence"),
    [
        (DrafterConfig(target_layer_ids=(1, 7)), "drafter.target_layer_ids must lie between 0 and 6 for this target, got 7"),
        (DrafterConfig(target_layers=7), "drafter.target_layers must fit the target's 8 layers, got 7; choose at most 5"),
    ],
)
def test_layers_that_the_target_does_not_have_are_refused(drafter: DrafterConfig, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(replace(CONFIG, drafter=drafter))
    assert str(refused.value).startswith(sentence)


def test_a_warm_start_decides_the_shape_and_the_identity(tmp_path: Path) -> None:
    make_run(tmp_path, "before")
    data = saved(tmp_path / "data", "Yes.", "No.")
    plan = check(replace(CONFIG, data=data, warm_start="before", runs=str(tmp_path)))
    assert plan.drafter.to_dict() == tiny_architecture().to_dict()
    assert (plan.layer_ids, plan.mask_token_id) == ((1, 3, 5), MASK)
    identity = plan.identity()
    assert (identity["block_size"], identity["layers"], identity["layer_ids"]) == (4, 2, [1, 3, 5])
    assert plan.warnings == ()


def test_a_resumed_run_keeps_the_shape_that_its_checkpoint_has(tmp_path: Path) -> None:
    odd = tiny_drafter()
    odd.config.rms_norm_eps = 1e-3
    make_run(tmp_path, "before", drafter=odd)
    plan = check(replace(CONFIG, resume="before", runs=str(tmp_path)))
    assert plan.drafter.rms_norm_eps == 1e-3
    assert plan.warm_start is None
    assert plan.config.drafter.block_size == 16, "what flags ask for is compared with the checkpoint's identity"


def test_a_last_hidden_state_that_travels_with_the_features_counts_too(plan: Plan) -> None:
    distilling = configured(plan, loss=LossConfig(objective="distillation"))
    assert (plan.keep_last, plan.feature_width) == (False, 5 * 64)
    assert (distilling.keep_last, distilling.feature_width) == (True, 6 * 64)
    batch = 6 * 64 * 4 * plan.config.batches.token_budget / 1e9
    assert with_queues(distilling, features=9, gigabytes=3.01 * batch).feature_slots == 3
    assert with_queues(distilling, features=9, gigabytes=2.99 * batch).feature_slots == 2


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("final_logit_softcapping", 30.0, True),
        ("final_logit_softcapping", None, False),
        ("logit_scale", 0.0625, True),
        ("logit_scale", None, False),
        ("logits_scaling", 8, True),
        ("logits_scaling", 1.0, False),
    ],
)
def test_distillation_is_refused_where_the_target_changes_its_heads_output(
    name: str, value: float | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing() -> Any:
        config = tiny_config()
        setattr(config, name, value)
        return config

    monkeypatch.setattr(load, "tiny_config", changing)
    check(CONFIG)
    distilling = replace(CONFIG, loss=LossConfig(objective="distillation"))
    if not refused:
        assert check(distilling).keep_last
        return
    with pytest.raises(ConfigError) as caught:
        check(distilling)
    assert str(caught.value) == (
        f"loss.objective distillation cannot learn the distribution of target 'tiny', which changes its head's output "
        f"({name} {value:g}): choose cross_entropy or dpace"
    )


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
