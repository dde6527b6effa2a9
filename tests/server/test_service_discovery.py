"""A trainer's file for Prometheus: whole, alone at its address, gone at an orderly end, and never a reason to stop."""

import http.client
import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.config import WatchConfig
from trainer.run.folder import Run
from trainer.server import service_discovery
from trainer.server.service_discovery import ServiceDiscoveryFile, rank_of, reachable
from trainer.watch import RunFailedError, Watch, listening


def read(folder: Path) -> dict[str, object]:
    return {path.name: json.loads(path.read_text()) for path in folder.iterdir()}


@pytest.fixture
def private() -> Iterator[None]:
    """What others may read has to be said."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("private")
def test_the_file_is_what_prometheus_reads(tmp_path: Path) -> None:
    folder = tmp_path / "targets"
    assert ServiceDiscoveryFile(folder, "a-run", "http://10.0.0.7:9400").publish() is None
    assert read(folder) == {"draftscope-a-run.json": [{"targets": ["10.0.0.7:9400"], "labels": {}}]}
    assert stat.S_IMODE((folder / "draftscope-a-run.json").stat().st_mode) == 0o644, "Prometheus runs as another user"


def test_a_rank_is_a_label_and_part_of_the_name(tmp_path: Path) -> None:
    for rank in ("0", "1"):
        ServiceDiscoveryFile(tmp_path, "a-run", f"http://10.0.0.7:940{rank}", rank).publish()
    assert read(tmp_path) == {
        f"draftscope-a-run-rank{rank}.json": [{"targets": [f"10.0.0.7:940{rank}"], "labels": {"rank": rank}}] for rank in "01"
    }


def test_an_ipv6_address_stands_in_brackets(tmp_path: Path) -> None:
    ServiceDiscoveryFile(tmp_path, "a", "http://[::1]:9400").publish()
    assert json.loads((tmp_path / "draftscope-a.json").read_text())[0]["targets"] == ["[::1]:9400"]


@pytest.mark.parametrize(("given", "rank"), [("3", "3"), ("0", "0"), ("", None), ("-1", None), ("three", None), ("²", None)])
def test_the_rank_is_a_number_or_none(given: str, rank: str | None) -> None:
    assert rank_of({"RANK": given}) == rank
    assert rank_of({}) is None


def test_an_address_that_listens_everywhere_goes_by_the_machines_name() -> None:
    assert reachable("http://0.0.0.0:9400") == f"{socket.gethostname()}:9400"
    assert reachable("http://[::]:9401") == f"{socket.gethostname()}:9401"
    assert reachable("http://10.0.0.5:9402") == "10.0.0.5:9402"
    assert reachable("http://[::1]:9403") == "[::1]:9403"


def test_a_trainer_that_serves_nothing_says_why_it_is_not_found(tmp_path: Path) -> None:
    discovery = ServiceDiscoveryFile(tmp_path, "a", None)
    assert "--watch.port -1" in str(discovery.publish())
    assert discovery.remove() is None
    assert list(tmp_path.iterdir()) == []


def test_it_is_never_seen_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[Path]] = []
    sync = os.fsync

    def look(descriptor: int) -> None:
        seen.append(set(tmp_path.glob("*.json")))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    ServiceDiscoveryFile(tmp_path, "a", "http://10.0.0.7:9400").publish()
    assert seen[0] == set(), "flushed before it had its name"
    assert [path.name for path in tmp_path.iterdir()] == ["draftscope-a.json"]


def test_an_orderly_end_takes_it_away(tmp_path: Path) -> None:
    discovery = ServiceDiscoveryFile(tmp_path, "a", "http://10.0.0.7:9400")
    discovery.publish()
    assert discovery.remove() is None
    assert list(tmp_path.iterdir()) == []
    assert discovery.remove() is None, "twice is no trouble"


def test_what_a_crash_left_is_overwritten_by_the_resumed_run(tmp_path: Path) -> None:
    ServiceDiscoveryFile(tmp_path, "a", "http://10.0.0.7:9400").publish()
    ServiceDiscoveryFile(tmp_path, "a", "http://10.0.0.8:9400").publish()
    assert read(tmp_path) == {"draftscope-a.json": [{"targets": ["10.0.0.8:9400"], "labels": {}}]}


def test_what_a_crash_left_goes_when_the_next_run_answers_there(tmp_path: Path) -> None:
    ServiceDiscoveryFile(tmp_path, "crashed", "http://10.0.0.7:9400").publish()
    ServiceDiscoveryFile(tmp_path, "alive", "http://10.0.0.7:9401").publish()
    (tmp_path / "by-hand.json").write_text('[{"targets": ["10.0.0.7:9400"]}]')
    (tmp_path / "draftscope-torn.json").write_text("[{")
    ServiceDiscoveryFile(tmp_path, "next", "http://10.0.0.7:9400").publish()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"draftscope-alive.json", "draftscope-next.json", "by-hand.json", "draftscope-torn.json"}


def test_the_file_of_another_process_that_took_over_stays(tmp_path: Path) -> None:
    before = ServiceDiscoveryFile(tmp_path, "a", "http://10.0.0.7:9400")
    before.publish()
    ServiceDiscoveryFile(tmp_path, "a", "http://10.0.0.8:9400").publish()
    assert before.remove() is None
    assert json.loads((tmp_path / "draftscope-a.json").read_text())[0]["targets"] == ["10.0.0.8:9400"]


def test_trouble_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    sentence = ServiceDiscoveryFile(tmp_path / "file", "a", "http://10.0.0.7:9400").publish()
    assert sentence is not None
    assert "draftscope-a.json cannot be written (" in sentence
    assert "training goes on" in sentence


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(service_discovery.os, "fsync", full)
    sentence = ServiceDiscoveryFile(tmp_path, "a", "http://10.0.0.7:9400").publish()
    assert sentence is not None
    assert "No space left on device" in sentence
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_found_while_it_runs_and_answers_to_the_name_it_gave(tmp_path: Path) -> None:
    run = Run(folder=tmp_path / "runs", metadata={"id": "one", "max_steps": 4})
    run.folder.mkdir()
    config = WatchConfig(
        host="0.0.0.0", port=0, token_file=str(tmp_path / "token"), announce=str(tmp_path / "targets"), console="off"
    )
    with listening(config) as server:
        with Watch(run, config, server) as watch:
            (target,) = json.loads((tmp_path / "targets" / "draftscope-one.json").read_text())[0]["targets"]
            connection = http.client.HTTPConnection("127.0.0.1", int(target.rpartition(":")[2]), timeout=5)
            connection.request("GET", "/healthz", headers={"Host": target})
            assert connection.getresponse().status == 200
            connection.close()
            watch.finish("Done.")
        assert list((tmp_path / "targets").iterdir()) == []


def test_a_failed_run_is_no_longer_looked_for(tmp_path: Path) -> None:
    run = Run(folder=tmp_path, metadata={"id": "one", "max_steps": 4})
    config = WatchConfig(port=0, announce=str(tmp_path / "targets"), console="off")
    with listening(config) as server, pytest.raises(RunFailedError), Watch(run, config, server):
        raise RuntimeError("the target is gone")
    assert list((tmp_path / "targets").iterdir()) == []


def test_a_folder_that_cannot_be_had_is_a_warning_and_no_end(tmp_path: Path) -> None:
    (tmp_path / "targets").write_text("in the way")
    run = Run(folder=tmp_path, metadata={"id": "one", "max_steps": 4})
    config = WatchConfig(port=0, announce=str(tmp_path / "targets"), console="off")
    with listening(config) as server, Watch(run, config, server) as watch:
        assert [w for w in watch.monitor.state.warnings if "Prometheus cannot find this trainer" in str(w)]
        watch.finish("Done.")
