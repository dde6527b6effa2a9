"""trainer/config.py: each wrong value is answered with the flag, the value and the way out."""

import ast
import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from tests.support.sources import ROOT, tree
from trainer.config import DatasetConfig, LossConfig, Objective, TrainConfig
from trainer.errors import ConfigError, flag_of, require
from trainer.record.format import LOSS_UNITS

ENOUGH = 55  # watching by others (token, announcing, lingering, GPUs, trackers) brought five; more than this and some should go

# Values that cannot work, and what is said of them. Loose ends of each range: just outside, far outside, not a number.
WRONG: dict[str, list[tuple[Any, str]]] = {
    "target": [("", "a folder, a hub id")],
    "data": [("", "datasets.save_to_disk")],
    "name": [(name, "1 to 64 letters") for name in ("", ".", "..", ".hidden", "a/b", "a b", "ü", "x" * 65, "a\n")],
    "seed": [(-1, "from 0"), (2**63, "2**63 - 1")],
    "max_steps": [(0, "at least 1"), (-5, "at least 1")],
    "target_devices": [((), "at least one device")],
    "cpu_threads": [(0, "at least 1"), (-1, "at least 1")],
    "dataset.max_length": [(7, "at least 8 tokens"), (-1, "at least 8 tokens"), (8193, "--batches.token-budget must be at least")],
    "batches.token_budget": [(7, "at least 8 tokens"), (3071, "at least --dataset.max-length (3072)")],
    "batches.epochs": [(0, "at least 1")],
    "drafter.block_size": [
        (1, "at least 2 (one anchor, one guess)"),
        (0, "at least 2"),
        (3073, "at most --dataset.max-length (3072)"),
    ],
    "drafter.layers": [(0, "at least 1")],
    "drafter.anchors": [(0, "at least 1")],
    "drafter.target_layers": [(0, "at least 1")],
    "drafter.target_layer_ids": [((3, 1), "in rising order"), ((1, 1), "distinct"), ((-1, 2), "from 0")],
    "loss.gamma": [(0.0, "above 0"), (-1.0, "above 0"), (math.nan, "above 0")],
    "loss.dpace_alpha": [(value, "above 0 and at most 1") for value in (0.0, -0.1, 1.01, math.nan)],
    "optimizer.learning_rate": [(value, "between 0 and 1") for value in (0.0, -1e-3, 1.0, math.nan, math.inf)],
    "optimizer.weight_decay": [(value, "0 or more") for value in (-0.1, math.nan, math.inf)],
    "optimizer.warmup_ratio": [(value, "from 0 to 1") for value in (-0.01, 1.01, math.nan)],
    "optimizer.clip": [(value, "above 0") for value in (0.0, -1.0, math.nan)],
    "optimizer.accumulate": [(0, "at least 1")],
    "queues.samples": [(0, "at least 1 item")],
    "queues.batches": [(0, "at least 1 item")],
    "queues.features": [(0, "at least 1 item")],
    "queues.gigabytes": [(value, "above 0") for value in (0.0, -1.0, math.nan, math.inf)],
    "evaluate.every": [(-1, "0 or more steps")],
    "evaluate.limit": [(0, "at least 1 prompt"), (-1, "at least 1 prompt")],
    "evaluate.max_new_tokens": [(1, "at least 2"), (0, "at least 2")],
    "checkpoint.every": [(-1, "0 or more steps")],
    "checkpoint.keep": [(0, "at least 1")],
    "watch.host": [
        (host, "a loopback address such as 127.0.0.1, or another address of this machine with --watch.token-file")
        for host in ("0.0.0.0", "::", "192.168.1.2", "", "127.evil.example", "example.com")
    ],
    "watch.port": [(-2, "from -1 to 65535"), (65536, "from -1 to 65535")],
    "watch.sample_seconds": [(value, "from 0.05 to 60") for value in (0.0, 0.04, 61.0, math.nan, math.inf)],
    "watch.stall_seconds": [(value, "above 0") for value in (0.0, -1.0, math.nan)],
    "watch.gpu_seconds": [(value, "from 1 to 60, or 0 for none") for value in (-1.0, 0.5, 61.0, math.nan, math.inf)],
    "watch.linger_seconds": [(value, "from 0 to 3600") for value in (-1.0, 3601.0, math.nan, math.inf)],
    "watch.token_file": [("", "a file")],
    "watch.announce": [("", "a folder")],
    "trackers": [(("mlflow",), "among wandb, tensorboard")],
}
# Whether these can work is only known of the machine, the target or the data; or their type says all.
CHECKED_LATER = {
    "runs",
    "config",
    "resume",
    "warm_start",
    "evaluate.prompts",
    "drafter_device",
    "precision",
    "dataset.template_args",
    "drafter.mask_token_id",
    "loss.objective",
    "watch.allow_hosts",
    "watch.console",
}


