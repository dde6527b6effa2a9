"""The rules of the layout (docs/layout.md): who may import whom, how long a file may be, which words are used."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.sources import ROOT, imported_modules, imported_names, name_of, product_modules, text_files, tree

PRODUCT = product_modules("trainer", "dashboard", "grafana")
TESTS = product_modules("tests")
MODULES = {name_of(path) for path in PRODUCT}

# A station imports only stations before it.
ROAD = (
    "trainer.dataset",
    "trainer.batches",
    "trainer.target",
    "trainer.anchors",
    "trainer.drafter",
    "trainer.loss",
    "trainer.learner",
)
# They move and measure whatever they carry; what it is, they do not know.
MECHANISM = ("trainer.queues", "trainer.stages")
ASSEMBLY = ("trainer.train", "trainer.recorder", "trainer.status")

LONG = {"trainer/metrics.py": "one declaration after another, nothing to split"}
MOST_LINES, MOST_TEST_LINES, MOST_FUNCTION_LINES = 300, 400, 40
CATCH_ALLS = {"utils", "util", "common", "core", "manager", "managers", "helpers", "misc", "components", "base"}
SYNONYMS = {"teacher", "verifier", "student"}  # the words are target and drafter


def rel(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def ids(path: Path) -> str:
    return rel(path)


def imports(module: str) -> set[str]:
    path = ROOT / (module.replace(".", "/") + ".py")
    return imported_modules(path, MODULES) - {"trainer", "dashboard"}


@pytest.mark.parametrize("path", product_modules("dashboard", "grafana"), ids=ids)
def test_what_draws_imports_only_the_catalogue_of_the_trainer(path: Path) -> None:
    trainers = {name for name in imported_names(path) if name.split(".")[0] == "trainer"}
    assert {name for name in trainers if not re.match(r"trainer\.metrics(\.|$)", name)} == set()


@pytest.mark.parametrize("path", product_modules("trainer"), ids=ids)
def test_the_trainer_knows_nobody_who_draws(path: Path) -> None:
    assert {name for name in imported_names(path) if name.split(".")[0] in ("dashboard", "grafana", "tests", "plotly")} == set()


@pytest.mark.parametrize("module", ["trainer.metrics", "trainer.metrics_doc"])
def test_the_catalogue_needs_only_the_standard_library(module: str) -> None:
    tops = {name.split(".")[0] for name in imported_names(ROOT / (module.replace(".", "/") + ".py"))}
    assert tops - set(sys.stdlib_module_names) - {"trainer"} == set()
    assert imports(module) <= {"trainer.metrics"}


@pytest.mark.parametrize("station", ROAD)
def test_a_station_imports_only_earlier_ones(station: str) -> None:
    later = set(ROAD[ROAD.index(station) + 1 :])
    assert imports(station) & later == set()
    assert imports(station) & set(MECHANISM + ASSEMBLY) == set(), "a station knows of no thread, queue or metric"


@pytest.mark.parametrize("module", MECHANISM)
def test_queues_and_stages_know_nothing_of_drafting(module: str) -> None:
    tops = {name.split(".")[0] for name in imported_names(ROOT / (module.replace(".", "/") + ".py"))}
    assert tops - set(sys.stdlib_module_names) - {"trainer"} == set(), "torch least of all"
    assert imports(module) <= {"trainer.queues"}


def test_no_import_cycles() -> None:
    graph = {name_of(path): imported_modules(path, MODULES) - {name_of(path), "trainer", "dashboard"} for path in PRODUCT}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


@pytest.mark.parametrize("module", ["trainer.metrics", "dashboard.app"])
def test_importing_it_loads_no_torch(module: str) -> None:
    heavy = f"import sys, {module}; print([m for m in ('torch', 'transformers', 'datasets', 'pandas') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", heavy], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize("path", PRODUCT + TESTS, ids=ids)
def test_files_are_small(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    most = MOST_TEST_LINES if path in TESTS else MOST_LINES
    assert lines <= most or rel(path) in LONG, f"{lines} lines; what outgrows {most} becomes a folder of that name"


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("path", PRODUCT, ids=ids)
def test_functions_are_short(path: Path) -> None:
    lengths = {f.name: f.end_lineno - f.lineno + 1 for f in functions(path) if f.end_lineno}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_FUNCTION_LINES} == {}


@pytest.mark.parametrize("path", PRODUCT, ids=ids)
def test_modules_say_what_they_are(path: Path) -> None:
    assert set(path.relative_to(ROOT).with_suffix("").parts) & CATCH_ALLS == set(), "such a name collects everything"
    if path.name != "__init__.py":
        assert ast.get_docstring(tree(path)), "a module opens with what comes in and what goes out"


def test_packages_are_empty() -> None:
    assert [rel(path) for path in PRODUCT if path.name == "__init__.py" and path.read_text()] == []


def identifiers(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        yield from (str(getattr(node, field)) for field in ("id", "arg", "attr", "name") if getattr(node, field, None))


@pytest.mark.parametrize("path", PRODUCT + TESTS, ids=ids)
def test_one_word_per_thing(path: Path) -> None:
    words = {word for name in identifiers(path) for word in re.split(r"_|\.|(?<=[a-z])(?=[A-Z])", name)}
    assert {word for word in words if word.lower() in SYNONYMS} == set()


# Written in pieces, so that this file does not find itself.
HOSTS = [
    name.replace("-dot-", ".")
    for name in ("pypi-dot-org", "pythonhosted-dot-org", "download-dot-pytorch", "deb-dot-debian", "npmjs-dot-")
]
MACHINE_PATH = re.compile(r"(?<![\w.~:}-])/(?:work|home|root|Users)/[\w.]+")


def test_no_machine_and_no_registry_is_named() -> None:
    found = {}
    for path in text_files():
        text = path.read_text(encoding="utf-8")
        if words := [*MACHINE_PATH.findall(text), *(host for host in HOSTS if host in text)]:
            found[rel(path)] = words
    assert found == {}


def test_the_layout_names_every_file_and_no_other() -> None:
    layout = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\|[ \d|]* `([\w/]+\.py)` \|", layout, flags=re.MULTILINE))
    there = {rel(path) for path in PRODUCT if path.name != "__init__.py"}
    assert named == there


def test_the_layout_numbers_the_stations_as_they_do_themselves() -> None:
    layout = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    numbers = {path: int(number) for number, path in re.findall(r"^\| (\d+) \| `([\w/]+\.py)`", layout, flags=re.MULTILINE)}
    docstrings = {rel(path): ast.get_docstring(tree(path)) or "" for path in PRODUCT}
    own = {path: int(match[1]) for path, text in docstrings.items() if (match := re.match(r"Station (\d+)\.", text))}
    assert numbers == own
    assert sorted(own.values()) == list(range(1, len(own) + 1))


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_links_lead_to_files_that_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [
        link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link and not link.startswith("#")
    ]
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_what_the_readme_names_exists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b(?:trainer|dashboard|tests|docs|requirements)/[\w./-]*\w", readme))
    assert {name for name in named if not (ROOT / name).exists()} == set()
