"""trainer/watch.py: what watches a run is there while it runs and gone after it, and every end of a run is told once."""

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.threads import Worker
from trainer.config import EXIT_INTERRUPTED, ConfigError, WatchConfig
from trainer.queues import Queue
from trainer.run import Run
from trainer.stages import Stages
from trainer.status import StatusServer
from trainer.watch import SHOW_CURSOR, RunFailedError, Watch, interruptible, listening

SILENT = WatchConfig(port=-1, console="off")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(folder=tmp_path, facts={"id": "one", "max_steps": 4})


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
    resumed = Run(folder=run.folder, facts=run.facts, attempt=1, start=start, warnings=("Take care.", "And here."))  # type: ignore[arg-type]
    with watched(resumed) as watch:
        watch.finish("Done.")
    assert [(event["event"], event["step"], event["message"]) for event in events(run)] == [
        ("resumed", 7, "Resumed after step 7."),
        ("warning", 7, "Take care."),
        ("warning", 7, "And here."),
        ("finished", 7, "Done."),
    ]


def test_a_failure_is_told_with_its_traceback_and_carried_on(run: Run) -> None:
    broken = ZeroDivisionError("made to fail")
    root = logging.getLogger()
    before = root.handlers
    watch = watched(run)
    with pytest.raises(RunFailedError) as failed, watch:
        raise broken
    assert failed.value.__cause__ is broken
    assert str(failed.value) == watch.live.verdict().sentence
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
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_to_stop_in_order(number: int, caplog: pytest.LogCaptureFixture) -> None:
    before = handlers()
    with interruptible() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()
    assert handlers() == before
    (said,) = caplog.messages
    assert said.startswith("Stopping once the step or the loading under way is done.")


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


def test_outside_of_the_main_thread_it_is_only_an_event() -> None:
    before = handlers()

    def inside(_: object) -> tuple[bool, list[Any]]:
        with interruptible() as stop:
            return stop.is_set(), handlers()

    assert Worker(inside).ended() == (False, before)
    assert handlers() == before
