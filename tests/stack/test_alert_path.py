"""From a number on /metrics to a line on a screen: real Prometheus, the real rules, real Alertmanager, the example receiver."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.support import prometheus, rules
from tests.support.sources import ROOT

CONFIG = ROOT / "docker" / "alertmanager" / "alertmanager.yml"
WAIT_SECONDS = 25


def of_debian(*names: str) -> str:
    """Debian calls it prometheus-alertmanager, its makers alertmanager."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    return found or pytest.skip(f"no {' or '.join(names)} on PATH (apt-get install prometheus-alertmanager)")


def alertmanager_command() -> list[str]:
    """Debian's finds its templates in /usr/share only. Unpacked elsewhere and not installed, it is shown its own there."""
    binary = of_debian("prometheus-alertmanager", "alertmanager")
    share, templates = Path(binary).resolve().parent.parent / "share", "prometheus/alertmanager/default.tmpl"
    if (Path("/usr/share") / templates).exists() or not (share / templates).exists():
        return [binary]
    shown = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        'mount --bind "$0" /usr/share && exec "$@"',
        str(share),
        binary,
    ]
    if subprocess.run([*shown, "--version"], capture_output=True).returncode != 0:
        pytest.skip(f"{binary} is unpacked and not installed, and no user namespace can be made to show it its templates")
    return shown


def ports(number: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    taken = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return taken


def until(what: str, found: Callable[[], object], log: Callable[[], str]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not found():
        assert time.monotonic() < deadline, f"{what} did not come in {WAIT_SECONDS} s; so far:\n{log()}"
        time.sleep(0.2)


@contextmanager
def a_trainer(port: int) -> Iterator[dict[str, float]]:
    """An exporter that serves what the dictionary holds at the moment."""
    numbers: dict[str, float] = {}

    class Fake(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = "".join(f"{series} {value}\n" for series, value in numbers.items()).encode()
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Fake) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield numbers
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def started(command: list[str], log: Path) -> Iterator[None]:
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=20)


def quick(port: int) -> str:
    """The stack's own Alertmanager config, with short waits and a receiver on this machine."""
    text = CONFIG.read_text(encoding="utf-8").replace("http://webhook:9095/", f"http://127.0.0.1:{port}/")
    return re.sub(r"(group_wait|group_interval): \w+", r"\1: 1s", text)


def test_amtool_accepts_the_config():
    checked = subprocess.run([of_debian("amtool"), "check-config", CONFIG], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ("alertname=DraftscopeWatchdog severity=info", "nobody"),
        ("alertname=DraftscopeStalled severity=critical", "webhook"),
        ("alertname=DraftscopeLossSpike severity=warning", "webhook"),
        ("alertname=DraftscopeTrainerMissing severity=info", "webhook"),
    ],
)
def test_alerts_go_where_they_should(labels, receiver):
    routed = subprocess.run(
        [of_debian("amtool"), "config", "routes", "test", f"--config.file={CONFIG}", *labels.split()],
        capture_output=True,
        text=True,
    )
    assert routed.stdout.split() == [receiver]


def test_the_config_names_alerts_that_exist():
    named = set(re.findall(r"Draftscope\w+", CONFIG.read_text(encoding="utf-8")))
    assert named <= {rule["alert"] for rule in rules.ALERTS}
    assert len(named) >= 4


@pytest.mark.slow
def test_a_failed_run_is_told_mutes_the_rest_and_is_over_when_it_is_resumed(tmp_path, prometheus_binary):
    alertmanager = alertmanager_command()
    scraped, asked, told, received = ports(4)
    manager = f"http://127.0.0.1:{told}/api/v2"
    (tmp_path / "alertmanager.yml").write_text(quick(received))
    printed = tmp_path / "receiver.log"
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rules.FILES],
        "scrape_configs": [{"job_name": "draftscope", "static_configs": [{"targets": [f"127.0.0.1:{scraped}"]}]}],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{told}"]}]}]},
    }
    command = [
        *alertmanager,
        f"--config.file={tmp_path}/alertmanager.yml",
        f"--storage.path={tmp_path}/alertmanager",
        f"--web.listen-address=127.0.0.1:{told}",
        "--cluster.listen-address=",
    ]
    failed, errors = 'draftscope_run_state{state="failed"}', "draftscope_record_errors_total"
    with (
        a_trainer(scraped) as numbers,
        started([sys.executable, str(ROOT / "docker" / "webhook" / "receive.py"), str(received)], printed),
        started(command, tmp_path / "alertmanager.log"),
        prometheus.running(prometheus_binary, tmp_path / "prometheus", asked, config, "--rules.alert.resend-delay=1s") as server,
    ):
        numbers.update({failed: 1, errors: 0})

        def log() -> str:
            return printed.read_text() + (tmp_path / "alertmanager.log").read_text()

        def lines() -> list[str]:
            return [line.partition(": ")[0] for line in printed.read_text().splitlines()[1:]]

        def state(alert: str) -> str:
            found = httpx.get(f"{manager}/alerts", params={"filter": f"alertname={alert}"}).json()
            return found[0]["status"]["state"] if found else ""

        where = f"127.0.0.1:{scraped}"
        fired = f"FIRING   critical DraftscopeRunFailed {where}"
        until("the failure", lambda: lines() == [fired], log)
        numbers[errors] = 5
        until("the muted warning", lambda: state("DraftscopeRecordFailing") == "suppressed", log)
        assert server.now('ALERTS{alertname="DraftscopeRecordFailing", alertstate="firing"}')
        until("the watchdog", lambda: state("DraftscopeWatchdog") == "active", log)
        assert lines() == [fired]
        numbers[failed] = 0
        warned = f"FIRING   warning DraftscopeRecordFailing {where}"
        over = f"RESOLVED critical DraftscopeRunFailed {where}"
        until("its end, and the warning", lambda: {over, warned} <= set(lines()), log)
        assert set(lines()) == {fired, over, warned}, "and of the watchdog nobody hears"
