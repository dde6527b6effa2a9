"""The command: what it prints, how it refuses, how it ends; and that it never loads torch."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from dashboard.__main__ import main
from tests.support.fake_run import FakeRun

ROOT = Path(__file__).parents[2]


def test_a_port_in_use_is_one_sentence(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--runs", str(tmp_path), "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert str(port) in said
    assert "--port" in said
    assert said.count("\n") == 1


def test_a_file_is_no_folder_of_runs(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["--runs", str(tmp_path / "file")]) == 2
    assert "must be a folder" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--port", "70000"], ["--host", "999.1.2.3"], ["--host", "no such host"]])
def test_addresses_that_are_none(tmp_path, capsys, words):
    assert main(["--runs", str(tmp_path), *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_second_signal_ends_it_at_once_without_a_traceback(tmp_path):
    FakeRun(tmp_path / "demo").play(8)
    command = [sys.executable, "-m", "dashboard", "--runs", str(tmp_path), "--port", "0", "--host", "0.0.0.0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().split()[1]
        assert "--allow-host" in process.stdout.readline()
        with httpx.stream("GET", f"{address}api/runs/demo/events", timeout=10) as answer:
            next(answer.iter_lines())
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=10)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_ends_quietly_within_a_second_with_a_stream_open(tmp_path, signal_number):
    FakeRun(tmp_path / "demo").play(8)
    command = [sys.executable, "-m", "dashboard", "--runs", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().split()[1]
        with httpx.stream("GET", f"{address}api/runs/demo/events", timeout=10) as answer:
            lines = answer.iter_lines()  # kept: httpx closes the connection with its iterator
            next(lines)
            began = time.monotonic()
            process.send_signal(signal_number)
            out, err = process.communicate(timeout=10)
            assert time.monotonic() - began < 2.5  # about one, and room for a busy machine
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "", "")


def test_a_whole_request_loads_no_torch(tmp_path):
    FakeRun(tmp_path / "demo").play(8)
    program = f"""
import sys
from pathlib import Path
from fastapi.testclient import TestClient
import dashboard.__main__
from dashboard.app import create_app
from dashboard.record.runs import Runs
client = TestClient(create_app(Runs(Path({str(tmp_path)!r}))), base_url="http://localhost")
assert client.get("/api/runs/demo/series?metric=steps").status_code == 200
print([name for name in ("torch", "transformers", "datasets", "pandas", "plotly") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
