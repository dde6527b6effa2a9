"""trainer/cli.py: flags, a TOML file and a resumed run's config, in that order of weight, become one config."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.__main__ import main
from trainer.cli import flags, parse, read_train_config
from trainer.config import (
    BatchesConfig,
    CheckpointConfig,
    DatasetConfig,
    DrafterConfig,
    LossConfig,
    OptimizerConfig,
    QueuesConfig,
    TrainConfig,
    WatchConfig,
)
from trainer.evaluate.plan import EvaluateOptions
from trainer.formats.export import ExportConfig
from trainer.prepare.command import PrepareConfig

NEEDED = ["--target", "tiny", "--data", "demo"]
Refused = Callable[..., str]


def unboxed(text: str) -> str:
    """What stands in the boxes that tyro draws, in one line."""
    return " ".join(re.sub(r"[│╭╮╰╯─]|\x1b\[[\d;]*m", " ", text).split())


@pytest.fixture
def toml(tmp_path: Path) -> Callable[[str], list[str]]:
    """The flags that name a TOML file of this content."""

    def write(text: str) -> list[str]:
        (tmp_path / "run.toml").write_text(text)
        return ["--config", str(tmp_path / "run.toml")]

    return write


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """What is said to somebody whose command cannot work: on stderr, with exit code 2, without a traceback."""
    monkeypatch.setenv("COLUMNS", "200")

    def ask(*words: str) -> str:
        try:
            code = main(["train", *words])
        except SystemExit as error:
            code = error.code
        said = capsys.readouterr()
        assert code == 2
        assert said.out == ""
        assert "Traceback" not in said.err
        return unboxed(said.err)

    return ask


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of runs with one in it, `first`, trained with other values than the defaults."""
    config = TrainConfig(
        target="their-model",
        data="their-data",
        runs="elsewhere",
        name="first",
        max_steps=70,
        target_devices=("cpu", "cpu"),
        dataset=DatasetConfig(template_args={"enable_thinking": "false"}),
        drafter=DrafterConfig(block_size=8, target_layer_ids=(1, 2)),
    )
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "run.json").write_text(json.dumps({"config": dataclasses.asdict(config)}))
    return tmp_path / "runs"


# Flags.


def test_flags_fill_the_config() -> None:
    words = ["--drafter.block-size", "8", "--target-devices", "cpu", "cuda:1", "--max-steps", "5", "--watch.port", "-1"]
    words += ["--dataset.template-args", "enable_thinking", "false", "level", "2", "--loss.gamma", "3", "--precision", "float32"]
    config = read_train_config([*NEEDED, *words])
    assert config == TrainConfig(
        target="tiny",
        data="demo",
        max_steps=5,
        target_devices=("cpu", "cuda:1"),
        precision="float32",
        drafter=DrafterConfig(block_size=8),
        watch=WatchConfig(port=-1),
        loss=LossConfig(gamma=3.0),
        dataset=DatasetConfig(template_args={"enable_thinking": "false", "level": "2"}),
    )


def test_of_a_flag_given_twice_the_last_counts() -> None:
    config = read_train_config([*NEEDED, "--seed", "1", "--target-devices", "a", "b", "--seed", "2", "--target-devices", "c"])
    assert (config.seed, config.target_devices) == (2, ("c",))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["--target"]),
        (["--target", "tiny"], ["--data"]),
        ([*NEEDED, "--drafter.blok-size", "8"], ["Unrecognized options: --drafter.blok-size", "--drafter.block-size"]),
        ([*NEEDED, "--drafter.block", "8"], ["Unrecognized options: --drafter.block"]),
        ([*NEEDED, "--drafter.block-size", "1"], ["train: --drafter.block-size must be at least 2 (one anchor, one guess), got 1"]),
        ([*NEEDED, "--drafter.block-size", "eight"], ["--drafter.block-size", "eight"]),
        ([*NEEDED, "--seed", "1.5"], ["--seed", "1.5"]),
        ([*NEEDED, "--watch.console", "loud"], ["loud", "auto", "plain"]),
        ([*NEEDED, "--dataset.max-length", "9000"], ["train: --batches.token-budget must be at least --dataset.max-length (9000)"]),
        ([*NEEDED, "--optimizer.weight-decay", "-1e-5"], ["train: --optimizer.weight-decay must be 0 or more, got -1e-05"]),
    ],
)
def test_wrong_flags_are_told(refused: Refused, words: list[str], said: list[str]) -> None:
    message = refused(*words)
    for text in said:
        assert text in message


