"""The pinned requirements: exact, consistent, complete."""

import re
import sys
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path

import pytest

from tests.support.sources import ROOT, imported_names, product_modules

REQUIREMENTS = ROOT / "requirements"
SETS = ("torch", "trainer", "dashboard", "demo", "demo-target", "dev", "trackers", "bench", "reference", "reference-needs")
ALONE = ("demo-target", "bench", "reference")  # installed with --no-deps: what they ask for is not wanted


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(name: str) -> dict[str, str]:
    lines = (REQUIREMENTS / f"{name}.txt").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    assert all(line.count("==") == 1 for line in lines), f"requirements/{name}.txt: every line is NAME==VERSION"
    return {normal(package): version for package, _, version in (line.partition("==") for line in lines)}


APART = {"torch"}.union(*(pins(name) for name in ALONE))  # torch is pinned in a file of its own


@pytest.mark.parametrize("name", SETS)
def test_direct_pins_are_those_of_the_lock(name: str) -> None:
    lock = pins("lock")
    assert {package: version for package, version in pins(name).items() if package not in APART} == {
        package: lock[package] for package in pins(name) if package not in APART
    }


@pytest.mark.parametrize("name", SETS)
def test_everything_beneath_is_locked(name: str) -> None:
    """Walks what is installed here, from the direct pins down; torch's own GPU libraries are pinned by torch."""
    lock, todo = pins("lock"), set(pins(name)) - APART
    if missing := [package for package in todo if name == "reference-needs" and not is_installed(package)]:
        pytest.skip(f"{', '.join(missing)} is not installed (make test tries to)")
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


@pytest.mark.parametrize(("folder", "sets"), [("trainer", ("torch", "trainer", "demo", "trackers")), ("dashboard", ("dashboard",))])
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


@pytest.mark.parametrize("name", ALONE)
def test_what_is_installed_alone_brings_nothing_along(name: str) -> None:
    """Neither by pip's own choice nor by ours: nothing that the lock constrains may hang on it."""
    _, _, rule = (ROOT / "Makefile").read_text().partition(f"$(DONE)/{name}: ")
    assert "--no-deps -r $<" in rule.partition("\n\n")[0]
    assert set(pins(name)) & set(pins("lock")) == set()


@pytest.mark.parametrize("package", pins("reference"))
def test_the_product_runs_without_what_it_is_held_against(package: str) -> None:
    module = package.replace("-", "_")
    product = product_modules("trainer", "dashboard", "grafana")
    assert [path for path in product if module in {name.partition(".")[0] for name in imported_names(path)}] == []
    by_name = re.compile(rf"(import_module|find_spec|__import__)\W+{module}\b")
    assert [path for path in product if by_name.search(path.read_text())] == []
