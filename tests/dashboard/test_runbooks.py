"""The address in an alert opens its page, and nothing else of the disk."""

import re

import pytest
from fastapi.testclient import TestClient

from dashboard import runbooks
from dashboard.app import create_app
from dashboard.record.runs import Runs
from tests.support.sources import ROOT


@pytest.fixture
def client(tmp_path):
    with TestClient(create_app(Runs(tmp_path)), base_url="http://localhost") as client:
        yield client


def test_a_page_is_plain_text_as_it_is_on_disk(client):
    answer = client.get("/runbooks/draftscopestalled")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.content == (ROOT / "docs" / "runbooks" / "draftscopestalled.md").read_bytes()


def test_the_list_names_each_page_with_its_sentence(client):
    lines = client.get("/runbooks").text.splitlines()
    pages = sorted(path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md"))
    assert [line.split("  ")[0] for line in lines] == [f"/runbooks/{page}" for page in pages]
    stalled = next(line for line in lines if "stalled" in line)
    assert re.fullmatch(r"/runbooks/draftscopestalled  [A-Z][^*]+\.", stalled)


@pytest.mark.parametrize(
    "name", ["nonsense", "DraftscopeStalled", "..%2f..%2fREADME", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "x" * 5000]
)
def test_only_known_names_are_answered(client, name):
    answer = client.get(f"/runbooks/{name}")
    assert answer.status_code == 404
    assert len(answer.text) < 300


def test_an_unknown_name_is_told_where_the_list_is(client):
    detail = client.get("/runbooks/nonsense").json()["detail"]
    assert "'nonsense'" in detail
    assert "/runbooks" in detail


def test_without_the_folder_both_say_so(tmp_path, monkeypatch):
    pages = runbooks.load(tmp_path / "none")
    monkeypatch.setattr(runbooks, "load", lambda: pages)
    with TestClient(create_app(Runs(tmp_path)), base_url="http://localhost") as client:
        for address in ("/runbooks", "/runbooks/draftscopestalled"):
            answer = client.get(address)
            assert answer.status_code == 404
            assert answer.json()["detail"].startswith("This dashboard was installed without docs/runbooks")
