"""trainer/record/environment.py: the versions and the commit that a run was made with."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.record import environment
from trainer.record.environment import LIBRARIES, git_commit, versions


def test_the_versions_name_everything_that_can_change_a_run() -> None:
    found = versions()
    assert set(found) == {"draftscope", "python", *LIBRARIES}
    assert found["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert found["python"] == sys.version.split()[0]


def test_without_git_or_a_checkout_no_commit_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "run.py"))
    assert git_commit() is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit() is None


def test_an_image_knows_the_commit_that_it_was_built_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "run.py"))
    monkeypatch.setenv("DRAFTSCOPE_COMMIT", "0f3c9a1d")
    assert git_commit() == "0f3c9a1d"
    monkeypatch.setenv("DRAFTSCOPE_COMMIT", "")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit() is None, "an image that was not told knows none"


@pytest.mark.parametrize(("said", "commit"), [("0f3c9a1d\n", "0f3c9a1d"), ("", None), (subprocess.TimeoutExpired("git", 5), None)])
def test_the_commit_is_what_git_says_in_time(said: Any, commit: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if isinstance(said, Exception):
            raise said
        return subprocess.CompletedProcess(command, 0, stdout=said)

    monkeypatch.setattr(subprocess, "run", answer)
    assert git_commit() == commit
