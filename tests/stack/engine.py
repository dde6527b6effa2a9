"""docker-compose.yml on a real Docker engine, under a project name and ports of its own: begun, asked, broken, taken down."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from tests.support.sources import ROOT

Json = dict[str, Any]
T = TypeVar("T")
SERVERS = ("trainer", "dashboard", "prometheus", "alertmanager")
PORTS = ("TRAINER_PORT", "DASHBOARD_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT", "ALERTMANAGER_PORT")


def eventually(what: str, look: Callable[[], T], seconds: float = 60.0, pause: float = 1.0) -> T:
    """What `look` answers once that is true; a server that does not answer yet is no failure before the time is over."""
    deadline, last = time.monotonic() + seconds, ""
    while True:
        try:
            if found := look():
                return found
        except (httpx.HTTPError, ValueError, KeyError, LookupError) as error:
            last = f" (last: {type(error).__name__}: {error})"
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s{last}"
        time.sleep(pause)


class Stack:
    """One project of Compose. `settings` are the variables of .env, for every command from now on."""

    def __init__(self, project: str, settings: Mapping[str, str], files: tuple[Path, ...] = ()) -> None:
        self.project = project
        self.settings = dict(settings)
        self._files = (ROOT / "docker-compose.yml", *files)
        self._client = httpx.Client(timeout=10, trust_env=False)

    def compose(self, *words: str, seconds: float = 120, check: bool = True, files: tuple[Path, ...] = ()) -> str:
        """Runs `docker compose` with both profiles that need no GPU; answers what it printed."""
        command = ["docker", "compose", "--project-directory", str(ROOT), "-p", self.project]
        for file in (*self._files, *files):
            command += ["-f", str(file)]
        command += ["--profile", "cpu", "--profile", "alerting", "--progress", "plain", *words]
        done = subprocess.run(
            command, env={**os.environ, **self.settings}, capture_output=True, text=True, timeout=seconds, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"docker compose {' '.join(words)}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def address(self, port: str) -> str:
        return f"http://127.0.0.1:{self.settings[port]}"

    def get(self, port: str, path: str) -> httpx.Response:
        return self._client.get(self.address(port) + path)

    def status(self) -> Json:
        found: Json = self.get("TRAINER_PORT", "/status").json()
        return found

    def control(self, action: str, token: str | None) -> httpx.Response:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return self._client.post(f"{self.address('TRAINER_PORT')}/control/{action}", headers=headers)

    def containers(self) -> dict[str, Json]:
        """What `docker compose ps` knows of each service's container, ended ones too."""
        lines = self.compose("ps", "--all", "--format", "json").splitlines()
        return {row["Service"]: row for row in map(json.loads, lines)}

    def health(self) -> dict[str, str]:
        return {name: row["Health"] or row["State"] for name, row in self.containers().items()}

    def inspect(self, service: str) -> Json:
        told = docker("inspect", self.containers()[service]["ID"])
        found: Json = json.loads(told)[0]
        return found

    def python(self, service: str, code: str, *, check: bool = True) -> str:
        return self.compose("exec", "-T", service, "python", "-c", code, check=check)

    def image(self, service: str) -> str:
        name: str = json.loads(self.compose("config", "--format", "json"))["services"][service]["image"]
        return name

    def grafana(self, path: str, body: Json | None = None, host: str = "localhost") -> httpx.Response:
        """As somebody without a login, who asks for it by the name `host`; with a `body` a POST."""
        headers = {"host": f"{host}:{self.settings['GRAFANA_PORT']}"}
        return self._client.request(
            "GET" if body is None else "POST", self.address("GRAFANA_PORT") + path, headers=headers, json=body
        )

    def events(self, run: str) -> list[Json]:
        """The run's record, as the dashboard sees it."""
        text = self.python("dashboard", f"print(open('/runs/{run}/events.jsonl').read())")
        return [json.loads(line) for line in text.splitlines() if line]

    def logs(self, service: str) -> str:
        return self.compose("logs", "--no-log-prefix", service)

    def volumes(self) -> set[str]:
        label = f"label=com.docker.compose.project={self.project}"
        return set(docker("volume", "ls", "--quiet", "--filter", label).split())

    def remove(self) -> None:
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "20", seconds=180)
        self._client.close()


def docker(*words: str, seconds: float = 60) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, timeout=seconds, check=True).stdout


def require_engine() -> None:
    try:
        docker("info", seconds=20)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.fail(f"the stack is tested on a Docker engine, and none answers here: {error}", pytrace=False)


def has_image(image: str) -> bool:
    """Whether the engine has it, or can pull it within two minutes."""
    with contextlib.suppress(subprocess.SubprocessError):
        docker("image", "inspect", image)
        return True
    with contextlib.suppress(subprocess.SubprocessError):
        docker("pull", "--quiet", image, seconds=120)
        return True
    return False


def free_ports(names: tuple[str, ...] = PORTS) -> dict[str, str]:
    """Ports of the loopback interface that nobody listens on just now, all at once so that no two are the same."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in names]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return {name: str(probe.getsockname()[1]) for name, probe in zip(names, probes, strict=True)}


@contextlib.contextmanager
def running(stack: Stack, services: tuple[str, ...]) -> Iterator[Stack]:
    """`services` and all they need, built and started; gone again afterwards, whatever happens, volumes included."""
    try:
        stack.compose("build", *(name for name in services if name in ("trainer", "dashboard")), seconds=1200)
        stack.compose("up", "--detach", *services, seconds=180)
        yield stack
    finally:
        print(stack.compose("ps", "--all", check=False))  # what pytest shows of a failure
        print(stack.compose("logs", "--tail", "40", check=False))
        stack.remove()
