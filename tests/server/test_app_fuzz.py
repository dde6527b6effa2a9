"""The trainer's HTTP face against its own OpenAPI: whatever is asked, it answers as it announces, and never fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi import checks

from tests.support.fake_monitor import FakeMonitor
from tests.support.served import exposition
from trainer.metrics.catalogue.watching import CONTROL_ACTIONS
from trainer.monitor.control import Control
from trainer.server import control_routes, middleware
from trainer.server.app import add_control, create_app

TOKEN = "a-token-for-the-tests"
FUZZ = settings(
    max_examples=10, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=False
)
# What may be refused though it fits the schema: a pause of a run that is paused, and the like.
EXCLUDED = [checks.positive_data_acceptance]


@pytest.fixture
def no_rate_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in ((middleware, ("READS_AT_ONCE",)), (control_routes, ("AT_ONCE", "WRONG_AT_ONCE"))):
        for name in names:
            monkeypatch.setattr(module, name, 10**9)


def schema_of(app: FastAPI) -> schemathesis.BaseSchema:
    app.state.events.close()  # or a stream would never end
    return schemathesis.openapi.from_asgi("/openapi.json", app)


def controlled(live: FakeMonitor) -> schemathesis.BaseSchema:
    control = Control()
    control.attach(live)
    app = create_app(live, exposition, ("testserver",))
    add_control(app, control, live, TOKEN.encode())
    return schema_of(app).include(path_regex="^/control/")


def fuzz(schema: schemathesis.BaseSchema, look: Callable[[Case], None]) -> set[str]:
    """Let `look` at cases of every operation, made by what the schema allows and by what it does not; tells which there were."""
    operations = [result.ok() for result in schema.get_all_operations()]
    for operation in operations:
        for mode in GenerationMode:
            if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
                continue  # there is nothing to get wrong
            FUZZ(given(operation.as_strategy(generation_mode=mode))(look))()
    return {operation.label for operation in operations}


@pytest.mark.usefixtures("no_rate_limits")
def test_what_reads_answers_as_it_announces() -> None:
    def look(case: Case) -> None:
        case.call_and_validate(excluded_checks=EXCLUDED)

    routes = fuzz(schema_of(create_app(FakeMonitor(), exposition, ("testserver",))), look)
    assert routes == {f"GET /{name}" for name in ("", "status", "metrics", "events", "healthz", "readyz")}


@pytest.mark.usefixtures("no_rate_limits")
def test_who_has_the_token_is_answered_as_announced() -> None:
    seen = set()

    def look(case: Case) -> None:
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {TOKEN}"}
        # Whether the token is asked for is the next test's: this check takes a token that it did not make for a wrong one.
        seen.add(case.call_and_validate(excluded_checks=[*EXCLUDED, checks.ignored_auth]).status_code)

    assert fuzz(controlled(FakeMonitor()), look) == {f"POST /control/{action}" for action in CONTROL_ACTIONS}
    assert {200, 202, 400} <= seen, "not all were refused for the same reason"
    assert 401 not in seen


@pytest.mark.usefixtures("no_rate_limits")
def test_who_has_none_moves_nothing() -> None:
    def look(case: Case) -> None:
        assert case.call_and_validate(excluded_checks=EXCLUDED).status_code in (400, 401, 413)

    live = FakeMonitor()
    fuzz(controlled(live), look)
    assert live.told == []
