"""trainer/watch.py: what watches a run is there while it runs and gone after it, and every end of a run is told once."""

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.support.threads import Worker
from tests.support.watched import EVALUATION
from trainer.config import WatchConfig
from trainer.errors import EXIT_INTERRUPTED, ConfigError
from trainer.monitor.control import Control
from trainer.pipeline.queues import Queue
from trainer.pipeline.stages import Stages
from trainer.record.format import fields_of
from trainer.run.folder import Run
from trainer.server.server import StatusServer
from trainer.watch import SHOW_CURSOR, STOP_SIGNALS, RunFailedError, Watch, interruptible, listening

SILENT = WatchConfig(port=-1, console="off")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(folder=tmp_path, metadata={"id": "one", "max_steps": 4})


def watched(run: Run, config: WatchConfig = SILENT) -> Watch:
    return Watch(run, config, StatusServer(None))


def events(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]


def log_of(run: Run) -> str:
    return (run.folder / "log.txt").read_text()


def watchers() -> set[str]:
    return {thread.name for thread in threading.enumerate()} & {"sampler", "console", "record-writer", "status"}


def fail_as_loading_does() -> None:
    try:
        raise ConfigError("the weights of target 'x' cannot be read")
    except ConfigError as error:
        raise RuntimeError(str(error)) from error


def test_the_log_goes_to_the_record_and_back_where_it_went(run: Run) -> None:
    root = logging.getLogger()
    before = root.handlers
    names = [*before]
    with watched(run) as watch:
        assert not set(root.handlers) & set(names)
        logging.getLogger("anybody").warning("It rains.")
        watch.finish("Done.")
    assert root.handlers is before
    assert before == names
    assert "WARNING It rains." in log_of(run)


def test_every_thread_lives_as_long_as_the_run(run: Run) -> None:
    config = WatchConfig(port=0, console="plain")
    with listening(config) as server:
        with Watch(run, config, server) as watch:
            assert watchers() == {"sampler", "console", "record-writer", "status"}
            assert server.address is not None
            with urllib.request.urlopen(f"{server.address}/status", timeout=5) as answer:
                assert json.loads(answer.read())["state"] == "starting"
            watch.finish("Done.")
        assert watchers() <= {"status"}, "it answers until its port is given back"
    assert watchers() == set()


def test_the_port_is_given_back_whatever_happens() -> None:
    with contextlib.suppress(ZeroDivisionError), listening(WatchConfig(port=0)) as server:
        assert server.address is not None
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
            listening(WatchConfig(port=port)).__enter__()
        raise ZeroDivisionError
    socket.create_server(("127.0.0.1", port)).close()


def test_a_run_begins_where_its_checkpoint_was_and_warns(run: Run) -> None:
    start = SimpleNamespace(step=7, context_tokens=70, draft_tokens=7, samples=14)
    resumed = Run(folder=run.folder, metadata=run.metadata, attempt=1, start=start, warnings=("Take care.", "And here."))  # type: ignore[arg-type]
    with watched(resumed) as watch:
        watch.finish("Done.")
    assert [(event["event"], event["step"], event["message"]) for event in events(run)] == [
        ("resumed", 7, "Resumed after step 7."),
        ("warning", 7, "Take care."),
        ("warning", 7, "And here."),
        ("finished", 7, "Done."),
    ]