def knobs(kind: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(field.default_factory):
            yield from knobs(field.default_factory, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field.default


def test_help_names_every_knob_with_its_default(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")  # wider ones are set in two columns
    with pytest.raises(SystemExit) as ended:
        read_train_config(["--help"])
    assert ended.value.code == 0
    text = unboxed(capsys.readouterr().out)
    assert "usage: python -m trainer train" in text
    for name, default in knobs(TrainConfig):
        flag = "--" + name.replace("_", "-")
        (told,) = re.findall(rf"{flag} (?:\{{|\[|[A-Z])(.*?\((?:required|default: .*?)\))", text)
        if default is dataclasses.MISSING:
            assert told.endswith("(required)") or name == "dataset.template_args"
        else:
            shown = " ".join(default) if isinstance(default, tuple) else default
            assert told.endswith(f"(default: {shown})")
        assert len(told.split()) > 4, "and says what it is"


# A file.


def test_a_file_may_set_everything_and_flags_win(toml: Callable[[str], list[str]]) -> None:
    file = toml("""
        target = "their-model"
        data = "their-data"
        seed = 3
        target_devices = ["cpu", "cpu"]
        watch.port = -1
        [drafter]
        block_size = 8
        target_layer_ids = [1, 5]
        [dataset]
        template_args = {enable_thinking = false, level = 2, style = "plain", roles = ["a", "b"]}
        [optimizer]
        learning_rate = 1e-5
    """)
    config = read_train_config([*file, "--seed", "4", "--drafter.block-size", "12", "--target", "mine"])
    assert (config.target, config.data, config.seed) == ("mine", "their-data", 4)
    assert (config.target_devices, config.watch.port) == (("cpu", "cpu"), -1)
    assert (config.drafter.block_size, config.drafter.target_layer_ids) == (12, (1, 5))
    assert config.optimizer.learning_rate == 1e-5
    assert config.dataset.template_values() == {"enable_thinking": False, "level": 2, "style": "plain", "roles": ["a", "b"]}
    assert config.config == file[1], "and the record tells where it came from"


def test_a_file_that_an_editor_marked_as_utf_8_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b'\xef\xbb\xbftarget = "tiny"\r\ndata = "demo"\r\n')
    assert read_train_config(["--config", str(path)]).target == "tiny"


def test_home_is_meant_by_a_tilde_in_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file no shell expands it, nor behind a `=`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run.toml").write_text(
        'target = "~/t"\ndata = "~/d"\nruns = "~/r"\n[watch]\ntoken_file = "~/k"\nannounce = "~/a"\n'
    )
    config = read_train_config(["--config=~/run.toml", "--from=~/f", "--evaluate.prompts=~/p"])
    paths = (config.target, config.data, config.runs, config.warm_start, config.evaluate.prompts, config.watch.token_file)
    assert (*paths, config.watch.announce) == tuple(str(tmp_path / name) for name in "tdrfpka")
    prepare = parse(PrepareConfig, "prepare", ["--target=~/t", "--prompts=~/p", "--output=~/o"])
    evaluate = parse(
        EvaluateOptions, "evaluate", ["--checkpoint=~/c", "--prompts=~/p", "--target=~/t", "--runs=~/r", "--output=~/o"]
    )
    export = parse(ExportConfig, "export", ["--output=~/o", "--checkpoint=~/c", "--target=~/t", "--runs=~/r"])
    given = [
        *(prepare.target, prepare.prompts, prepare.output),
        *(evaluate.checkpoint, evaluate.prompts, evaluate.target, evaluate.runs, evaluate.output),
        *(export.output, export.checkpoint, export.target, export.runs),
    ]
    assert given == [str(tmp_path / name) for name in "tpocptrooctr"]


def test_a_home_that_nobody_has_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", "~nobody-of-this-name/run.toml"]) == 2
    assert "--config ~nobody-of-this-name/run.toml cannot be read" in capsys.readouterr().err


def test_flags_win_wherever_they_stand(toml: Callable[[str], list[str]]) -> None:
    file = toml("seed = 3")
    assert read_train_config(["--seed", "4", *NEEDED, *file]).seed == 4
    assert read_train_config(["--seed=4", *NEEDED, f"--config={file[1]}"]).seed == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("blok_size = 8", "--blok-size"),
        ("[drafter]\nblok_size = 8", "--drafter.blok-size"),
        ("[drafting]\nblock_size = 8", "--drafting.block-size"),
        ("drafter = 8", "--drafter"),
        ("seed = {a = 1}", "--seed.a"),
        ("seed = true", "--seed"),
        ("[drafter]\nblock_size = 1", "--drafter.block-size must be at least 2 (one anchor, one guess), got 1"),
        ('[drafter]\nblock_size = "x"', "--drafter.block-size"),
        ("[drafter", "run.toml is not valid TOML: Expected ']'"),
        ("seed = 1\nseed = 2", "run.toml is not valid TOML: Cannot overwrite a value"),
        ('resume = "first"', "run.toml sets resume: give --resume on the command line instead"),
        ('config = "other.toml"', "run.toml sets config: give --config on the command line instead"),
    ],
)
def test_a_wrong_file_is_told(refused: Refused, toml: Callable[[str], list[str]], text: str, said: str) -> None:
    assert said in refused(*NEEDED, *toml(text))


