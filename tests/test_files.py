"""trainer/files.py: nothing is overwritten, and a folder is there whole or not at all."""

from pathlib import Path

import pytest

from trainer.errors import ConfigError
from trainer.files import free_place, whole_folder


def test_a_place_is_free_or_it_is_told_what_stands_there(tmp_path: Path) -> None:
    assert free_place(str(tmp_path / "new"), "folder") == tmp_path / "new"
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(ConfigError, match=f"{name}' exists already: name a file that does not, or remove it"):
            free_place(str(tmp_path / name), "file")


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "a" / "b") as folder:
        (folder / "file").touch()
        assert not (tmp_path / "a" / "b").exists()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert (tmp_path / "a" / "b" / "file").exists()
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "a" / "c"):
        raise ZeroDivisionError
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
