"""trainer/__main__.py: the streams that a caller leaves, whatever became of them."""

import os
import subprocess
import sys

from tests.support.sources import ROOT


def test_a_closed_stdout_costs_nothing() -> None:
    """As under some supervisors: nothing can be printed, and nothing fails."""
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "trainer", "--help"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_terminal_that_lacks_a_character_shows_another() -> None:
    program = "from trainer.__main__ import prepare_streams; prepare_streams(); print('1 → 2')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert (ended.returncode, ended.stdout) == (0, "1 ? 2\n")