def test_a_file_that_cannot_be_read_is_told(refused: Refused, tmp_path: Path) -> None:
    assert "nowhere.toml cannot be read: No such file or directory" in refused(*NEEDED, "--config", "nowhere.toml")
    assert "cannot be read: Is a directory" in refused(*NEEDED, "--config", str(tmp_path))
    (tmp_path / "weights.toml").write_bytes(b"\xff\xfe\x00")
    assert "weights.toml is not valid TOML" in refused(*NEEDED, "--config", str(tmp_path / "weights.toml"))


# A run that is resumed.


def test_a_resumed_run_brings_its_config_and_flags_win(runs: Path) -> None:
    config = read_train_config(["--resume", "first", "--runs", str(runs), "--max-steps", "90", "--target-devices", "cpu"])
    assert (config.target, config.data, config.max_steps) == ("their-model", "their-data", 90)
    assert (config.target_devices, config.drafter.block_size, config.drafter.target_layer_ids) == (("cpu",), 8, (1, 2))
    assert config.dataset.template_args == {"enable_thinking": "false"}
    assert (config.resume, config.runs, config.name) == ("first", str(runs), None), "these belong to the attempt"


def test_a_file_is_between_the_run_and_the_flags(runs: Path, toml: Callable[[str], list[str]]) -> None:
    file = toml(f'runs = "{runs}"\nmax_steps = 80\nseed = 5')
    config = read_train_config(["--resume", "first", *file, "--seed", "6"])
    assert (config.target, config.max_steps, config.seed) == ("their-model", 80, 6)


def test_a_limit_of_the_run_can_be_taken_away(runs: Path) -> None:
    assert read_train_config(["--resume", "first", "--runs", str(runs), "--max-steps", "None"]).max_steps is None


def test_a_run_that_is_not_there_is_told(refused: Refused, runs: Path) -> None:
    message = refused("--resume", "second", "--runs", str(runs))
    assert "'second'" in message
    assert "first" in message


# There and back.

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12)
plain_words = words.filter(lambda word: not word.startswith("-"))
rates = st.floats(1e-9, 0.9)
configs = st.builds(
    TrainConfig,
    target=words,
    data=words,
    runs=words,
    name=st.none() | st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True).filter(lambda name: name != "None"),
    seed=st.integers(0, 2**63 - 1),
    max_steps=st.none() | st.integers(1, 10**9),
    target_devices=st.lists(plain_words, min_size=1, max_size=3).map(tuple),
    precision=st.sampled_from(["auto", "float32", "bfloat16"]),
    dataset=st.builds(
        DatasetConfig, max_length=st.integers(64, 4096), template_args=st.dictionaries(plain_words, plain_words, max_size=3)
    ),
    batches=st.builds(BatchesConfig, token_budget=st.integers(4096, 10**6), epochs=st.integers(1, 99)),
    drafter=st.builds(
        DrafterConfig,
        block_size=st.integers(2, 64),
        target_layer_ids=st.sets(st.integers(0, 60), max_size=4).map(lambda ids: tuple(sorted(ids))),
        mask_token_id=st.none() | st.integers(0, 10**6),
    ),
    loss=st.builds(LossConfig, gamma=st.none() | st.floats(1e-3, 1e9)),
    optimizer=st.builds(OptimizerConfig, learning_rate=rates, weight_decay=rates, warmup_ratio=rates, clip=st.floats(1e-9)),
    queues=st.builds(QueuesConfig, samples=st.integers(1, 999), gigabytes=st.floats(1e-6, 1e3)),
    checkpoint=st.builds(CheckpointConfig, every=st.integers(0, 999), keep=st.integers(1, 9)),
    watch=st.builds(
        WatchConfig,
        host=st.sampled_from(["127.0.0.1", "::1", "localhost"]),
        port=st.integers(-1, 65535),
        allow_hosts=st.lists(plain_words, max_size=2).map(tuple),
        console=st.sampled_from(["auto", "live", "plain", "off"]),
    ),
)


