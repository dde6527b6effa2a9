"""tests/setup/*.sh with stand-ins on the PATH: what they say and leave behind where something is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT

NOT_ROOT = "echo 1000"
OLD_PYTHON = 'case "$*" in *--version*) echo "Python 3.9.2" ;; *) exit 1 ;; esac'
SHELL_NEEDS = ("sh", "dirname", "mkdir", "mktemp", "rm", "touch", "cat", "env", "id")


class Machine:
    """A PATH with nothing on it but what a shell script needs and the stand-ins of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "programs"
        self.programs.mkdir()
        for name in SHELL_NEEDS:
            (self.programs / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name}"))

    def add(self, name: str, script: str) -> None:
        path = self.programs / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def run(self, script: str, *args: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", str(ROOT / "tests" / "setup" / script), *args]
        env = {"PATH": str(self.programs), "HOME": str(self.folder)}
        return subprocess.run(
            command, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def real_python(extra: str = "") -> str:
    return f'{extra}\nexec "{sys.executable}" "$@"'


def test_python_too_old(machine: Machine) -> None:
    machine.add("python3", OLD_PYTHON)
    result = machine.run("venv.sh", ".venv")
    assert result.returncode == 2
    assert "Draftscope needs Python 3.11 or newer, but python3 is: Python 3.9.2." in result.stderr
    assert not (machine.folder / ".venv").exists()


def test_no_python(machine: Machine) -> None:
    result = machine.run("venv.sh", ".venv", "python9")
    assert result.returncode == 2
    assert "python9" in result.stderr
    assert "apt-get install python3 python3-venv" in result.stderr


def test_a_newer_python_beside_the_old_one_is_taken(machine: Machine) -> None:
    machine.add("python3", OLD_PYTHON)
    machine.add("python3.13", "exit 127")  # a shim without a Python behind it
    machine.add("python3.12", real_python('case "$*" in *ensurepip*) exit 0 ;; "-m venv"*) mkdir "$3"; exit 0 ;; esac'))
    result = machine.run("venv.sh", ".venv")
    assert result.returncode == 0, result.stderr
    assert "python3 is not Python 3.11 or newer; using python3.12 instead." in result.stdout
    assert (machine.folder / ".venv").is_dir()


def test_missing_ensurepip_is_named(machine: Machine) -> None:
    machine.add("id", NOT_ROOT)
    machine.add("python3", real_python('case "$*" in *ensurepip*) exit 1 ;; esac'))
    result = machine.run("venv.sh", ".venv")
    assert result.returncode == 2
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"sudo apt-get install python{version}-venv" in result.stderr


def test_missing_ensurepip_is_installed_by_root(machine: Machine) -> None:
    machine.add("id", "echo 0")
    machine.add("apt-get", 'echo "$@" >> apt-journal')
    machine.add("python3", real_python('case "$*" in *ensurepip*) exit 1 ;; "-m venv"*) mkdir "$3"; exit 0 ;; esac'))
    assert machine.run("venv.sh", ".venv").returncode == 0
    assert "install -y -qq --no-install-recommends python3." in (machine.folder / "apt-journal").read_text()


def test_half_an_environment_is_removed(machine: Machine) -> None:
    machine.add("python3", real_python('case "$*" in *ensurepip*) exit 0 ;; "-m venv"*) mkdir "$3"; exit 1 ;; esac'))
    assert machine.run("venv.sh", ".venv").returncode == 2
    assert not (machine.folder / ".venv").exists()


def test_a_working_environment_is_left_alone(machine: Machine) -> None:
    python = machine.folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{real_python()}\n")
    python.chmod(0o755)
    machine.add("python3", "exit 1")
    result = machine.run("venv.sh", ".venv")
    assert (result.returncode, result.stdout) == (0, "")


def test_tools_that_cannot_be_had_are_named_and_no_failure(machine: Machine) -> None:
    result = machine.run("tools.sh", ".tools")
    assert result.returncode == 0, result.stderr
    assert "No Chromium: browser tests will be skipped." in result.stdout
    assert "No Prometheus: tests with promtool will be skipped." in result.stdout


def test_root_installs_chromium_and_unpacks_prometheus(machine: Machine) -> None:
    machine.add("id", "echo 0")
    machine.add("apt-get", f'echo "$*" >> "{machine.folder}/apt-journal"\ncase "$*" in *download*) touch prometheus_2.deb ;; esac')
    machine.add("dpkg", '[ -f "$2" ] && mkdir -p "$3/usr/bin" && touch "$3/usr/bin/promtool"')
    result = machine.run("tools.sh", ".tools")
    assert result.returncode == 0, result.stderr
    verbs = [line.split("Use-Pty=0 ")[1] for line in (machine.folder / "apt-journal").read_text().splitlines()]
    assert verbs == [
        "update",
        "install -y --no-install-recommends chromium",
        "-o APT::Sandbox::User=root download prometheus",
    ]
    assert (machine.folder / ".tools" / "usr" / "bin" / "promtool").exists()


def test_what_is_there_is_not_fetched_again(machine: Machine) -> None:
    machine.add("apt-get", "echo called >> apt-journal")
    machine.add("dpkg", "exit 0")
    for name in ("chromium", "prometheus", "promtool"):
        machine.add(name, "exit 0")
    result = machine.run("tools.sh", ".tools")
    assert (result.returncode, result.stdout) == (0, "")
    assert not (machine.folder / "apt-journal").exists()


@pytest.mark.parametrize("verb", ["demo", "test", "check", "format", "screenshot", "clean", "help"])
def test_help_lists_the_verb(verb: str) -> None:
    shown = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ | {"MAKEFLAGS": ""})
    assert f"make {verb} " in shown.stdout
