"""trainer/trackers/supervisor.py: whatever becomes of another tracker, the run goes on, with one warning."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.support.lines import lines_of, step_of
from tests.support.recorded import make_folder, read_event_files, read_wandb_files
from tests.support.sources import ROOT
from tests.support.threads import eventually
from trainer.config import WatchConfig
from trainer.run.folder import Run
from trainer.server.server import StatusServer
from trainer.trackers import supervisor
from trainer.trackers.cursor import Cursor
from trainer.watch import Watch

SILENT = WatchConfig(port=-1, console="off", sample_seconds=0.05)
STEPS = 20

FAKE_WRITER = """
import pathlib, time
class EventFileWriter:
    def __init__(self, folder, max_queue_size): {init}
    def add_event(self, event): pass
    def flush(self): pass
    def close(self): {close}
"""
FAKE_WANDB = """
import json, pathlib
Settings = dict
class init:
    def __init__(self, dir, **_): self.file = pathlib.Path(dir, "fake-wandb.jsonl").open("a", buffering=1)
    def define_metric(self, *_, **__): pass
    def log(self, values, step): self.file.write(json.dumps(values) + chr(10))
    def finish(self): pass
"""
Fake = Callable[..., None]
wait_until = partial(eventually, within=60, every=0.02)  # processes start slowly where suites run beside each other


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suites run beside each other on small machines."""
    monkeypatch.setattr(supervisor, "FINISH_SECONDS", 60.0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = make_folder(tmp_path / "one")
    return Run(folder=folder, metadata={"id": "one", "max_steps": STEPS})


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """In place of tensorboard, in the processes that are started, a library that misbehaves."""

    def install(*, init: str = "pass", close: str = "pass", whole: str = "") -> None:
        package = tmp_path / "fakes" / "tensorboard"
        modules = {
            "compat/proto/event_pb2": "Event = SessionLog = dict",
            "compat/proto/summary_pb2": "class Summary(dict):\n    Value = dict",
            "summary/writer/event_file_writer": FAKE_WRITER.format(init=init, close=close),
        }
        for name, text in modules.items():
            path = package / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (package / "__init__.py").write_text(whole)
        monkeypatch.setenv("PYTHONPATH", str(package.parent))

    return install


def watched(run: Run, *trackers: str) -> Watch:
    return Watch(run, SILENT, StatusServer(None), trackers)


def take_steps(watch: Watch) -> None:
    for step in range(1, STEPS + 1):
        watch.monitor.step(step_of(step, loss=1.0 * step))


def warnings(run: Run) -> list[str]:
    return [line["message"] for line in lines_of(run.folder / "events.jsonl") if line["event"] == "warning"]


def figure(watch: Watch, name: str) -> float:
    """What /metrics says of a series."""
    body = watch._exporter.exposition(None)[0].decode()
    (value,) = re.findall(rf"^draftscope_{re.escape(name)} (\S+)$", body, re.MULTILINE)
    return float(value)


def up(watch: Watch, tracker: str = "tensorboard") -> float:
    return figure(watch, f'tracker_up{{tracker="{tracker}"}}')


def process_of(watch: Watch) -> psutil.Process:
    child = watch._trackers._processes[0]._process
    assert child is not None
    return psutil.Process(child.pid)


def test_nothing_is_started_that_was_not_asked_for(run: Run) -> None:
    with watched(run) as watch:
        assert psutil.Process().children() == []
        assert b"draftscope_tracker_up{" not in watch._exporter.exposition(None)[0]
        watch.finish("Done.")
    assert not (run.folder / "trackers").exists()


def test_both_have_the_whole_run_when_it_has_ended(run: Run) -> None:
    with watched(run, "wandb", "tensorboard", "wandb") as watch:
        take_steps(watch)
        wait_until(lambda: up(watch) == up(watch, "wandb") == 1)
        watch.monitor.step(step_of(STEPS + 1, loss=STEPS + 1.0))  # at the last moment
        watch.finish("Done.")
    assert warnings(run) == []
    expected = [(step, float(step)) for step in range(1, STEPS + 2)]
    read = read_event_files(run.folder / "tensorboard")
    assert read["loss"] == expected
    assert read["progress_ratio"][-1] == (STEPS + 1, 1.0), "the last sample too"
    assert [(row["step"], row["loss"]) for row in read_wandb_files(run.folder) if "loss" in row] == expected
    assert (up(watch), up(watch, "wandb")) == (0, 0)
    assert figure(watch, 'tracker_dropped_total{tracker="wandb"}') == 0
    assert figure(watch, 'watch_seconds_total{part="trackers"}') > 0.2, "the processes' CPU time is part of watching's cost"


def test_not_installed_is_one_warning(run: Run, fake: Fake) -> None:
    fake(whole="raise ModuleNotFoundError('no', name='tensorboard')")
    with watched(run, "tensorboard") as watch:
        take_steps(watch)
        wait_until(lambda: bool(watch.monitor.state.warnings))
        assert up(watch) == 0
        watch.finish("Done.")
    (told,) = warnings(run)
    assert told.startswith(
        "The tracker tensorboard is off, training goes on without it: "
        "tensorboard is not installed (pip install -r requirements/trackers.txt). What it missed can be sent later: "
    )
    assert lines_of(run.folder / "events.jsonl")[-1]["event"] == "finished"


def test_killed_it_is_one_warning_and_the_rest_can_be_sent_later(run: Run) -> None:
    with watched(run, "tensorboard") as watch:
        wait_until(lambda: up(watch) == 1)
        process_of(watch).kill()
        wait_until(lambda: up(watch) == 0)
        take_steps(watch)
        watch.finish("Done.")
    (told,) = warnings(run)
    assert "its process was killed by signal 9" in told
    later = told.rpartition(": ")[2].split()
    subprocess.run(later, cwd=ROOT, check=True, capture_output=True, timeout=60)
    assert [step for step, _ in read_event_files(run.folder / "tensorboard")["loss"]] == list(range(1, STEPS + 1))


def test_one_that_hangs_when_the_run_ends_is_given_up(run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FINISH_SECONDS", 1.5)
    fake(close="time.sleep(1000)")
    with watched(run, "tensorboard") as watch:
        wait_until(lambda: up(watch) == 1)
        process = process_of(watch)
        take_steps(watch)
        watch.finish("Done.")
        began = time.monotonic()
    assert time.monotonic() - began < 20, "not the 1000 s that it would take"
    assert not process.is_running()
    (told,) = warnings(run)
    assert "it did not finish within 2 s" in told
    assert lines_of(run.folder / "steps.jsonl")[-1]["step"] == STEPS


def test_one_that_hangs_stops_no_other_and_is_told_once(
    run: Run, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other is a fake, too, since wandb's own beginning takes seconds."""
    monkeypatch.setattr(supervisor, "FINISH_SECONDS", 2.0)
    monkeypatch.setattr(supervisor, "SILENT_SECONDS", 1.0)
    fake(init="time.sleep(1000)")
    (tmp_path / "fakes" / "wandb.py").write_text(FAKE_WANDB)

    def told_of(tracker: str) -> list[str]:
        return [sentence for sentence in watch.monitor.state.warnings if tracker in sentence]

    with watched(run, "tensorboard", "wandb") as watch:
        take_steps(watch)
        wait_until(lambda: Cursor(run.folder, "wandb").sent >= STEPS)
        wait_until(lambda: bool(told_of("tensorboard")))
        watch.finish("Done.")
    assert [row["loss"] for row in lines_of(run.folder / "fake-wandb.jsonl") if "loss" in row] == [*map(float, range(1, STEPS + 1))]
    silent, given_up = told_of("tensorboard")
    assert silent == "The tracker tensorboard has taken nothing for 1 s; training goes on without waiting for it."
    assert "it did not finish within 2 s" in given_up
    assert figure(watch, 'tracker_dropped_total{tracker="tensorboard"}') > STEPS


def test_one_that_hangs_while_python_ends_is_ended(run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """All was sent, so that nobody need hear of it; but no process stays behind, and the others' thread does not wait for it."""
    monkeypatch.setattr(supervisor, "EXIT_SECONDS", 0.2)
    fake(whole="import atexit, time\natexit.register(time.sleep, 1000)")
    with watched(run, "tensorboard") as watch:
        wait_until(lambda: up(watch) == 1)
        process = process_of(watch)
        watch.finish("Done.")
    assert not process.is_running()
    assert warnings(run) == []


def test_a_library_that_fails_is_named_with_its_error(run: Run, fake: Fake) -> None:
    fake(init="raise OSError('no room')")
    with watched(run, "tensorboard") as watch:
        wait_until(lambda: bool(watch.monitor.state.warnings))
        watch.finish("Done.")
    assert "without it: OSError: no room. What it missed" in warnings(run)[0]
    assert "Traceback" in (run.folder / "trackers" / "tensorboard.log").read_text()


def test_what_others_print_is_no_report(run: Run, fake: Fake, tmp_path: Path) -> None:
    fake()
    (tmp_path / "fakes" / "sitecustomize.py").write_text("print('hello')\nprint('[1]', flush=True)")
    with watched(run, "tensorboard") as watch:
        wait_until(lambda: up(watch) == 1)
        watch.finish("Done.")
    assert warnings(run) == []


def test_a_process_that_cannot_be_started_is_one_warning(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    with watched(run, "tensorboard") as watch:
        watch.finish("Done.")
    assert "its process cannot be started" in warnings(run)[0]


def test_ctrl_c_reaches_the_trainer_first_and_nobody_outlives_it(run: Run) -> None:
    """In a session of its own; and once the trainer is gone, however it went, the process sends the rest and ends."""
    with watched(run, "tensorboard") as watch:
        process = process_of(watch)
        assert os.getsid(process.pid) != os.getsid(0)
        wait_until(lambda: up(watch) == 1)
        child = watch._trackers._processes[0]
        take_steps(watch)
        child.close_input()  # as the kernel does when the trainer is killed
        process.wait(60)
        watch.finish("Done.")
    assert len(read_event_files(run.folder / "tensorboard")["loss"]) == STEPS


@pytest.mark.slow
def test_a_real_run_with_a_tracker(tmp_path: Path) -> None:
    small = "--drafter.layers 1 --drafter.anchors 4 --batches.token-budget 512 --dataset.max-length 512 --max-steps 3"
    flags = f"--target tiny --data demo --name one --watch.port -1 --watch.console off --evaluate.every 0 {small}".split()
    command = [sys.executable, "-m", "trainer", "train", "--runs", str(tmp_path), "--trackers", "tensorboard,tensorboard", *flags]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert [step for step, _ in read_event_files(tmp_path / "one" / "tensorboard")["loss"]] == [1, 2, 3]


def test_a_second_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    """The trainer then ends at once, and says nothing to anybody."""
    code = f"""
import os, pathlib
from prometheus_client import CollectorRegistry
from trainer.metrics.exporter import Exporter
from trainer.trackers.supervisor import Trackers
trackers = Trackers(pathlib.Path({str(make_folder(tmp_path / "two"))!r}), ["tensorboard"], Exporter(CollectorRegistry()), print)
trackers.start()
print(trackers._processes[0]._process.pid, flush=True)
os._exit(130)
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    pid = int(ran.stdout)
    try:
        wait_until(lambda: not psutil.pid_exists(pid))
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        raise