def test_a_resume_knows_what_earlier_attempts_left(run: Run) -> None:
    checkpoint = run.checkpoints / "step-000000007"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_bytes(b"x" * 10)
    (checkpoint / "drafter.safetensors").write_bytes(b"x" * 90)
    os.utime(checkpoint / "manifest.json", (time.time() - 600, time.time() - 600))
    before = {"attempt": 0, "event": "evaluated", **fields_of(EVALUATION)}
    lines = [before | {"step": step, "measured_length": step / 2} for step in (3, 6, 9)]
    (run.folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    start = SimpleNamespace(step=7, context_tokens=70, draft_tokens=7, samples=14)
    resumed = Run(folder=run.folder, metadata=run.metadata, attempt=1, start=start, checkpoint=checkpoint)  # type: ignore[arg-type]
    with watched(resumed) as watch:
        status, text = watch.source.status().document(), watch.monitor.exporter.exposition(None)[0].decode()
        watch.finish("Done.")
    assert (status["checkpoint"]["step"], status["checkpoint"]["path"]) == (7, str(checkpoint))
    assert status["checkpoint"]["age_seconds"] == pytest.approx(600, abs=5)
    assert status["acceptance"]["measured_at_step"] == 6, "step 9 is one that this attempt overtakes"
    assert "draftscope_last_checkpoint_bytes 100.0" in text
    assert "draftscope_restarts_total 1.0" in text


def test_a_checkpoint_that_has_gone_meanwhile_is_left_to_whoever_loads_it(run: Run) -> None:
    start = SimpleNamespace(step=7, context_tokens=70, draft_tokens=7, samples=14)
    resumed = Run(folder=run.folder, metadata=run.metadata, start=start, checkpoint=run.checkpoints / "gone")  # type: ignore[arg-type]
    with watched(resumed) as watch:
        assert watch.source.status().document()["checkpoint"]["step"] is None
        watch.finish("Done.")


def test_what_the_log_says_is_counted(run: Run) -> None:
    with watched(run) as watch:
        logging.getLogger("anybody").warning("It rains.")
        text = watch.monitor.exporter.exposition(None)[0].decode()
        watch.finish("Done.")
    assert 'draftscope_log_messages_total{level="warning"} 1.0' in text
    assert 'draftscope_log_messages_total{level="error"} 0.0' in text


def test_a_failure_is_told_with_its_traceback_and_carried_on(run: Run) -> None:
    broken = ZeroDivisionError("made to fail")
    root = logging.getLogger()
    before = root.handlers
    watch = watched(run)
    with pytest.raises(RunFailedError) as failed, watch:
        raise broken
    assert failed.value.__cause__ is broken
    assert str(failed.value) == watch.monitor.state.verdict.sentence
    assert "made to fail" in str(failed.value)
    assert root.handlers is before
    (told,) = [event for event in events(run) if event["event"] == "failed"]
    assert (told["error"], told["stage"]) == ("ZeroDivisionError: made to fail", None)
    assert told["traceback"].startswith("Traceback")
    assert "ZeroDivisionError: made to fail" in log_of(run)
    assert "Traceback" in log_of(run)


def test_a_failure_in_an_observed_stage_has_its_name(run: Run) -> None:
    def fail(_: object) -> Any:
        raise ZeroDivisionError("made to fail")

    def travel(watch: Watch) -> None:
        with Stages() as stages:
            watch.observe(stages)
            list(stages.consume("drafter", stages.start("target", [1], fail, into=Queue("features", 1, 1))))

    with pytest.raises(RunFailedError), watched(run) as watch:
        travel(watch)
    assert events(run)[-1]["stage"] == "target"


def test_what_is_wrong_with_the_target_is_a_sentence_without_a_traceback(run: Run) -> None:
    with pytest.raises(RunFailedError) as failed, watched(run):
        fail_as_loading_does()
    assert isinstance(failed.value.__cause__, RuntimeError)
    assert events(run)[-1]["traceback"] == "the weights of target 'x' cannot be read"
    assert "ERROR   the weights of target 'x' cannot be read\n" in log_of(run)
    assert "Traceback" not in log_of(run)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_end_from_outside_is_told_and_stays_what_it_is(run: Run, kind: type[BaseException]) -> None:
    with pytest.raises(kind), watched(run):
        raise kind
    assert events(run)[-1]["event"] == "failed"
    assert watchers() == set()


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in STOP_SIGNALS]


@pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: number.name)
def test_the_first_signal_asks_to_stop_in_order(number: int, caplog: pytest.LogCaptureFixture) -> None:
    before = handlers()
    with interruptible() as control:
        assert not control.is_stopping()
        signal.raise_signal(number)
        assert control.is_stopping()
    assert handlers() == before
    (said,) = caplog.messages
    assert said.startswith("Stopping after the current step, or after loading.")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR1], ids=lambda number: number.name)
def test_signals_that_repeat_by_themselves_cost_no_checkpoint(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("ended at once"))
    with interruptible() as control:
        for _ in range(3):
            signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)  # as Slurm sends after its warning
        assert control.is_stopping()


def test_a_hang_up_that_is_ignored_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible() as control:
            signal.raise_signal(signal.SIGHUP)
            assert not control.is_stopping()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_handlers_come_back_after_a_failure_too() -> None:
    before = handlers()
    with contextlib.suppress(ZeroDivisionError), interruptible():
        assert not set(handlers()) & set(before)
        raise ZeroDivisionError
    assert handlers() == before


class EndedError(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("on_terminal", [True, False])
def test_the_second_signal_ends_the_process_and_gives_the_cursor_back(monkeypatch: pytest.MonkeyPatch, on_terminal: bool) -> None:
    written: list[tuple[int, bytes]] = []

    def end(code: int) -> None:
        raise EndedError(code)

    with interruptible():
        signal.raise_signal(signal.SIGINT)
        with monkeypatch.context() as replaced:
            replaced.setattr(os, "_exit", end)
            replaced.setattr(os, "write", lambda descriptor, content: written.append((descriptor, content)))
            replaced.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: on_terminal))
            with pytest.raises(EndedError) as ended:
                signal.raise_signal(signal.SIGTERM)
    assert ended.value.args == (EXIT_INTERRUPTED,)
    assert written == ([(1, SHOW_CURSOR)] if on_terminal else [])


