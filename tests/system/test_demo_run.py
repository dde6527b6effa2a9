"""trainer/demo/run.sh with two stand-ins for the dashboard and the trainer: who ends when, and with which status."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "trainer" / "demo" / "run.sh"

# Both write down what happens to them; the stand-ins understand as much of the command line as the script uses.
JOURNAL = """
import os, signal, socket, sys, time
def note(*words):
    with open("journal", "a") as file:
        print(*words, file=file, flush=True)
"""
DASHBOARD = (
    JOURNAL
    + """
if os.environ.get("DASHBOARD_FAILS"):
    sys.exit("dashboard: no such folder")
def on_signal(number, frame):
    note("dashboard", signal.Signals(number).name)
    if not os.environ.get("DASHBOARD_STAYS"):
        sys.exit(0)
signal.signal(signal.SIGINT, on_signal)
signal.signal(signal.SIGTERM, on_signal)
if os.environ.get("DASHBOARD_HANGS"):
    print("dashboard: still thinking", flush=True)
    time.sleep(60)
server = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
note("dashboard pid", os.getpid())
while True:
    time.sleep(0.05)
"""
)
TRAINER = (
    JOURNAL
    + """
def on_signal(number, frame):
    note("trainer", signal.Signals(number).name)
    time.sleep(0.3)  # the step that is finished first
    note("trainer checkpoint")
    sys.exit(int(os.environ.get("TRAINER_STATUS", "0")))
signal.signal(signal.SIGTERM, on_signal)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    note("trainer is deaf to SIGINT")
signal.signal(signal.SIGINT, on_signal)
note("trainer args", *sys.argv[1:])
note("trainer pid", os.getpid())
while not os.environ.get("TRAINER_ENDS"):
    time.sleep(0.05)
"""
)


def heed_interrupts() -> None:
    """As in a terminal. Where the tests themselves run in the background, a shell ignores these for good."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Demo:
    """One run of the script in a folder of its own, and what its two children wrote into the journal."""

    def __init__(self, folder: Path, dashboard_port: int) -> None:
        self.folder = folder
        self.dashboard_port = dashboard_port
        for package, source in (("dashboard", DASHBOARD), ("trainer", TRAINER)):
            (folder / package).mkdir()
            (folder / package / "__main__.py").write_text(source)

    def start(self, *args: str, **env: str) -> None:
        ports = {"DASHBOARD_PORT": str(self.dashboard_port), "STATUS_PORT": "0"}
        self.process = subprocess.Popen(
            ["sh", str(SCRIPT), *args],
            cwd=self.folder,
            env=os.environ | {"PYTHON": sys.executable, "PYTHONPATH": ""} | ports | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=heed_interrupts,
            start_new_session=True,  # its own process group, as a terminal gives to a command
        )

    def journal(self) -> str:
        path = self.folder / "journal"
        return path.read_text() if path.exists() else ""

    def wait_for(self, words: str) -> None:
        wait_until(lambda: words in self.journal(), f"{words!r} in the journal")

    def finish(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=30)
        return self.process.returncode, output

    def living(self) -> list[int]:
        pids = [int(line.split()[-1]) for line in self.journal().splitlines() if " pid " in line]
        return [pid for pid in pids if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, f"waited 20 s in vain for: {what}"
        time.sleep(0.02)


@pytest.fixture
def demo(tmp_path: Path, free_port: int) -> Iterator[Demo]:
    demo = Demo(tmp_path, free_port)
    yield demo
    for pid in demo.living():
        os.kill(pid, signal.SIGKILL)
    if demo.process.poll() is None:
        demo.process.kill()
    demo.process.communicate()


def test_ctrl_c_ends_the_trainer_first_and_then_the_dashboard(demo: Demo) -> None:
    demo.start("--max-steps", "7")
    demo.wait_for("trainer pid")
    os.killpg(demo.process.pid, signal.SIGINT)
    status, output = demo.finish()
    events = [line for line in demo.journal().splitlines() if " pid " not in line and " args " not in line]
    assert events == ["trainer SIGINT", "trainer checkpoint", "dashboard SIGTERM"]
    assert status == 0
    assert f"Dashboard: http://127.0.0.1:{demo.dashboard_port}" in output
    assert demo.living() == []


def test_the_trainer_gets_its_command_line(demo: Demo) -> None:
    demo.start("--max-steps", "7", "--name", "two words", TRAINER_ENDS="1")
    assert demo.finish()[0] == 0
    words = "train --config trainer/demo/config.toml --runs runs --watch.port 0 --max-steps 7 --name two words"
    assert f"trainer args {words}\n" in demo.journal()
    assert demo.living() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_script_alone_is_passed_on(demo: Demo, number: signal.Signals) -> None:
    demo.start()
    demo.wait_for("trainer pid")
    demo.process.send_signal(number)
    assert demo.finish()[0] == 0
    assert "trainer SIGTERM\ntrainer checkpoint\ndashboard SIGTERM\n" in demo.journal()


def test_the_trainers_failure_is_the_scripts(demo: Demo) -> None:
    demo.start(TRAINER_STATUS="3")
    demo.wait_for("trainer pid")
    os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.finish()[0] == 3
    assert demo.living() == []


def test_a_dashboard_that_does_not_listen_to_reason_is_killed(demo: Demo) -> None:
    demo.start(DASHBOARD_STAYS="1", TRAINER_ENDS="1")
    assert demo.finish()[0] == 0
    assert demo.living() == []


def test_a_port_in_use_stops_before_training(demo: Demo) -> None:
    with socket.create_server(("127.0.0.1", demo.dashboard_port)):
        demo.start()
        status, output = demo.finish()
    assert status == 2
    assert f"Port {demo.dashboard_port} is in use" in output
    assert "make demo DASHBOARD_PORT=PORT" in output
    assert demo.journal() == ""


@pytest.mark.parametrize("port", ["eight", "0", "-1", "65536"])
def test_what_is_no_port_is_refused_without_a_traceback(demo: Demo, port: str) -> None:
    demo.start(DASHBOARD_PORT=port)
    status, output = demo.finish()
    assert status == 2
    assert f"Port {port} is in use or is no port" in output
    assert "Traceback" not in output
    assert demo.journal() == ""


def test_a_dashboard_that_never_answers_stops_before_training(demo: Demo) -> None:
    demo.start(DASHBOARD_HANGS="1", START_SECONDS="1")
    status, output = demo.finish()
    assert status == 2
    assert "The dashboard has not answered for 1 s. Its log, .cache/demo-dashboard.log:\ndashboard: still thinking\n" in output
    assert "trainer" not in demo.journal()


def test_a_dashboard_that_cannot_start_stops_before_training(demo: Demo) -> None:
    demo.start(DASHBOARD_FAILS="1")
    status, output = demo.finish()
    assert status == 2
    assert "dashboard: no such folder" in output
    assert "trainer" not in demo.journal()


def test_nothing_outlives_a_script_that_is_killed(demo: Demo) -> None:
    demo.start()
    demo.wait_for("trainer pid")
    os.killpg(demo.process.pid, signal.SIGKILL)
    wait_until(lambda: demo.living() == [], "the end of both children")
