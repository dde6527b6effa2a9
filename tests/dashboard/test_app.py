"""Routes: who may ask, what is answered, what is never let out; and the stream over a real connection."""

import re
import time
from pathlib import Path

import httpx
import orjson
import pytest
from fastapi.testclient import TestClient

import dashboard.app as app_module
from dashboard import assets
from dashboard.app import create_app
from dashboard.record.runs import Runs
from tests.support.dashboard_server import serving
from tests.support.fake_run import FakeRun


@pytest.fixture
def fake(tmp_path):
    fake = FakeRun(tmp_path / "runs" / "demo.run_1-a")
    fake.play(40)
    return fake


@pytest.fixture
def client(fake):
    runs = Runs(fake.folder.parent)
    with TestClient(
        create_app(runs, ["dash.example", "box:8400", "fd00::7", "[fd00::8]:8400"]),
        base_url="http://localhost",
        follow_redirects=False,
    ) as client:
        yield client


def test_the_root_opens_the_newest_run(client):
    answer = client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/runs/demo.run_1-a")


def test_the_root_waits_where_there_is_no_run(tmp_path):
    client = TestClient(create_app(Runs(tmp_path / "none")), base_url="http://localhost")
    assert client.get("/").status_code == 200
    nothing = {"runs": [], "outside": [], "misnamed": []}
    assert client.get("/api/runs").json() == {"root": str(tmp_path / "none"), "root_exists": False, **nothing}


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8400",
        "127.0.0.1",
        "[::1]:8400",
        "dash.example",
        "DASH.example:1",
        "box",
        "box:1",
        "[fd00::7]:9",
        "[fd00::8]",
    ],
)
def test_allowed_hosts(client, host):
    assert client.get("/api/runs", headers={"host": host}).status_code == 200


def test_a_probe_may_ask_for_signs_of_life_by_any_address(client):
    assert client.get("/healthz", headers={"host": "10.1.2.3:8400"}).text == "ok\n"


@pytest.mark.parametrize("path", ["/", "/healthz", "/api/runs", "/runs/demo.run_1-a", "/nothing", "/runbooks"])
def test_head_answers_as_get_without_the_body(client, path):
    head, whole = (client.request(method, path, follow_redirects=False) for method in ("HEAD", "GET"))
    kinds = [answer.headers.get("content-type") for answer in (head, whole)]
    assert (head.status_code, kinds[0], head.content) == (whole.status_code, kinds[1], b"")


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.1.evil:8400", "[::2]"])
@pytest.mark.parametrize("path", ["/", "/api/runs", "/nothing", "/healthz/"])
def test_other_hosts_get_a_sentence(client, host, path):
    answer = client.get(path, headers={"host": host})
    assert answer.status_code == 400
    assert "--allow-host" in answer.text


@pytest.mark.parametrize("path", ["/", "/healthz", "/runs/demo.run_1-a", "/api/runs", "/nothing", "/api/runs/nobody"])
def test_every_answer_keeps_to_itself(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe-eval" not in policy
    assert not re.search(r"script-src[^;]*unsafe", policy)
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("run_id", ["nobody", "..", "%2e%2e", "..%2f..", "a%20b", "%00"])
@pytest.mark.parametrize("form", ["/api/runs/{}", "/api/runs/{}/series?metric=loss", "/api/runs/{}/events"])
def test_ids_that_are_none_answer_404(client, run_id, form):
    assert client.get(form.format(run_id)).status_code == 404


def test_a_page_without_its_run_waits_for_it(client):
    answer = client.get("/runs/later")
    assert answer.status_code == 404
    assert "page.js" in answer.text


def test_the_page_asks_nobody_else_and_runs_no_inline_script(client):
    page = client.get("/runs/demo.run_1-a").text
    assert re.findall(r"""(?:src|href)="(?!/)[^"]*""", page) == []
    assert re.findall(r"<script(?![^>]*src=)", page) == []
    assert "{{" not in page
    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]