def fields(kind: type, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Every knob by its dotted name."""
    for field in dataclasses.fields(kind):
        part = field.default_factory
        if dataclasses.is_dataclass(part):
            yield from fields(part, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field


def parts() -> list[type]:
    return [
        TrainConfig,
        *(f.default_factory for f in dataclasses.fields(TrainConfig) if dataclasses.is_dataclass(f.default_factory)),
    ]


def config_with(name: str, value: Any) -> TrainConfig:
    part, _, field = name.rpartition(".")
    given = {"target": "tiny", "data": "demo"}
    if not part:
        return TrainConfig(**{**given, field: value})
    kind = next(f.default_factory for f in dataclasses.fields(TrainConfig) if f.name == part)
    return TrainConfig(**given, **{part: kind(**{field: value})})


def message_of(name: str, value: Any) -> str:
    """What a wrong value is refused with, "" where it is taken."""
    try:
        config_with(name, value)
    except ConfigError as error:
        return str(error)
    return ""


def test_a_wrong_value_is_told_with_its_flag_and_the_way_out() -> None:
    def is_told(message: str, name: str, value: Any, way_out: str) -> bool:
        return all(part in message for part in (flag_of(name), repr(value), " must be ", way_out)) and "\n" not in message

    cases = [(name, value, way_out) for name, listed in WRONG.items() for value, way_out in listed]
    assert [(*case, said) for case in cases if not is_told(said := message_of(*case[:2]), *case)] == []


def test_what_was_not_given_is_not_told() -> None:
    with pytest.raises(ConfigError) as caught:
        require(False, "target_devices", "given", None)
    assert str(caught.value) == "--target-devices must be given"


def test_a_decay_that_the_objective_would_ignore_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        LossConfig(objective="dpace", gamma=7.0)
    assert str(caught.value) == "--loss.gamma must be left out where --loss.objective is dpace: it has no decay, got 7.0"
    assert LossConfig(objective="distillation", gamma=7.0).gamma == 7.0


def test_every_knob_has_wrong_values_or_a_reason() -> None:
    names = {name for name, _ in fields(TrainConfig)}
    assert names == WRONG.keys() | CHECKED_LATER
    assert WRONG.keys() & CHECKED_LATER == set()


def test_no_number_may_be_nan() -> None:
    numbers = [name for name, field in fields(TrainConfig) if "float" in str(field.type)]
    assert len(numbers) > 10
    assert [name for name in numbers if not message_of(name, math.nan)] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", "x" * 64),
        ("name", "2026-11-30_a.b"),
        ("seed", 2**63 - 1),
        ("dataset.max_length", 16),
        ("batches.token_budget", 3072),
        ("drafter.block_size", 2),
        ("drafter.block_size", 3072),
        ("drafter.target_layer_ids", (0, 4, 9)),
        ("loss.gamma", 7.0),
        ("loss.dpace_alpha", 1.0),
        ("optimizer.warmup_ratio", 0.0),
        ("optimizer.warmup_ratio", 1.0),
        ("optimizer.clip", math.inf),
        ("checkpoint.every", 0),
        ("watch.host", "localhost"),
        ("watch.host", "::1"),
        ("watch.host", "127.1.2.3"),
        ("watch.port", -1),
        ("watch.port", 0),
        ("watch.port", 65535),
        ("watch.stall_seconds", math.inf),
    ],
)
def test_what_can_work_is_taken(name: str, value: Any) -> None:
    config_with(name, value)


def test_the_defaults_can_work() -> None:
    config = TrainConfig(target="tiny", data="demo")
    assert (config.drafter.block_size, config.precision, config.target_devices) == (16, "auto", ("auto",))


@pytest.mark.parametrize("kind", parts(), ids=lambda kind: kind.__name__)
def test_a_config_is_frozen_and_its_fields_are_named(kind: type) -> None:
    given = {"target": "tiny", "data": "demo"} if kind is TrainConfig else {}
    config = kind(**given)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, dataclasses.fields(kind)[0].name, 1)
    with pytest.raises(TypeError):
        kind("tiny", "demo")


def test_there_are_not_too_many_knobs() -> None:
    assert len(list(fields(TrainConfig))) < ENOUGH


def explained(node: ast.ClassDef) -> set[str]:
    """The fields of a class that are followed by a docstring."""
    pairs = itertools.pairwise(node.body)
    return {ast.unparse(one.target) for one, after in pairs if isinstance(one, ast.AnnAssign) and isinstance(after, ast.Expr)}


def test_every_knob_is_explained() -> None:
    classes = {node.name: node for node in tree(ROOT / "trainer" / "config.py").body if isinstance(node, ast.ClassDef)}
    for kind in parts():
        own = {field.name for field in dataclasses.fields(kind) if not dataclasses.is_dataclass(field.default_factory)}
        assert own - explained(classes[kind.__name__]) == set()


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("true", True),
        ("False", False),
        ("null", None),
        ("None", None),
        ("3", 3),
        ("2.5", 2.5),
        ("medium", "medium"),
        ('"3"', "3"),
        ("[1, 2]", [1, 2]),
        ('{"a": 1}', {"a": 1}),
        ("", ""),
        ("not json: [", "not json: ["),
    ],
)
def test_template_arguments_are_json_or_bare_words(word: str, value: Any) -> None:
    assert DatasetConfig(template_args={"enable_thinking": word}).template_values() == {"enable_thinking": value}


def test_a_resumed_run_begins_with_nothing_but_its_checkpoint() -> None:
    with pytest.raises(ConfigError, match=r"^--from must be left out with --resume"):
        TrainConfig(target="tiny", data="demo", resume="a", warm_start="b")


def test_every_objective_has_a_unit_for_its_loss() -> None:
    assert set(LOSS_UNITS) == set(get_args(Objective))
