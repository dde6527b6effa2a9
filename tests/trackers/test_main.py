"""`python -m trainer.trackers`: a record sent whole, gone on with after a resume, without torch and without a network."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lines import lines_of
from tests.support.recorded import go_on, make_folder, read_event_files, read_wandb_files, wandb_records
from tests.support.sources import ROOT
from trainer.metrics.catalogue.watching import TRACKERS
from trainer.record.format import STEPS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "one")


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A proxy for everything, which notes who comes and answers nobody."""
    came: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, address)
            monkeypatch.setenv(name.upper(), address)
        open_ = True

        def note() -> None:
            while open_:
                with contextlib.suppress(TimeoutError):
                    connection, _ = server.accept()
                    came.append(connection.recv(200).decode(errors="replace"))
                    connection.close()

        thread = threading.Thread(target=note)
        thread.start()
        yield came
        open_ = False
        thread.join()


TELL_IMPORTS = {"PYTHONPROFILEIMPORTTIME": "1"}  # Python then names each on standard error


def send(folder: Path, tracker: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainer.trackers", str(folder), tracker]
    without = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment = {**without, "HOME": str(folder.parent), **environment}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, env=environment)


def assert_light(imports: str) -> None:
    """Neither torch nor what trains is loaded: its memory and its start would be a second trainer's."""
    named = set(re.findall(r"^import time: .*\| *(\S+)$", imports, re.MULTILINE))
    packages = {name.partition(".")[0] for name in named if "." in name}  # what is looked for in vain is named, but has no parts
    assert {"trainer.trackers.scalars", "trainer.train"} & named == {"trainer.trackers.scalars"}
    assert packages.isdisjoint({"torch", "transformers", "datasets", "pandas", "tensorflow"})


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in lines_of(folder / STEPS)]


def test_tensorboard_has_what_the_record_has(folder: Path) -> None:
    go_on(folder, range(1, 6))
    sent = send(folder, "tensorboard", **TELL_IMPORTS)
    assert (sent.returncode, sent.stdout) == (0, "tensorboard was sent 7 points of one.\n"), sent.stderr
    assert_light(sent.stderr)
    read = read_event_files(folder / "tensorboard")
    assert read["loss"] == losses(folder)
    assert read["measured_acceptance_length_tokens"] == [(5, 1.5)]
    assert read["queue_items/features"] == [(5, 1.0)]


def test_wandb_has_what_the_record_has_and_nobody_is_asked(folder: Path, nobody: list[str]) -> None:
    go_on(folder, range(1, 6))
    sent = send(folder, "wandb", WANDB_API_KEY="x" * 40, **TELL_IMPORTS)
    assert (sent.returncode, sent.stdout) == (0, "wandb was sent 7 points of one.\n"), sent.stderr
    assert_light(sent.stderr)
    assert nobody == [], "offline unless its user says otherwise"
    rows = read_wandb_files(folder)
    assert [(row["step"], row["loss"]) for row in rows if "loss" in row] == losses(folder)
    assert [row["measured_acceptance_length_tokens"] for row in rows if "measured_acceptance_length_tokens" in row] == [1.5]
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    (run,) = wandb_records(path.read_bytes(), "run")
    assert (run.run_id, run.project) == ("one", "draftscope")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["seed"] == 1
    assert b"a secret place" not in path.read_bytes()


@pytest.mark.slow
def test_without_a_network_an_online_run_is_kept_offline(folder: Path, nobody: list[str]) -> None:
    go_on(folder, range(1, 3))
    sent = send(folder, "wandb", WANDB_MODE="online", WANDB_API_KEY="x" * 40, WANDB_INIT_TIMEOUT="1")
    assert sent.returncode == 0, sent.stderr
    assert "W&B cannot be reached with WANDB_MODE=online" in sent.stderr
    assert [row["loss"] for row in read_wandb_files(folder) if "loss" in row] == [2.0, 4.0]


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_resumed_run_goes_on_where_it_was(folder: Path, tracker: str) -> None:
    go_on(folder, range(1, 6))
    assert send(folder, tracker).returncode == 0
    go_on(folder, range(4, 8), attempt=1, loss=3.0)
    assert send(folder, tracker).stdout == f"{tracker} was sent 6 points of one.\n"
    if tracker == "tensorboard":
        assert send(folder, tracker).stdout == f"{tracker} was sent 0 points of one.\n"
        assert read_event_files(folder / "tensorboard")["loss"] == losses(folder)[:3] + losses(folder)[5:]
    else:
        rows = read_wandb_files(folder)
        assert [(row["step"], row["loss"]) for row in rows if "loss" in row] == losses(folder), "both attempts, nothing dropped"
        assert [row["_step"] for row in rows] == [*range(13)], "its own count only rises"
        assert {row["attempt"] for row in rows} == {0, 1}


def test_not_installed_is_a_sentence_with_the_way_out(folder: Path) -> None:
    go_on(folder, range(1, 3))
    for tracker in TRACKERS:
        (folder.parent / "fakes" / tracker).mkdir(parents=True)
        (folder.parent / "fakes" / tracker / "__init__.py").write_text(f"raise ModuleNotFoundError('no', name={tracker!r})")
        sent = send(folder, tracker, PYTHONPATH=str(folder.parent / "fakes"))
        assert (sent.returncode, sent.stdout) == (1, "")
        assert sent.stderr == f"Not sent: {tracker} is not installed (pip install -r requirements/trackers.txt).\n"


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    sent = send(tmp_path / "none", "tensorboard")
    assert sent.returncode == 2
    assert "is no run: it has no run.json" in sent.stderr