@settings(max_examples=15, deadline=None)
@given(config=configs)
def test_flags_of_a_config_make_that_config(config: TrainConfig) -> None:
    assert parse(TrainConfig, "train", flags(dataclasses.asdict(config))) == config


def test_flags_through_json_as_in_a_run_record() -> None:
    config = TrainConfig(target="-t", data="a b=c", drafter=DrafterConfig(target_layer_ids=(1, 3)), loss=LossConfig(gamma=2.5))
    assert parse(TrainConfig, "train", flags(json.loads(json.dumps(dataclasses.asdict(config))))) == config


def test_nothing_is_said_of_none() -> None:
    assert flags({"name": None, "drafter": {"mask_token_id": None}}) == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "prepare --target tiny --prompts stdlib --output out --top-p 0.5",
            "--top-p must be left out where temperature is 0, which always takes the likeliest token, got 0.5",
        ),
        ("evaluate --checkpoint a --prompts stdlib --limit 0", "--limit must be at least 1, got 0"),
        ("evaluate --checkpoint a --prompts stdlib --top-k -1", "--top-k must be 0 (all tokens) or more, got -1"),
        ("export --output out", "there is nothing to export: give --checkpoint, or --dry-run with --target"),
        ("export --output out --dry-run", "--target must be given with --dry-run, as there is no run to take it from"),
        (
            "export --output out --checkpoint a --drafter.layers 2 --drafter.target-layer-ids 1 3",
            "--drafter.layers 2 --drafter.target-layer-ids 1 3 only goes with --dry-run: a trained drafter has its shape",
        ),
        ("train --target tiny --data demo --dataset.max-length 7", "--dataset.max-length must be at least 8 tokens, got 7"),
        (
            "train --target tiny --data demo --resume a --from b",
            "--from must be left out with --resume: a run continues from its own checkpoint, got 'b'",
        ),
    ],
)
def test_a_value_that_cannot_work_is_one_sentence_of_any_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, said: str
) -> None:
    monkeypatch.setattr("trainer.cli.config_of", lambda run: {})
    monkeypatch.setattr("trainer.cli.find_run", lambda name, runs: runs)
    name, *words = command.split()
    assert main([name, *words]) == 2
    assert capsys.readouterr().err == f"{name}: {said}\n"


@pytest.mark.parametrize("words", ["--trackers wandb,tensorboard", "--trackers wandb tensorboard", "--trackers=wandb,tensorboard"])
def test_trackers_are_parted_by_commas_or_spaces(words: str) -> None:
    assert read_train_config([*NEEDED, *words.split(), "--seed", "3"]) == TrainConfig(
        target="tiny", data="demo", trackers=("wandb", "tensorboard"), seed=3
    )
    assert read_train_config([*NEEDED, "--trackers"]).trackers == ()


def test_trackers_in_a_file(toml: Callable[[str], list[str]]) -> None:
    for text in ('trackers = ["wandb", "tensorboard"]', 'trackers = "wandb,tensorboard"'):
        assert read_train_config([*NEEDED, *toml(text)]).trackers == ("wandb", "tensorboard")


def test_an_unknown_tracker_is_named(refused: Refused) -> None:
    assert refused(*NEEDED, "--trackers", "wandb,neptune") == (
        "train: --trackers must be among wandb, tensorboard, got ('wandb', 'neptune')"
    )
