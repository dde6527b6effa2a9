"""A real Prometheus that a test starts, asks and ends."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

Json = dict[str, Any]
START_SECONDS = 30


class Prometheus:
    def __init__(self, address: str) -> None:
        self._client = httpx.Client(base_url=f"{address}/api/v1", timeout=20)

    def now(self, expr: str) -> list[Json]:
        """An instant vector; AssertionError with Prometheus' words for an expression that it cannot execute."""
        return self._ask("query", query=expr)["result"]

    def over(self, expr: str, seconds: float, step: float = 1.0) -> list[Json]:
        """The same over the time that has just gone by."""
        end = time.time()
        return self._ask("query_range", query=expr, start=end - seconds, end=end, step=step)["result"]

    def label_values(self, label: str, series: str) -> list[str]:
        found: list[str] = self._ask(f"label/{label}/values", **{"match[]": series})
        return found

    def targets(self) -> list[Json]:
        found: list[Json] = self._ask("targets")["activeTargets"]
        return found

    def close(self) -> None:
        self._client.close()

    def _ask(self, path: str, **parameters: Any) -> Any:
        answer = self._client.get(f"/{path}", params=parameters).json()
        assert answer["status"] == "success", f"{answer.get('error')}: {parameters}"
        return answer["data"]


@contextmanager
def running(binary: str, folder: Path, port: int, config: Json, *options: str) -> Iterator[Prometheus]:
    """A Prometheus with `config` and further `options`, its data in `folder`; what it said is in `folder/prometheus.log`."""
    folder.mkdir(exist_ok=True)
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    address = f"127.0.0.1:{port}"
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={address}",
                *options,
            ],
            stdout=log,
            stderr=log,
        )
    prometheus = Prometheus(f"http://{address}")
    try:
        _wait(process, address, folder)
        yield prometheus
    finally:
        prometheus.close()
        process.terminate()
        process.wait(timeout=20)


def _wait(process: subprocess.Popen[bytes], address: str, folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"http://{address}/-/ready", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"Prometheus did not start: {(folder / 'prometheus.log').read_text()[-2000:]}")