def test_plotly_is_the_installed_packages_own_file(client):
    version = client.app.state.assets.version
    answer = client.get(f"/static/{version}/plotly.min.js")
    assert answer.content == assets.plotly_path().read_bytes()
    again = client.get(f"/static/{version}/plotly.min.js", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    plain = client.get(f"/static/{version}/plotly.min.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == answer.content


@pytest.mark.parametrize("name", ["nothing.js", "..%2fapp.py", "%2e%2e%2fpage.html"])
def test_only_the_files_that_are_meant(client, name):
    assert client.get(f"/static/{client.app.state.assets.version}/{name}").status_code == 404


def test_the_scripts_are_small_and_name_no_host():
    for path in (Path(assets.__file__).parent / "static").glob("*.*"):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 300
        assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}
        assert "innerHTML" not in text


def test_a_summary_has_facts_newest_and_events(client):
    found = client.get("/api/runs/demo.run_1-a").json()
    assert found["facts"]["target"]["name"] == "SmolLM2-135M-Instruct"
    assert found["head"]["newest_step"]["step"] == 40
    assert found["head"]["newest_tick"]["verdict"]["stage"] == "target"
    assert [row["event"] for row in found["events"]] == ["started"]


def test_the_unit_of_the_loss_follows_the_objective(fake):
    file = fake.folder / "run.json"
    made = orjson.loads(file.read_bytes())
    del made["loss_unit"]

    def unit(facts):
        file.write_bytes(orjson.dumps(made | facts))
        with TestClient(create_app(Runs(fake.folder.parent)), base_url="http://localhost") as fresh:
            return fresh.get("/api/runs/demo.run_1-a").json()["head"]["loss_unit"]

    of_old = {"config": {"loss": {"objective": "dpace"}}}  # records of 0.1 have no loss_unit
    assert [unit(facts) for facts in ({}, of_old, {"loss_unit": "nats per draft token"})] == [
        "nats",
        "nats per block",
        "nats per draft token",
    ]
    fake.resume(30, config={"loss": {"objective": "dpace"}})
    assert unit({"loss_unit": "nats per draft token"}) == "nats per block"
    assert unit({"config": None}) == "nats per block"


def test_series_are_drawn_from_the_record(client, fake):
    found = client.get("/api/runs/demo.run_1-a/series?metric=loss,grad_norm&x=step&from=10&to=12").json()
    lines = [orjson.loads(line) for line in (fake.folder / "steps.jsonl").read_bytes().splitlines()]
    segment = found["segments"][0]
    assert segment["axes"]["step"] == [9, 10, 11, 12, 13]
    assert segment["series"]["loss"]["mean"] == pytest.approx([row["loss"] for row in lines[8:13]], rel=1e-6)
    assert set(segment["series"]) == {"loss", "grad_norm"}


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("metric=nothing", 404),
        ("metric=loss&x=nothing", 422),
        ("", 422),
        ("metric=loss&from=nan", 422),
        ("metric=loss,process.cpu_cores", 404),
    ],
)
def test_wrong_series(client, query, status):
    answer = client.get(f"/api/runs/demo.run_1-a/series?{query}")
    assert answer.status_code == status


def test_a_range_beyond_the_run_is_empty(client):
    assert client.get("/api/runs/demo.run_1-a/series?metric=loss&from=900&to=950").json()["rows"] <= 1


def test_charts_say_which_column_has_a_band(client):
    banded = {chart["id"]: chart["banded"] for chart in client.get("/api/charts").json()["charts"] if chart["banded"]}
    assert banded == {"loss": "loss", "acceptance": "estimated_acceptance_length", "gradient": "grad_norm"}


def test_the_panels_come_from_the_catalogue(client):
    found = client.get("/api/charts").json()
    assert {chart["id"] for chart in found["charts"]} >= {
        "loss",
        "acceptance",
        "positions",
        "throughput",
        "queues",
        "shares",
        "devices",
    }
    assert all(chart["axis"] and chart["question"] for chart in found["charts"])


def ticks(lines):
    for line in lines:
        if line.startswith("data: "):
            yield line[6:]


def test_a_new_step_is_streamed_within_two_seconds_in_a_small_message(fake):
    with serving(fake.folder.parent) as address:
        ticked = httpx.get(f"{address}/api/runs/{fake.folder.name}/series?metric=telemetry").json()["cursor"]
        url = f"{address}/api/runs/{fake.folder.name}/events?cursor=40:{ticked}:1"
        with httpx.stream("GET", url, timeout=10) as answer:
            messages = ticks(answer.iter_lines())
            assert orjson.loads(next(messages))["steps"] is None
            written = time.monotonic()
            fake.steps(1)
            text = next(messages)
            assert time.monotonic() - written <= 2
            assert len(text) <= 50_000
            assert orjson.loads(text)["steps"]["segments"][0]["axes"]["step"] == [41]


def test_a_run_that_is_watched_is_kept_up_to_date_however_many_others_are_opened(fake):
    others = [FakeRun(fake.folder.parent / f"other{number}") for number in range(7)]
    with serving(fake.folder.parent) as address:
        ticked = httpx.get(f"{address}/api/runs/{fake.folder.name}/series?metric=telemetry").json()["cursor"]
        url = f"{address}/api/runs/{fake.folder.name}/events?cursor=40:{ticked}:1"
        with httpx.stream("GET", url, timeout=3) as answer:
            messages = ticks(answer.iter_lines())
            next(messages)
            for other in others:
                assert httpx.get(f"{address}/api/runs/{other.folder.name}").status_code == 200
            fake.steps(1)
            assert orjson.loads(next(messages))["steps"]["rows"] == 1


def test_a_stream_goes_on_from_the_last_event_id(fake):
    with serving(fake.folder.parent) as address:
        headers = {"last-event-id": "38:0:1"}
        with httpx.stream("GET", f"{address}/api/runs/{fake.folder.name}/events", headers=headers, timeout=10) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert orjson.loads(next(ticks(answer.iter_lines())))["steps"]["segments"][0]["axes"]["step"] == [39, 40]


def test_streams_are_bounded_and_their_places_come_back(fake, monkeypatch):
    monkeypatch.setattr(app_module, "MOST_STREAMS", 1)
    with serving(fake.folder.parent) as address:
        url = f"{address}/api/runs/{fake.folder.name}/events"
        with httpx.stream("GET", url, timeout=10) as answer:
            messages = ticks(answer.iter_lines())  # kept: httpx closes the connection with its iterator
            next(messages)
            refused = httpx.get(url)
            assert refused.status_code == 503
            assert "close one" in refused.json()["detail"]
            messages.close()
        fake.steps(1)  # so that the server writes, and sees that nobody listens
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            with httpx.stream("GET", url, timeout=10) as answer:
                if answer.status_code == 200:
                    return
            time.sleep(0.1)
        pytest.fail("the place was not given back")
