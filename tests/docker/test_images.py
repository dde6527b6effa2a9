"""docker/dashboard.Dockerfile: the image holds what the dashboard reaches of the trainer, all of it and nothing else."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sources import ROOT, imported_modules, name_of, product_modules

COPY = re.compile(r"^COPY ((?:[\w./]+ )+)([\w./]+)$", re.MULTILINE)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The image's folder /app, as its COPY lines make it."""
    for sources, place in COPY.findall((ROOT / "docker" / "dashboard.Dockerfile").read_text()):
        for source in sources.split():
            found, folder = ROOT / source, tmp_path / place
            folder.mkdir(parents=True, exist_ok=True)
            if found.is_dir():
                shutil.copytree(found, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(found, folder)
    return tmp_path


def test_the_dashboard_starts_in_its_image(image: Path) -> None:
    """Where nothing of ours can be imported but what the image holds."""
    command = [sys.executable, "-P", "-m", "dashboard", "--help"]
    shown = subprocess.run(command, cwd=image, env={"PYTHONPATH": str(image)}, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")
    every = "import dashboard.__main__, dashboard.app; print(dashboard.app.__file__)"
    found = subprocess.run(
        [sys.executable, "-P", "-c", every], cwd=image, env={"PYTHONPATH": str(image)}, capture_output=True, text=True, check=False
    )
    assert (found.stdout.strip(), found.stderr) == (str(image / "dashboard" / "app.py"), "")


def test_the_image_holds_of_the_trainer_only_what_the_dashboard_reaches(image: Path) -> None:
    modules = {name_of(path): path for path in product_modules("trainer", "dashboard")}
    reached: set[str] = set()
    ahead = [name for name in modules if name.split(".")[0] == "dashboard"]
    while ahead:
        new = imported_modules(modules[ahead.pop()], set(modules)) - reached
        reached |= new
        ahead += new
    packages = {name.rpartition(".")[0] for name in reached} | {"trainer", "trainer.metrics"}
    wanted = {name for name in reached | packages if name.split(".")[0] == "trainer"}
    held = {path.relative_to(image).as_posix() for path in (image / "trainer").rglob("*.py")}
    assert held == {modules[name].relative_to(ROOT).as_posix() for name in wanted}
