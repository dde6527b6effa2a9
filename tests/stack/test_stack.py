"""The whole stack on a real engine, as an operator lives with it: begun, watched, broken, gone on with, taken down.

One story, in the order of this file. Grafana takes part where its image can be had; what its panels ask is asked in any case.
"""

from __future__ import annotations

import math
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.grafana.test_queries import of_gpus
from tests.stack.engine import PORTS, Stack, docker, eventually, free_ports, has_image, require_engine, running
from tests.support.dashboards import Query, all_queries, filled_in
from tests.support.prometheus import Prometheus
from tests.support.sources import ROOT

pytestmark = pytest.mark.timeout(1500)

Json = dict[str, Any]
RUN = "stack"
TRAINER = "trainer:9400"
FLAGS = """--dataset.max-length 384 --batches.token-budget 512 --batches.epochs 100000 --max-steps 1000000 --cpu-threads 1
    --drafter.block-size 4 --drafter.layers 1 --drafter.anchors 8 --checkpoint.every 100 --evaluate.every 100 --evaluate.limit 2
    --evaluate.max-new-tokens 6"""
SHOWN = 600  # seconds; more than the story takes so far
# Dashboard, panel, query: why this run has nothing to show there.
EMPTY = {
    "Draftscope: Run / Verdict": "which of its queries has something depends on what the run does just now",
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    require_engine()
    settings = {**free_ports(), "TARGET": "tiny", "DATA": "demo", "NAME": RUN, "TRAIN_ARGS": " ".join(FLAGS.split())}
    for name in ("TRAINER_TOKEN_FILE", "GRAFANA_PASSWORD_FILE", "HF_TOKEN_FILE", "MODELS", "TARGETS"):
        settings[name] = ""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    project = f"draftscope-test-{os.getpid()}"
    begun = Stack(project, {**settings, "DRAFTSCOPE_COMMIT": commit})
    services = ("trainer", "dashboard", "prometheus", "alertmanager", "webhook")
    services += ("grafana",) if has_image(begun.image("grafana")) else ()
    with running(begun, services) as found:
        yield found
    assert docker("ps", "--all", "--quiet", "--filter", f"label=com.docker.compose.project={project}") == ""
    assert found.volumes() == set()


@pytest.fixture(scope="module")
def prometheus(stack: Stack) -> Iterator[Prometheus]:
    asked = Prometheus(stack.address("PROMETHEUS_PORT"))
    yield asked
    asked.close()


@pytest.fixture(scope="module")
def token(stack: Stack) -> str:
    return stack.compose("exec", "-T", "trainer", "cat", "/keys/token").strip()


def value(prometheus: Prometheus, expr: str) -> float | None:
    found = prometheus.now(expr)
    return float(found[0]["value"][1]) if found else None


def told(stack: Stack, event: str) -> list[Json]:
    return [row for row in stack.events(RUN) if row["event"] == event]


def trains(stack: Stack, beyond: int = 0, seconds: float = 90) -> Json:
    def status() -> Json | None:
        found = stack.status()
        return found if found["state"] == "running" and found["step"] > beyond else None

    found = eventually(f"a step beyond {beyond}", status, seconds)
    assert found is not None
    return found


def test_everything_becomes_healthy(stack: Stack) -> None:
    def healthy() -> dict[str, str] | None:
        found = stack.health()
        return found if {state for name, state in found.items() if name != "keys"} == {"healthy"} else None

    found = eventually("health", healthy, 180, pause=2)
    assert found is not None
    assert found["keys"] == "exited"
    assert {"trainer", "dashboard", "prometheus", "alertmanager", "webhook"} <= set(found)


def test_it_trains_and_three_servers_say_the_same_of_it(stack: Stack, prometheus: Prometheus) -> None:
    status = trains(stack, beyond=5)
    assert status["run"]["id"] == RUN
    (run,) = stack.get("DASHBOARD_PORT", "/api/runs").json()["runs"]
    assert (run["id"], run["ended"]) == (RUN, False)
    loss = eventually("the loss in Prometheus", lambda: value(prometheus, f'draftscope_loss{{run_id="{RUN}"}}'))
    assert loss is not None
    assert math.isfinite(loss)
    assert stack.get("DASHBOARD_PORT", "/runbooks/draftscopetrainerdown").status_code == 200


def test_grafana_shows_everyone_the_dashboards_and_lets_nobody_change_them(stack: Stack) -> None:
    if "grafana" not in stack.containers():
        pytest.skip(f"{stack.image('grafana')} is not on this machine and cannot be pulled")
    moved = stack.grafana("/", host="127.0.0.1")
    assert (moved.status_code, moved.headers["location"]) == (301, f"http://localhost:{stack.settings['GRAFANA_PORT']}/")
    for name in ("run", "devices", "operations"):
        assert stack.grafana(f"/api/dashboards/uid/draftscope-{name}").status_code == 200
    query = {"refId": "A", "datasource": {"type": "prometheus", "uid": "prometheus"}, "expr": "up", "instant": True}
    answer = stack.grafana("/api/ds/query", {"queries": [query], "from": "now-5m", "to": "now"})
    assert (answer.status_code, len(answer.json()["results"]["A"]["frames"]) > 0) == (200, True), answer.text
    assert stack.grafana("/api/dashboards/db", {"dashboard": {"title": "mine"}}).status_code in (401, 403)
    assert stack.grafana("/api/snapshots", {"dashboard": {"title": "mine"}}).status_code in (401, 403, 404)


def test_the_record_names_the_commit_that_the_image_was_built_from(stack: Stack) -> None:
    code = f"import json; print(json.load(open('/runs/{RUN}/run.json'))['git_commit'])"
    assert stack.python("dashboard", code).strip() == (stack.settings["DRAFTSCOPE_COMMIT"] or "None")


def test_the_dashboards_image_has_no_torch_and_neither_has_a_way_to_become_root(stack: Stack) -> None:
    look = "import importlib.util as u; print(u.find_spec('torch') is not None)"
    assert [stack.python(name, look).strip() for name in ("dashboard", "trainer")] == ["False", "True"]
    for name in ("trainer", "dashboard"):
        status = dict(re.findall(r"^(\w+):(.*)$", stack.python(name, "print(open('/proc/self/status').read())"), re.MULTILINE))
        assert status["Uid"].split() == ["10001"] * 4
        assert {status[key].strip() for key in ("CapEff", "CapPrm", "CapBnd")} == {"0" * 16}
        assert status["NoNewPrivs"].strip() == "1"
        assert "Read-only file system" in stack.python(name, "try: open('/app/x', 'w')\nexcept OSError as e: print(e)")
    assert "Read-only file system" in stack.python("dashboard", "try: open('/runs/x', 'w')\nexcept OSError as e: print(e)")


def test_ports_are_open_on_this_machine_only(stack: Stack) -> None:
    for name in set(stack.containers()) - {"keys", "webhook"}:
        (bound,) = [place for places in stack.inspect(name)["NetworkSettings"]["Ports"].values() for place in places or []]
        assert bound["HostIp"] == "127.0.0.1"
        assert bound["HostPort"] == stack.settings[next(port for port in PORTS if name.upper() in port)]


def test_control_is_for_whoever_has_the_token(stack: Stack, token: str) -> None:
    assert stack.control("checkpoint", None).status_code == 401
    assert stack.control("checkpoint", "not-" + token).status_code == 401
    before = len(told(stack, "checkpoint"))
    assert stack.control("checkpoint", token).status_code == 202
    eventually("the checkpoint that was asked for", lambda: len(told(stack, "checkpoint")) > before)
    assert token not in stack.logs("trainer") + stack.logs("keys")


def test_rules_are_loaded_and_each_can_be_evaluated(stack: Stack) -> None:
    def evaluated() -> list[Json] | None:
        groups = stack.get("PROMETHEUS_PORT", "/api/v1/rules").json()["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None

    found = eventually("every rule", evaluated) or []
    assert [(rule["name"], rule["lastError"]) for rule in found if rule["health"] != "ok"] == []
    alerts = {rule["name"]: rule["state"] for rule in found if rule["type"] == "alerting"}
    assert {name for name, state in alerts.items() if state == "firing"} <= {"DraftscopeWatchdog", "DraftscopeAcceptanceParted"}
    assert alerts["DraftscopeWatchdog"] == "firing"


def test_a_disk_that_takes_no_checkpoint_reaches_a_person(stack: Stack, token: str) -> None:
    """From the trainer through Prometheus' rules and Alertmanager to the webhook, with the real files of each."""
    stack.compose("exec", "-T", "trainer", "chmod", "a-w", f"/runs/{RUN}/checkpoints")
    try:
        assert stack.control("checkpoint", token).status_code == 202
        wanted = rf"FIRING +critical DraftscopeCheckpointFailing {TRAINER}: "
        eventually("the alert at the webhook", lambda: re.search(wanted, stack.logs("webhook")), 90)
        (alert,) = stack.get("ALERTMANAGER_PORT", "/api/v2/alerts?filter=alertname=DraftscopeCheckpointFailing").json()
        assert alert["generatorURL"].startswith(stack.address("PROMETHEUS_PORT") + "/"), "its link leads somewhere"
        assert told(stack, "checkpoint_failed")
        assert stack.status()["state"] == "running", "training goes on"
    finally:
        stack.compose("exec", "-T", "trainer", "chmod", "u+w", f"/runs/{RUN}/checkpoints")


def test_a_trainer_that_is_killed_is_down_at_once_and_missed(stack: Stack, prometheus: Prometheus, token: str) -> None:
    assert stack.control("checkpoint", token).status_code in (200, 202)
    time.sleep(6)  # a last scrape with what is about to be lost
    stack.compose("kill", "--signal", "KILL", "trainer")
    eventually("up == 0", lambda: value(prometheus, f'up{{instance="{TRAINER}"}}') == 0, 20)
    assert prometheus.now("draftscope_loss") == [], "a curve must not go on as a straight line"
    assert prometheus.now("last_over_time(draftscope_loss[10m])")
    down = 'ALERTS{alertname="DraftscopeTrainerDown", alertstate=~"pending|firing"}'
    eventually("the alert", lambda: prometheus.now(down), 30)
    assert stack.get("DASHBOARD_PORT", f"/api/runs/{RUN}").status_code == 200, "its record can still be read"


def test_started_again_it_goes_on_from_its_newest_checkpoint(stack: Stack, prometheus: Prometheus) -> None:
    checkpoint = told(stack, "checkpoint")[-1]["step"]
    stack.compose("up", "--detach", "trainer")
    trains(stack, beyond=checkpoint)
    (resumed,) = told(stack, "resumed")
    assert (resumed["attempt"], resumed["step"]) == (1, checkpoint)
    eventually("the restart in Prometheus", lambda: value(prometheus, "draftscope_restarts_total") == 1, 20)
    step = value(prometheus, f'draftscope_global_step{{run_id="{RUN}"}}')
    assert step is not None
    assert step >= checkpoint
    eventually("the end of the alert", lambda: not prometheus.now('ALERTS{alertname="DraftscopeTrainerDown"}'), 30)


def panel_of(query: Query) -> str:
    return query.where.rpartition(" / ")[0]


def is_shown(query: Query, prometheus: Prometheus, values: dict[str, str]) -> bool:
    expr = filled_in(query.expr, values)
    found = prometheus.now(expr) if query.instant else prometheus.over(expr, SHOWN, step=5)
    numbers = [number for series in found for _, number in series.get("values") or [series["value"]]]
    return any(math.isfinite(float(number)) for number in numbers)


def test_every_panel_has_something_to_show(stack: Stack, prometheus: Prometheus) -> None:
    """But those of GPUs and other trackers, which this run has not got; tests/grafana/test_queries.py fills those."""
    fixed = {"__rate_interval": "20s", "__range": f"{SHOWN}s", "webapp": stack.address("DASHBOARD_PORT")}
    values = fixed | {"job": "draftscope", "run": RUN, "instance": re.escape(TRAINER), "stage": ".+", "gpu": ".+"}
    asked = [query for query in all_queries() if query.kind == "panel"]
    asked = [query for query in asked if panel_of(query) not in of_gpus() and panel_of(query) not in EMPTY]
    assert len(asked) > 60

    def all_shown() -> bool:
        asked[:] = [query for query in asked if not is_shown(query, prometheus, values)]
        return not asked

    try:
        eventually("something in every panel", all_shown, 120, pause=5)
    except AssertionError:
        pytest.fail("empty: " + ", ".join(query.where for query in asked))


def test_a_trainer_that_crashes_is_started_again_by_the_engine(stack: Stack) -> None:
    before = stack.inspect("trainer")["RestartCount"]
    # The trainer's own process: the child of the container's init.
    stack.compose(
        "exec", "-T", "trainer", "python", "-c", "import os; os.kill(int(open('/proc/1/task/1/children').read()), 9)", check=False
    )
    eventually("a restart", lambda: stack.inspect("trainer")["RestartCount"] == before + 1, 30)
    trains(stack, beyond=told(stack, "checkpoint")[-1]["step"])
    assert [row["attempt"] for row in told(stack, "resumed")] == [1, 2]


def test_trainers_that_announce_themselves_are_found_by_rank_and_gone_at_their_end(stack: Stack, prometheus: Prometheus) -> None:
    """Two processes as torchrun would start them: each serves its own numbers, and Prometheus tells them apart."""
    started = []
    for rank in ("0", "1"):
        words = ["train", "--target", "tiny", "--config", "trainer/demo/config.toml", "--name", f"rank{rank}", "--runs", "/runs"]
        words += ["--watch.host", "0.0.0.0", "--watch.token-file", "/keys/token", "--watch.announce", "/targets", *FLAGS.split()]
        name = f"{stack.project}-rank{rank}"
        stack.compose("run", "--detach", "--no-deps", "--name", name, "--env", f"RANK={rank}", "trainer", *words)
        started.append(name)
    try:
        for rank in ("0", "1"):
            expr = f'draftscope_global_step{{rank="{rank}", run_id="rank{rank}"}} > 0'
            eventually(f"rank {rank}", lambda expr=expr: prometheus.now(expr), 180)
        docker("stop", started[0])
        eventually("rank 0 gone", lambda: not prometheus.now('up{rank="0"}'), 20)
        assert prometheus.now('up{rank="1"} == 1')
    finally:
        print(prometheus.targets(), *(docker("logs", "--tail", "20", name) for name in started), sep="\n")  # shown of a failure
        docker("rm", "--force", *started)
    files = stack.python("trainer", "import os; print(os.listdir('/targets'))")
    assert files.strip() == "['draftscope-rank1-rank1.json']", "one that was killed is still asked for, so that somebody notices"
    stack.python("trainer", "import os; os.remove('/targets/draftscope-rank1-rank1.json')")


def test_what_was_learnt_and_seen_outlives_the_containers(stack: Stack, prometheus: Prometheus, token: str) -> None:
    checkpoint, volumes = told(stack, "checkpoint")[-1]["step"], stack.volumes()
    seen = time.time()
    stack.compose("down", "--timeout", "60", seconds=180)
    assert stack.volumes() == volumes
    stack.compose("up", "--detach", "trainer", "dashboard", "prometheus", seconds=180)
    trains(stack, beyond=checkpoint)
    resumed = told(stack, "resumed")[-1]
    assert (resumed["attempt"], resumed["step"] >= checkpoint) == (3, True)
    old = eventually("Prometheus", lambda: prometheus.now(f'draftscope_global_step{{run_id="{RUN}"}} @ {seen - 10:.0f}'), 30)
    assert old
    assert stack.compose("exec", "-T", "trainer", "cat", "/keys/token").strip() == token


def test_the_end_of_a_run_is_seen_and_it_is_not_trained_again(stack: Stack, prometheus: Prometheus) -> None:
    stack.compose("stop", "trainer")
    ended = 'last_over_time(draftscope_run_state{state="finished"}[1m]) == 1'
    assert prometheus.now(ended), "a stop that Prometheus did not see is a crash to the alerts"
    steps = told(stack, "checkpoint")[-1]["step"] + 50
    more = f"--max-steps {steps} --evaluate.every 0 --watch.linger-seconds 15"
    stack.settings |= {"TRAIN_ARGS": f"{stack.settings['TRAIN_ARGS']} {more}"}
    stack.compose("up", "--detach", "trainer", seconds=120)
    eventually("the end in Prometheus", lambda: value(prometheus, 'draftscope_run_state{state="finished"}') == 1, 120)
    eventually("the end of the container", lambda: stack.containers()["trainer"]["State"] == "exited", 60)
    assert stack.containers()["trainer"]["ExitCode"] == 0
    stack.compose("up", "--detach", "trainer")
    eventually("the second end", lambda: "Set NAME to start another" in stack.logs("trainer"), 30)
    assert stack.containers()["trainer"]["ExitCode"] == 0


def test_a_trainer_on_the_machine_itself_is_watched_from_the_stack(stack: Stack, prometheus: Prometheus, tmp_path: Path) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 9400)) == 0:
            pytest.skip("something else listens on port 9400, where docker/prometheus/host/trainer.yml looks for the trainer")
    overlay = ROOT / "docker" / "host-trainer.yml"
    stack.compose("up", "--detach", "--no-deps", "prometheus", files=(overlay,))
    command = [sys.executable, "-m", "trainer", "train", "--config", "trainer/demo/config.toml", "--target", "tiny", *FLAGS.split()]
    command += ["--runs", str(tmp_path / "runs"), "--watch.host", "0.0.0.0", "--watch.token-file", str(tmp_path / "token")]
    command += ["--watch.allow-hosts", "host.docker.internal", "--watch.console", "off"]
    trainer = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        up = 'up{instance="host.docker.internal:9400"} == 1'
        eventually("the trainer on the host", lambda: prometheus.now(up), 60)
        asked = {target["labels"]["instance"] for target in prometheus.targets() if target["labels"]["job"] == "draftscope"}
        assert asked == {"host.docker.internal:9400"}, "the stack's own is not missed"
    finally:
        trainer.terminate()
        assert trainer.wait(timeout=60) == 0
