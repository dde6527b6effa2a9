import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_monitor import a_status, sample_status
from tests.support.served import Served
from trainer.server.app import readiness

DOCS = Path(__file__).parents[2] / "docs" / "status.md"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One server for all tests that leave it as it is."""
    with Served() as served:
        yield served


def test_status_is_json_of_everything_known(served):
    answer = served.get("/status")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == json.loads(json.dumps(sample_status()))


def test_status_as_text(served):
    answer = served.get("/status?format=text")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text.startswith("The target holds the run back: busy 97 %.")


def test_an_unknown_format_is_refused_with_a_sentence(served):
    answer = served.get("/status?format=xml")
    assert (answer.status_code, answer.text) == (400, "format must be json or text, got 'xml'\n")


def test_metrics_in_the_format_that_was_asked_for(served):
    assert served.get("/metrics").headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert served.get("/metrics").text == "draftscope_loss 3.4\n"
    assert served.get("/metrics", accept="application/openmetrics-text").text == "# EOF\n"


def test_no_redirects_no_docs_pages_no_control(served):
    for path in ("/metrics/", "/docs", "/redoc", "/control/stop", "/nope"):
        assert served.get(path).status_code == 404, path
    assert served.client.post("/control/stop").status_code == 404
    refused = served.client.post("/status")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
    assert refused.text == "POST /status: method not allowed; GET / lists what there is\n"


def test_the_index_and_the_schema_list_the_routes(served):
    paths = {"/", "/status", "/metrics", "/healthz", "/readyz", "/events"}
    assert set(served.get("/openapi.json").json()["paths"]) == paths
    assert all(path in served.get("/").text for path in paths)


@pytest.mark.parametrize(
    ("changed", "ready", "sentence"),
    [
        ({}, True, "ready: the run is running"),
        ({"state": "paused"}, True, "ready: the run is paused"),
        ({"state": "finishing"}, True, "ready: the run is finishing"),
        ({"state": "starting", "phase": "loading the target"}, False, "not ready: the run is starting: loading the target"),
        (
            {"state": "stalled", "verdict": {"sentence": "The target is stuck."}},
            False,
            "not ready: the run is stalled: The target is stuck.",
        ),
        ({"state": "failed", "last_error": "boom"}, False, "not ready: the run has failed: boom"),
        ({"state": "finished"}, False, "not ready: the run is finished"),
    ],
)
def test_readiness(changed, ready, sentence):
    assert readiness(a_status(**changed)) == (ready, sentence)


def test_readyz_follows_the_run():
    with Served() as served:
        assert served.get("/readyz").status_code == 200
        served.live.tick(state="starting", phase="loading the target")
        answer = served.get("/readyz")
        assert (answer.status_code, answer.text) == (503, "not ready: the run is starting: loading the target\n")


def test_the_cost_of_answers_is_told():
    spent: list[float] = []
    with Served(on_cpu_seconds=spent.append) as served:
        served.get("/status")
        served.get("/metrics")
        served.get("/readyz")
    assert len(spent) == 3
    assert all(0 < seconds < 1 for seconds in spent)


def field_names(value: object) -> Iterator[str]:
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from field_names(inner)
    if isinstance(value, dict):
        yield from value


def test_every_field_is_documented():
    documented = set(re.findall(r"`([a-z_]+)(?:\[\])?`", DOCS.read_text()))
    versions = set(sample_status()["versions"])
    assert set(field_names(sample_status())) - versions - documented == set()
