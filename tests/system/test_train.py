"""Whole runs, in this process, on the tiny target: what design.md promises of order, failure, resume and bad input."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
from safetensors.torch import load_file

from tests.support.lines import unknown_to_the_format
from trainer.__main__ import EXIT_FAILED, EXIT_UNUSABLE, main
from trainer.cli import read_train_config
from trainer.drafter import checkpoint as checkpoints
from trainer.run.folder import alone_in
from trainer.target import features as targets
from trainer.train import train

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu"]


def conversation(number: int) -> dict[str, Any]:
    answer = " ".join(WORDS[(number + place) % len(WORDS)] for place in range(4 + number % 5))
    return {"messages": [{"role": "user", "content": f"Say {number}."}, {"role": "assistant", "content": answer}]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("data") / "conversations"
    datasets.Dataset.from_list([conversation(number) for number in range(24)]).save_to_disk(folder)
    return str(folder)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "runs"
    ours = ("dataset", "batches", "target", "sampler", "record-writer", "console")
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(ours)]


def words(data: str, runs: Path, *more: str) -> list[str]:
    fixed = f"""--target tiny --data {data} --runs {runs} --dataset.max-length 128 --batches.token-budget 128 --drafter.block-size 4
        --drafter.layers 1 --drafter.anchors 8 --watch.port -1 --watch.console off --watch.sample-seconds 0.05 --cpu-threads 1"""
    return [*fixed.split(), *more]


def run(data: str, runs: Path, *more: str) -> None:
    train(read_train_config(words(data, runs, *more)), ["test"])


def lines(runs: Path, name: str, file: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (runs / name / file).read_text().splitlines()]
    assert file != "events.jsonl" or [unknown for row in rows if (unknown := unknown_to_the_format(row))] == []
    return rows


def weights(runs: Path, name: str) -> dict[str, Any]:
    folder = runs / name / "checkpoints"
    return load_file(folder / (folder / "latest").read_text().strip() / "drafter.safetensors")


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


def test_any_number_of_target_threads_gives_the_same_weights(data: str, runs: Path) -> None:
    run(data, runs, "--name", "one", "--max-steps", "8")
    run(data, runs, "--name", "three", "--max-steps", "8", "--target-devices", "cpu", "cpu", "cpu")
    assert same(weights(runs, "one"), weights(runs, "three"))
    losses = [[line["loss"] for line in lines(runs, name, "steps.jsonl")] for name in ("one", "three")]
    assert losses[0] == losses[1]
    run(data, runs, "--name", "other", "--max-steps", "8", "--seed", "1")
    assert not same(weights(runs, "one"), weights(runs, "other"))


def test_stopped_and_resumed_is_as_if_it_had_never_stopped(data: str, runs: Path) -> None:
    run(data, runs, "--name", "straight", "--max-steps", "12", "--optimizer.accumulate", "2")
    run(data, runs, "--name", "twice", "--max-steps", "12", "--optimizer.accumulate", "2", "--checkpoint.every", "5")
    # As after a crash between two checkpoints: only the one of step 5 is left.
    for step in (10, 12):
        folder = runs / "twice" / "checkpoints" / f"step-{step:09d}"
        (folder / "state.json").unlink()
    train(read_train_config(["--resume", "twice", "--runs", str(runs)]), ["test"])
    assert same(weights(runs, "straight"), weights(runs, "twice"))
    steps = lines(runs, "twice", "steps.jsonl")
    assert [(line["attempt"], line["step"]) for line in steps] == [(0, n) for n in range(1, 13)] + [(1, n) for n in range(6, 13)]
    assert [line["loss"] for line in steps[12:]] == [line["loss"] for line in steps[5:12]]
    events = lines(runs, "twice", "events.jsonl")
    assert [event["event"] for event in events if event["attempt"] == 1][:2] == ["resumed", "warning"]
    told = [event["message"] for event in events if event["event"] == "warning" and event["attempt"] == 1]
    assert "step-000000012 is broken" in told[0]


def test_bfloat16_learns_too_and_keeps_float32_weights(data: str, runs: Path) -> None:
    run(data, runs, "--name", "half", "--max-steps", "20", "--precision", "bfloat16", "--optimizer.learning-rate", "3e-3")
    steps = lines(runs, "half", "steps.jsonl")
    assert steps[-1]["loss"] < 0.8 * steps[0]["loss"]
    assert {str(tensor.dtype) for tensor in weights(runs, "half").values()} == {"torch.float32"}


def test_the_data_ends_the_run_when_it_is_used_up(data: str, runs: Path) -> None:
    run(data, runs, "--name", "short", "--batches.epochs", "2", "--optimizer.accumulate", "3")
    steps = lines(runs, "short", "steps.jsonl")
    assert steps[-1]["samples"] == 48, "every conversation once per epoch, the last incomplete group of batches included"
    assert steps[-1]["epoch"] == 2
    assert 0 < steps[-1]["learning_rate"] < 0.1 * max(line["learning_rate"] for line in steps)


@pytest.mark.parametrize("stage", ["dataset", "batches", "target", "drafter"])
def test_a_failure_in_a_stage_ends_the_run_and_says_where(
    data: str, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stage: str
) -> None:
    broken = {
        "dataset": "trainer.data.samples.tokenise",
        "batches": "trainer.data.batches.batch_of",
        "target": "trainer.target.features.FeatureExtractor._run",
        "drafter": "trainer.drafter.learner.drafter_loss",
    }[stage]
    calls = []

    def fail(*_: object, **__: object) -> None:
        calls.append(threading.current_thread().name)
        raise ZeroDivisionError("made to fail")

    monkeypatch.setattr(broken, fail)
    assert main(["train", *words(data, runs, "--name", "broken", "--max-steps", "8")]) == EXIT_FAILED
    assert calls
    (failed,) = [event for event in lines(runs, "broken", "events.jsonl") if event["event"] == "failed"]
    assert failed["stage"] == stage
    assert failed["error"] == "ZeroDivisionError: made to fail"
    assert "in fail" in failed["traceback"]
    assert lines(runs, "broken", "telemetry.jsonl")[-1]["verdict"]["state"] == "failed"


def test_features_that_stay_non_finite_end_the_run_and_keep_the_good_checkpoint(
    data: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = targets.FeatureExtractor._run
    seen = []

    def poison(self: Any, batch: Any, feature_TF: Any) -> None:
        whole(self, batch, feature_TF)
        seen.append(batch.seq)
        if batch.seq >= 6:
            feature_TF.fill_(float("nan"))

    monkeypatch.setattr(targets.FeatureExtractor, "_run", poison)
    assert main(["train", *words(data, runs, "--name", "nan", "--max-steps", "40", "--checkpoint.every", "5")]) == EXIT_FAILED
    steps = lines(runs, "nan", "steps.jsonl")
    assert [line["loss"] for line in steps[6:]] == ["NaN"] * (len(steps) - 6)
    good = checkpoints.read_checkpoint(runs / "nan" / "checkpoints" / "step-000000005")
    assert all(tensor.isfinite().all() for tensor in good.weights.values())
    assert all(tensor.isfinite().all() for tensor in weights(runs, "nan").values())
    (failed,) = [event for event in lines(runs, "nan", "events.jsonl") if event["event"] == "failed"]
    assert re.search("target 'tiny' in float32 .*not finite.*--precision", failed["error"])


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run_early(
    data: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainer.drafter.checkpoint.save_file", full)
    assert main(["train", *words(data, runs, "--name", "full", "--max-steps", "6", "--checkpoint.every", "2")]) == EXIT_FAILED
    assert len(lines(runs, "full", "steps.jsonl")) == 6
    failures = [event for event in lines(runs, "full", "events.jsonl") if event["event"] == "checkpoint_failed"]
    assert [event["step"] for event in failures] == [2, 4, 6, 6], "tried once more at the end"
    assert "No space left" in failures[0]["message"]
    assert list((runs / "full" / "checkpoints").iterdir()) == []
    last = lines(runs, "full", "events.jsonl")[-1]
    sentence = (
        "the checkpoint of the last step, 6, could not be written (No space left on device), and there is none; make room first"
    )
    assert (last["error"], last["traceback"]) == (sentence, sentence)


def test_conversations_that_teach_nothing_are_counted_and_named_once(tmp_path: Path, runs: Path) -> None:
    rows = [conversation(number) for number in range(8)] + [{"messages": [{"role": "user", "content": "Nobody answers."}]}] * 3
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "data")
    run(str(tmp_path / "data"), runs, "--name", "drops", "--batches.epochs", "3")
    dropped = [event for event in lines(runs, "drops", "events.jsonl") if event["event"] == "dropped"]
    assert len(dropped) == 1
    assert dropped[0]["reason"] == "no_answer"
    assert lines(runs, "drops", "steps.jsonl")[-1]["samples"] == 24


BAD = {
    "no data": (["--data", "/nowhere"], "'/nowhere' is no folder"),
    "no model": (["--target", "./nowhere"], "'./nowhere'"),
    "no device": (["--drafter-device", "cuda:7"], "'cuda:7', but this machine has"),
    "small budget": (["--batches.token-budget", "16"], "--batches.token-budget must be at least"),
    "block of one": (["--drafter.block-size", "1"], "at least 2 (one anchor, one guess), got 1"),
    "end token as mask": (["--drafter.mask-token-id", "257"], "257"),
    "pad token as mask": (["--drafter.mask-token-id", "258"], "258"),
    "common token as mask": (["--drafter.mask-token-id", "101"], "got 101 (e), which 24 of the 24 conversations examined hold"),
    "no such layer": (["--drafter.target-layer-ids", "1", "9"], "must lie between 0 and 6 for this target, got 9"),
    "nothing to begin with": (["--from", "nothing"], "'nothing' is no folder and no run in"),
    "too many layers": (["--drafter.target-layers", "50"], "target_layers"),
    "too long": (["--dataset.max-length", "9000", "--batches.token-budget", "9000"], "at most the target's 4096 positions"),
    "broken name": (["--name", "../x"], "'../x'"),
    "nothing to resume": (["--resume", "nothing"], "'nothing', which is no run"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_sentence_and_leaves_nothing(data: str, runs: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    more, sentence = BAD[case]
    try:
        code = main(["train", *words(data, runs, *more)])
    except SystemExit as end:  # the command line's own refusals
        code = end.code
    told = capsys.readouterr().err
    assert code == EXIT_UNUSABLE
    assert sentence in " ".join(told.replace("│", " ").split())
    assert "Traceback" not in told
    assert not runs.exists()


def test_a_run_that_exists_is_not_touched(data: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(data, runs, "--name", "first", "--max-steps", "2")
    before = {path: path.stat().st_mtime_ns for path in (runs / "first").rglob("*")}
    assert main(["train", *words(data, runs, "--name", "first")]) == EXIT_UNUSABLE
    assert "--resume first" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in (runs / "first").rglob("*")} == before


def test_a_resumed_run_cannot_change_what_it_is_made_of(data: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(data, runs, "--name", "fixed", "--max-steps", "2")
    assert main(["train", "--resume", "fixed", "--runs", str(runs), "--seed", "5"]) == EXIT_UNUSABLE
    assert "seed is 5, but run 'fixed' was trained with 0" in capsys.readouterr().err


def test_a_slow_batch_under_way_does_not_cost_the_last_checkpoint(data: str, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.pipeline.stages.JOIN_SECONDS", 0.2)
    whole, slow = targets.FeatureExtractor._run, threading.Event()

    def linger(self: Any, batch: Any, feature_TF: Any) -> None:
        if batch.seq >= 4:
            slow.wait(10)
        whole(self, batch, feature_TF)

    monkeypatch.setattr(targets.FeatureExtractor, "_run", linger)
    try:
        assert main(["train", *words(data, runs, "--name", "slow", "--max-steps", "4")]) == 0
    finally:
        slow.set()
        for thread in threading.enumerate():
            if thread.name.startswith("target"):
                thread.join(10)
    assert weights(runs, "slow")
    assert lines(runs, "slow", "events.jsonl")[-1]["event"] == "finished"


def test_a_resume_tells_its_own_flags_and_ends_where_they_say(data: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(data, runs, "--name", "more", "--max-steps", "2")
    assert main(["train", "--resume", "more", "--runs", str(runs)]) == EXIT_UNUSABLE
    assert "has taken its 2 steps: give more with --max-steps" in capsys.readouterr().err
    flags = ("--max-steps", "4", "--optimizer.weight-decay", "0.5")
    train(read_train_config(["--resume", "more", "--runs", str(runs), *flags]), ["again"])
    assert [line["step"] for line in lines(runs, "more", "steps.jsonl")] == [1, 2, 3, 4]
    (resumed,) = [event for event in lines(runs, "more", "events.jsonl") if event["event"] == "resumed"]
    assert resumed["command"] == ["again"]
    assert resumed["config"]["optimizer"]["weight_decay"] == 0.5
    assert lines(runs, "more", "telemetry.jsonl")[-1]["max_steps"] == 4
    train(read_train_config(["--resume", "more", "--runs", str(runs), "--max-steps", "5"]), ["once more"])
    (_, third) = [event for event in lines(runs, "more", "events.jsonl") if event["event"] == "resumed"]
    assert third["config"]["optimizer"]["weight_decay"] == 0.5, "what a resume changed stays changed"


def test_what_goes_wrong_before_there_is_a_run_is_not_silent(data: str, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("the driver is sick")

    monkeypatch.setattr("trainer.train.check", fail)
    with pytest.raises(RuntimeError, match="the driver is sick"):
        main(["train", *words(data, runs)])
    assert not runs.exists()


def test_nobody_else_trains_in_the_same_run(data: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(data, runs, "--name", "mine", "--max-steps", "2")
    with alone_in(runs / "mine"):
        assert main(["train", "--resume", "mine", "--runs", str(runs), "--max-steps", "4"]) == EXIT_UNUSABLE
    assert "run 'mine' is being trained by another process" in capsys.readouterr().err


def test_what_happens_is_in_the_log(data: str, runs: Path) -> None:
    run(data, runs, "--name", "told", "--max-steps", "2", "--checkpoint.every", "1")
    log = (runs / "told" / "log.txt").read_text()
    assert "Started." in log
    assert "Checkpoint of step 1 written" in log


def test_logging_is_left_as_it_was(data: str, runs: Path) -> None:
    before = list(logging.getLogger().handlers)
    run(data, runs, "--name", "log", "--max-steps", "2")
    assert logging.getLogger().handlers == before