def test_after_a_stop_over_http_the_first_signal_is_still_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(code: int) -> None:
        raise EndedError(code)

    monkeypatch.setattr(os, "_exit", end)
    with interruptible() as control:
        control.stop()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(EndedError):
            signal.raise_signal(signal.SIGTERM)


def test_a_signal_ends_the_lingering_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    with interruptible() as control:
        threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
        began = time.monotonic()
        control.linger(60)
        assert time.monotonic() - began < 5
    assert caplog.messages == []


def test_only_what_is_served_with_a_token_can_be_controlled(run: Run, tmp_path: Path) -> None:
    for token_file in (None, str(tmp_path / "token")):
        config = WatchConfig(port=0, console="off", token_file=token_file)
        with listening(config) as server, Watch(run, config, server) as watch:
            schema = httpx.get(f"{server.address}/openapi.json", trust_env=False).json()
            assert ("/control/stop" in schema["paths"]) == (token_file is not None)
            watch.finish("Done.")


def test_it_answers_to_the_address_that_it_tells(run: Run, tmp_path: Path) -> None:
    config = WatchConfig(host="0.0.0.0", port=0, console="off", token_file=str(tmp_path / "token"), allow_hosts=("proxy",))
    with listening(config) as server, Watch(run, config, server) as watch:
        port = str(server.address).rpartition(":")[2]
        codes = {
            host: httpx.get(f"http://127.0.0.1:{port}/status", headers={"host": host}, trust_env=False).status_code
            for host in (f"0.0.0.0:{port}", "proxy", "10.0.0.1")
        }
        watch.finish("Done.")
    assert codes == {f"0.0.0.0:{port}": 200, "proxy": 200, "10.0.0.1": 400}


def test_nothing_served_needs_no_token(tmp_path: Path) -> None:
    with listening(WatchConfig(port=-1, token_file=str(tmp_path / "token"))) as server:
        assert server.token is None
    assert list(tmp_path.iterdir()) == []


def test_a_token_that_is_none_gives_the_port_back(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match="is not a regular file"):
        listening(WatchConfig(port=port, token_file=str(tmp_path))).__enter__()
    socket.create_server(("127.0.0.1", port)).close()


def test_refusals_and_streams_are_counted(run: Run) -> None:
    config = WatchConfig(port=0, console="off")
    with listening(config) as server, Watch(run, config, server) as watch:
        assert httpx.get(f"{server.address}/status", headers={"host": "evil.example"}, trust_env=False).status_code == 400
        with httpx.stream("GET", f"{server.address}/events", trust_env=False):
            shown = httpx.get(f"{server.address}/metrics", trust_env=False).text
        watch.finish("Done.")
    assert 'draftscope_http_refused_total{reason="host"} 1.0' in shown
    assert "draftscope_event_streams 1.0" in shown


@pytest.fixture
def lingered(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that runs would linger for."""
    seconds: list[float] = []
    monkeypatch.setattr(Control, "linger", lambda _, asked: seconds.append(asked))
    return seconds


LINGERING = WatchConfig(port=0, console="off", linger_seconds=60)


def test_an_ended_run_lingers_and_a_stopped_one_until_it_was_seen(
    run: Run, lingered: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trainer")
    for stopped in (False, True):
        control = Control()
        with listening(LINGERING) as server, Watch(run, LINGERING, server, control=control) as watch:
            watch.finish("Done.")
            if stopped:
                control.stop()
    assert lingered == [60.0, 12.0]
    assert log_of(run).count("Still answering at http://127.0.0.1:") == 2


def test_what_serves_nothing_has_nothing_to_linger_for(run: Run, lingered: list[float]) -> None:
    with Watch(run, LINGERING, StatusServer(None)) as watch:
        watch.finish("Done.")
    assert lingered == [0.0]


def test_a_failed_run_lingers_too_but_not_one_that_is_torn_down(run: Run, lingered: list[float]) -> None:
    for kind in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises((RunFailedError, KeyboardInterrupt)), listening(LINGERING) as server, Watch(run, LINGERING, server):
            raise kind
    assert lingered == [60.0, 0.0]


def test_outside_of_the_main_thread_it_is_only_an_event() -> None:
    before = handlers()

    def inside(_: object) -> tuple[bool, list[Any]]:
        with interruptible() as control:
            return control.is_stopping(), handlers()

    assert Worker(inside).ended() == (False, before)
    assert handlers() == before
