"""The page's files: whatever changes, the address under which browsers keep it changes too."""

import shutil

import pytest

from dashboard import assets


@pytest.mark.parametrize("name", ["page.html", "static/words.js", "plotly.js"])
def test_a_change_of_any_file_is_a_new_version(tmp_path, monkeypatch, name):
    shutil.copytree(assets.HERE / "static", tmp_path / "static")
    shutil.copy(assets.HERE / "page.html", tmp_path)
    (tmp_path / "plotly.js").write_text("// a small one")
    monkeypatch.setattr(assets, "HERE", tmp_path)
    monkeypatch.setattr(assets, "plotly_path", lambda: tmp_path / "plotly.js")
    load = assets.load.__wrapped__
    before = load()
    assert load() == before
    with (tmp_path / name).open("a") as file:
        file.write("\n")
    after = load()
    assert after.version != before.version
    assert f"/static/{after.version}/page.js" in after.page
