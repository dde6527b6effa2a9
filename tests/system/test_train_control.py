"""Whole runs that are controlled over HTTP, in this process, on the tiny target: what design.md §7 promises of `/control`."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import datasets
import httpx
import pytest

from tests.support.threads import Worker, eventually
from tests.system.test_train import conversation, lines, same, weights, words
from trainer.__main__ import EXIT_FAILED, EXIT_UNUSABLE, main
from trainer.target import features as targets

PAUSE_SECONDS = 1.0
LONG = 60.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("data") / "conversations"
    datasets.Dataset.from_list([conversation(number) for number in range(24)]).save_to_disk(folder)
    return str(folder)


class ControlledRun:
    """A run on a thread, and those who control it; it pauses after its first step."""

    def __init__(self, data: str, folder: Path, name: str, *more: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.runs, self.name = folder / "runs", name
        self.token_file = folder / "secrets" / "token"
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LONG, trust_env=False)
        flags = ["--name", name, "--watch.token-file", str(self.token_file), *more]
        arguments = words(data, self.runs, *flags)
        arguments[arguments.index("--watch.port") + 1] = str(port)
        self.worker = Worker(lambda _: main(["train", *arguments]))

    def __enter__(self) -> ControlledRun:
        eventually(self.answers, LONG)
        self.token = self.token_file.read_text().strip()
        assert self.ask("pause", "lunch")["step"] == 0
        self.reaches("paused")
        return self

    def __exit__(self, *_: object) -> None:
        if self.worker.is_alive():
            self.ask("stop")
            self.worker.ended(LONG)
        self.client.close()

    def answers(self) -> bool:
        assert self.worker.is_alive(), self.worker.result
        try:
            return self.client.get("/healthz").status_code == 200
        except httpx.TransportError:
            time.sleep(0.05)
            return False

    def ask(self, action: str, reason: str = "") -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = self.client.post(f"/control/{action}", headers=headers, json={"reason": reason})
        assert answer.status_code in (200, 202), answer.text
        return dict(answer.json())

    def status(self) -> dict[str, Any]:
        time.sleep(0.05)  # who waits for something asks again and again, and is refused above a rate
        return dict(self.client.get("/status").json())

    def reaches(self, state: str) -> None:
        def is_there() -> bool:
            assert self.worker.is_alive(), self.worker.result
            return bool(self.status()["state"] == state)

        eventually(is_there, LONG)

    def events(self) -> list[str]:
        return [event["event"] for event in lines(self.runs, self.name, "events.jsonl") if event["event"] != "warning"]


def test_a_paused_run_is_as_if_it_had_never_paused(data: str, tmp_path: Path) -> None:
    flags = ("--max-steps", "8", "--optimizer.accumulate", "2", "--watch.stall-seconds", "0.5", "--checkpoint.every", "0")
    assert main(["train", *words(data, tmp_path / "runs", "--name", "straight", *flags)]) == 0
    with ControlledRun(data, tmp_path, "paused", *flags) as run:
        time.sleep(PAUSE_SECONDS)
        status = run.status()
        assert (status["state"], status["step"]) == ("paused", 1)
        assert status["verdict"]["sentence"] == "Paused at step 1."
        assert (status["rates"]["steps_per_second"], status["eta_seconds"]) == (None, None)
        assert {stage["name"]: stage["threads"] for stage in status["stages"]}["drafter"] == 1
        assert run.client.get("/readyz").text == "ready: the run is paused\n"
        run.ask("checkpoint")
        eventually(lambda: run.status()["checkpoint"]["step"] == 1)
        assert run.status()["step"] == 1
        run.ask("resume", "fed")
        assert run.worker.ended(LONG) == 0
    assert same(weights(run.runs, "straight"), weights(run.runs, "paused"))
    steps = {name: lines(run.runs, name, "steps.jsonl") for name in ("straight", "paused")}
    assert [line["loss"] for line in steps["straight"]] == [line["loss"] for line in steps["paused"]]
    assert max(line["step_seconds"] for line in steps["paused"][1:]) < PAUSE_SECONDS, "the pause is no step's"
    asked = ["started", "pause_requested", "paused", "checkpoint_requested", "checkpoint", "resume_requested", "unpaused"]
    happened = run.events()
    assert "stalled" not in happened[happened.index("paused") : happened.index("unpaused")]
    # A machine that is busy with other things may stall a moment at other times.
    assert [event for event in happened if event != "stalled"] == [*asked, "checkpoint", "finished"]
    told = {event["event"]: event for event in lines(run.runs, "paused", "events.jsonl")}
    assert (told["paused"]["reason"], told["paused"]["step"], told["unpaused"]["reason"]) == ("lunch", 1, "fed")
    assert told["unpaused"]["seconds"] > PAUSE_SECONDS
    samples = lines(run.runs, "paused", "telemetry.jsonl")
    assert {sample["verdict"]["state"] for sample in samples if sample["state"] == "paused"} == {"paused"}
    assert samples[-1]["verdict"]["lost_device_hours"] * 3600 < told["unpaused"]["seconds"] / 2, "a pause loses nobody's time"


def test_a_run_is_stopped_in_order_even_while_it_is_paused(data: str, tmp_path: Path) -> None:
    with ControlledRun(data, tmp_path, "stopped", "--max-steps", "500") as run:
        run.ask("stop", "enough")
        assert run.worker.ended(LONG) == 0
    assert run.events()[-3:] == ["unpaused", "checkpoint", "finished"]
    assert "stop_requested" in run.events()
    assert weights(run.runs, "stopped")


def test_a_stage_that_fails_ends_the_pause(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, paused = targets.FeatureExtractor._run, threading.Event()

    def fail(self: Any, batch: Any, feature_TF: Any) -> None:
        if batch.seq >= 2:
            paused.wait(LONG)
            raise ZeroDivisionError("made to fail")
        whole(self, batch, feature_TF)

    monkeypatch.setattr(targets.FeatureExtractor, "_run", fail)
    with ControlledRun(data, tmp_path, "failed", "--max-steps", "500") as run:
        paused.set()
        assert run.worker.ended(LONG) == EXIT_FAILED
    assert run.events()[-2:] == ["unpaused", "failed"]


def test_an_ended_run_still_answers_until_it_is_told_to_go(data: str, tmp_path: Path) -> None:
    with ControlledRun(data, tmp_path, "over", "--max-steps", "2", "--watch.linger-seconds", "60") as run:
        run.ask("resume")
        run.reaches("finished")
        metrics = run.client.get("/metrics").text
        assert 'draftscope_run_state{state="finished"} 1.0' in metrics
        assert "draftscope_control_requests_total" in metrics
        assert run.client.get("/readyz").status_code == 503
        assert run.worker.is_alive()
        log, address = run.runs / "over" / "log.txt", str(run.client.base_url).rstrip("/")
        eventually(lambda: log.exists() and f"Still answering at {address} for 1 min" in log.read_text())
        began = time.monotonic()
        run.ask("stop")
        assert run.worker.ended() == 0
        assert time.monotonic() - began < 5


def test_the_token_is_nowhere_but_in_its_file(data: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with ControlledRun(data, tmp_path, "over", "--max-steps", "2") as run:
        headers = {"Authorization": f"Bearer {run.token}"}
        paths = ("/", "/status", "/metrics", "/openapi.json", "/nope", "/readyz")
        answers = [run.client.get(path, headers=headers) for path in paths]
        assert [answer.url for answer in answers if run.token in answer.text + str(answer.headers)] == []
        assert run.client.post("/control/stop", headers={"Authorization": f"Bearer {run.token}x"}).status_code == 401
    found = [path for path in tmp_path.rglob("*") if path.is_file() and run.token.encode() in path.read_bytes()]
    assert found == [run.token_file]
    assert json.loads((run.runs / "over" / "run.json").read_text())["config"]["watch"]["token_file"] == str(run.token_file)
    told = capfd.readouterr()
    assert run.token not in told.out + told.err


def test_a_token_that_is_none_is_found_before_anything_is_made(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("short\n")
    arguments = words(data, tmp_path / "runs", "--watch.token-file", str(tmp_path / "token"))
    arguments[arguments.index("--watch.port") + 1] = "0"
    assert main(["train", *arguments]) == EXIT_UNUSABLE
    told = capsys.readouterr().err
    assert "must hold a token, one line of 16 to 512 printable ASCII characters" in told
    assert "short" not in told
    assert not (tmp_path / "runs").exists()


def test_secrets_in_the_command_stay_out_of_the_record(data: str, tmp_path: Path) -> None:
    from trainer.cli import read_train_config
    from trainer.train import train

    arguments = words(data, tmp_path / "runs", "--name", "quiet", "--max-steps", "1")
    train(read_train_config(arguments), ["HF_TOKEN=S3CRET", "train", "https://me:S3CRET@host/x"])
    assert json.loads((tmp_path / "runs" / "quiet" / "run.json").read_text())["command"] == [
        "HF_TOKEN=***",
        "train",
        "https://host/x",
    ]
    found = [path for path in (tmp_path / "runs").rglob("*") if path.is_file() and b"S3CRET" in path.read_bytes()]
    assert found == []
