"""trainer/server/auth.py: the token's file is made safely and read strictly, and never told."""

import hmac
import logging
import os
import stat
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer.errors import ConfigError
from trainer.server import auth
from trainer.server.auth import is_authorized, read_token

TOKEN = b"0123456789abcdef"


def written(tmp_path: Path, content: bytes, mode: int = 0o600) -> str:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def test_a_missing_file_is_made_for_its_owner_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "secrets" / "deep" / "token"
    caplog.set_level(logging.INFO)
    before = os.umask(0)
    try:
        token = read_token(str(path))
    finally:
        os.umask(before)
    assert len(token) >= 40
    assert path.read_bytes().strip() == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path], "no draft is left"
    assert read_token(str(path)) == token, "the same from now on"
    assert caplog.messages == [f"Made a token for controlling runs, in {path}."]


def test_two_that_start_at_once_have_the_same_token(tmp_path: Path) -> None:
    path, found = str(tmp_path / "token"), []
    threads = [threading.Thread(target=lambda: found.append(read_token(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


@pytest.mark.parametrize("content", [TOKEN, b"\n  " + TOKEN + b" \r\n\n", b"a" * 512, b"!~" * 8])
def test_a_token_in_a_file(tmp_path: Path, content: bytes) -> None:
    assert read_token(written(tmp_path, content)) == content.strip()


NO_TOKENS = [
    *(b"", b"\n", b"short", TOKEN[:15], b"a" * 513, b"a" * 5000, TOKEN + b"\n" + TOKEN, TOKEN + b" x", b"\0" * 20),
    "schlüssel-schlüssel".encode(),
]


@pytest.mark.parametrize("content", NO_TOKENS)
def test_what_is_no_token_is_a_sentence_that_does_not_tell_it(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match="must hold a token, one line of 16 to 512 printable ASCII characters") as refused:
        read_token(written(tmp_path, content))
    assert not content.strip() or content.decode("latin-1").strip() not in str(refused.value)


def test_what_cannot_be_read_or_made_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a regular file: name one"):
        read_token(str(tmp_path))
    file = written(tmp_path, TOKEN)
    with pytest.raises(
        ConfigError, match=r"the token file .*/token/below cannot be used: Not a directory; choose another with --watch.token-file"
    ):
        read_token(f"{file}/below")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_token(str(tmp_path / "pipe"))


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True), (0o660, True), (0o602, True)])
def test_a_file_that_others_can_get_at_is_warned_of(
    tmp_path: Path, mode: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path, TOKEN, mode)
    read_token(file)
    assert [message for message in caplog.messages if f"chmod 600 {file}" in message] == caplog.messages
    assert bool(caplog.messages) == warned
    assert TOKEN.decode() not in caplog.text


def test_the_right_header() -> None:
    for header in (b"Bearer " + TOKEN, b"bearer " + TOKEN, b"BEARER   " + TOKEN + b" "):
        assert is_authorized(header, TOKEN), header


WRONG = [
    *(b"", b"Bearer", b"Bearer ", TOKEN, b"Basic " + TOKEN, b"Bearer " + TOKEN[:-1], b"Bearer " + TOKEN + b"x"),
    *(b"Bearer " + TOKEN.upper(), b"Bearer \xff\xfe", b"Bearer,Bearer " + TOKEN),
]


def test_wrong_headers() -> None:
    assert [header for header in WRONG if is_authorized(header, TOKEN)] == []


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(auth, "hmac", SimpleNamespace(compare_digest=compare))
    for given in (b"x", TOKEN, b"Basic " + TOKEN):
        is_authorized(b"Bearer " + given, TOKEN)
    assert len(compared) == 3, "never decided by anything else first"
