"""tests/setup/*.sh with stand-ins on the PATH: what they say and leave behind where something is missing."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import chromium
from tests.support.sources import ROOT

NOT_ROOT = "echo 1000"
OLD_PYTHON = 'case "$*" in *--version*) echo "Python 3.9.2" ;; *) exit 1 ;; esac'
SHELL_NEEDS = ("sh", "dirname", "mkdir", "mktemp", "rm", "touch", "cat", "env", "id", "mv", "cp")


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
    assert "Ubuntu 22.04: apt-get install python3.11 python3.11-venv" in result.stderr
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


# Makes an environment whose python says it is 3.12.1 of /opt, whatever runs it.
FAKE_PYTHON = """
case "$*" in
    *"import ensurepip"*) exit 0 ;;
    "-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip"*) echo "$*" >> pip-journal ;;
    *find_spec*) [ ! -e no-pip ] ;;
    *base_prefix*) echo /opt 3.12.1 ;;
    --version) echo Python 3.12.1 ;;
    *) exit 1 ;;
esac"""


@pytest.fixture
def made(machine: Machine) -> Machine:
    """A machine with an environment made by a fake Python, and a mark in it that a new one lacks."""
    machine.add("python3", FAKE_PYTHON)
    assert machine.run("venv.sh", ".venv").returncode == 0
    (machine.folder / ".venv" / "done").mkdir()
    return machine


@pytest.mark.parametrize("named", [(), ("",), ("python3",)])
def test_a_working_environment_is_left_alone(made: Machine, named: tuple[str, ...]) -> None:
    result = made.run("venv.sh", ".venv", *named)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert (made.folder / ".venv" / "done").exists()


def test_an_environment_needs_its_python_no_more_while_none_is_named(made: Machine) -> None:
    made.add("python3", "exit 1")
    assert made.run("venv.sh", ".venv").returncode == 0
    assert (made.folder / ".venv" / "done").exists()


def test_an_environment_whose_python_lost_its_packages_is_made_anew(made: Machine) -> None:
    (made.folder / "no-pip").touch()
    result = made.run("venv.sh", ".venv")
    assert result.returncode == 0, result.stderr
    assert ".venv belongs to another Python or is broken; it is made anew." in result.stdout
    assert not (made.folder / ".venv" / "done").exists()


def test_another_python_by_name_makes_the_environment_anew(made: Machine) -> None:
    made.add("python3.13", FAKE_PYTHON.replace("3.12.1", "3.13.0"))
    result = made.run("venv.sh", ".venv", "python3.13")
    assert result.returncode == 0, result.stderr
    assert "Making .venv with Python 3.13.0 ..." in result.stdout
    assert not (made.folder / ".venv" / "done").exists()


def make(made: Machine, *words: str) -> str:
    """What our Makefile prints where `made` stands in for the machine."""
    for name in ("Makefile", "requirements", "tests"):
        if not (made.folder / name).exists():
            (made.folder / name).symlink_to(ROOT / name)
    env = {"PATH": f"{made.programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(made.folder)}
    command = ["make", *words]
    return subprocess.run(
        command, cwd=made.folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    ).stdout


def test_make_installs_once_and_all_again_into_a_new_environment(made: Machine) -> None:
    def installed() -> int:
        journal = made.folder / "pip-journal"
        journal.unlink(missing_ok=True)
        make(made, ".venv/done/demo-target", ".venv/done/reference")
        return len(journal.read_text().splitlines()) if journal.exists() else 0

    assert [installed(), installed()] == [8, 0]
    (made.folder / ".venv" / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    assert [installed(), installed()] == [8, 0]


@pytest.mark.parametrize(
    ("verb", "wanted"), [("demo", False), ("setup", False), ("check", False), ("test", True), ("proofs", True)]
)
def test_only_the_test_suite_gets_what_ours_is_held_against(made: Machine, verb: str, wanted: bool) -> None:
    assert ("reference" in make(made, "-n", verb)) is wanted


def test_a_reference_that_cannot_be_had_stops_nothing(made: Machine) -> None:
    python = made.folder / ".venv" / "bin" / "python"
    python.write_text(python.read_text().replace('"-m pip"*)', '*reference*) exit 1 ;;\n    "-m pip"*)'))
    assert "the tests that need them will be skipped" in make(made, ".venv/done/reference")
    assert not (made.folder / ".venv" / "done" / "reference").exists()


def test_a_browser_that_is_only_a_stub_is_none(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine.programs))
    machine.add("chromium-browser", "echo 'requires the chromium snap' >&2; exit 1")
    assert chromium.find() is None
    assert "sudo snap install chromium" in machine.run("tools.sh", ".tools").stdout
    machine.add("google-chrome", "exit 0")
    assert chromium.find() == str(machine.programs / "google-chrome")
    assert "No Chromium" not in machine.run("tools.sh", ".tools").stdout


def test_tools_that_cannot_be_had_are_named_and_no_failure(machine: Machine) -> None:
    result = machine.run("tools.sh", ".tools")
    assert result.returncode == 0, result.stderr
    assert "No Chromium: browser tests will be skipped." in result.stdout
    assert "No Prometheus: tests with promtool will be skipped." in result.stdout
    assert "No Grafana types: the dashboards are not held against them." in result.stdout


def test_root_installs_chromium_and_unpacks_prometheus(machine: Machine) -> None:
    machine.add("id", "echo 0")
    machine.add("browser", "exit 0")
    bring = f'*install*) mv "{machine.programs}/browser" "{machine.programs}/chromium" ;; *download*) touch prometheus_2.deb ;;'
    machine.add("apt-get", f'echo "$*" >> "{machine.folder}/apt-journal"\ncase "$*" in {bring} esac')
    machine.add("dpkg", '[ -f "$2" ] && mkdir -p "$3/usr/bin" && touch "$3/usr/bin/promtool"')
    result = machine.run("tools.sh", ".tools")
    assert result.returncode == 0, result.stderr
    verbs = [line.split("Use-Pty=0 ")[1] for line in (machine.folder / "apt-journal").read_text().splitlines()]
    assert verbs == [
        "update",
        "install -y --no-install-recommends chromium",
        "-o APT::Sandbox::User=root download prometheus",
        "install -y --no-install-recommends nodejs npm",
    ]
    assert (machine.folder / ".tools" / "usr" / "bin" / "promtool").exists()


def test_what_is_there_is_not_fetched_again(machine: Machine) -> None:
    machine.add("apt-get", "echo called >> apt-journal")
    machine.add("dpkg", "exit 0")
    for name in ("chromium", "prometheus", "promtool"):
        machine.add(name, "exit 0")
    machine.add("npm", "mkdir node_modules && echo {} > node_modules/.package-lock.json && echo called >> ../../npm-journal")
    assert "Installing Grafana's types" in machine.run("tools.sh", ".tools").stdout
    result = machine.run("tools.sh", ".tools")
    assert (result.returncode, result.stdout) == (0, "")
    assert not (machine.folder / "apt-journal").exists()
    assert (machine.folder / "npm-journal").read_text() == "called\n"


def test_types_that_npm_cannot_install_are_named_and_leave_nothing(machine: Machine) -> None:
    machine.add("npm", "mkdir node_modules; exit 1")
    result = machine.run("tools.sh", ".tools")
    assert (result.returncode, "No Grafana types" in result.stdout) == (0, True)
    assert not (machine.folder / ".tools" / "grafana_types").exists()


def told_by_make(*words: str) -> str:
    """What a make of its own prints; the tests' own make, which runs them, hands its flags and settings down."""
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    return subprocess.run(["make", *words], cwd=ROOT, capture_output=True, text=True, check=True, env=env).stdout


def test_help_lists_every_verb() -> None:
    phony = re.findall(r"^\.PHONY: FORCE (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    assert len(phony) >= 14
    told = told_by_make("-s")
    assert [verb for verb in phony if f"make {verb} " not in told] == []


def test_the_slow_tests_are_left_to_the_proofs() -> None:
    assert "-m 'not slow'" in told_by_make("-n", "test")
    assert "-m slow" in told_by_make("-n", "proofs")
    assert "slow" not in told_by_make("-n", "test-all")


@pytest.mark.parametrize("runs", ["my runs", "Anna's"])
def test_a_folder_of_any_name_reaches_the_demo(runs: str) -> None:
    lines = told_by_make("-n", "demo", f"RUNS={runs}")
    call = lines[lines.index("PYTHON=") :].replace("sh trainer/demo/run.sh", "sh -c 'echo \"$RUNS\"'")
    assert subprocess.run(["sh", "-c", call], capture_output=True, text=True, check=True).stdout == f"{runs}\n"
