"""docker/init_secrets.py and docker/healthcheck.py: secrets that are made once and told to nobody; health that costs nothing."""

import http.server
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from docker import init_secrets
from docker.healthcheck import healthy
from tests.support.sources import ROOT


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("given", "keys/trainer", "keys/grafana"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(init_secrets, "GIVEN", tmp_path / "given")
    monkeypatch.setattr(init_secrets, "KEYS", tmp_path / "keys")
    return tmp_path


def test_random_keys_are_made_once_and_not_printed(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folders / "given" / "trainer_token").touch()
    assert init_secrets.main() == 0
    token, password = folders / "keys/trainer/token", folders / "keys/grafana/password"
    made = token.read_text(), password.read_text()
    assert len(set(made)) == 2
    assert all(len(key.strip()) >= 32 for key in made)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (token, password)] == [0o600, 0o640]
    assert init_secrets.main() == 0
    assert (token.read_text(), password.read_text()) == made, "as long as the volume stays, so do they"
    printed = "".join(capsys.readouterr())
    assert not any(key.strip() in printed for key in made)


def test_a_secret_that_is_given_wins_and_may_change(folders: Path) -> None:
    init_secrets.main()
    for secret in ("first-token-of-mine", "second-token-of-mine"):
        (folders / "given" / "trainer_token").write_text(f"  {secret}\n")
        assert init_secrets.main() == 0
        assert (folders / "keys/trainer/token").read_text() == f"{secret}\n"
    (folders / "given" / "trainer_token").write_text("")
    init_secrets.main()
    assert (folders / "keys/trainer/token").read_text() == "second-token-of-mine\n"


def test_what_cannot_be_read_or_written_is_a_sentence(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folders / "given" / "grafana_password").write_bytes(b"\xff\xfe")
    assert init_secrets.main() == 1
    assert "must be text, readable for user" in capsys.readouterr().err


@pytest.fixture
def port() -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/healthz" else 503)
            self.end_headers()
            self.wfile.write(b"loading\n")

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def test_health_is_the_answer_200(port: int, free_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert healthy(port, "/healthz")
    assert not healthy(port, "/readyz")
    assert "503 loading" in capsys.readouterr().out, "docker inspect shows why"
    assert not healthy(free_port, "/healthz")


def test_a_health_check_needs_the_standard_library_alone(port: int) -> None:
    for path, code in (("/healthz", 0), ("/readyz", 1)):
        command = [sys.executable, "-S", "-I", str(ROOT / "docker" / "healthcheck.py"), str(port), path]
        assert subprocess.run(command, capture_output=True, check=False).returncode == code
