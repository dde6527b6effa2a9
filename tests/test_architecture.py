"""The rules of the layout (docs/layout.md), a test each: who may import whom, how long a file may be, which words are used."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.sources import ROOT, imported_modules, imported_names, name_of, product_modules, text_files, tree

PRODUCT = product_modules("trainer", "dashboard", "grafana")
TESTS = product_modules("tests")
MODULES = {name_of(path) for path in PRODUCT}
GRAPH = {name_of(path): imported_modules(path, MODULES) - {name_of(path)} for path in PRODUCT if path.name != "__init__.py"}

# Two wings on one ground, joined at the top. A folder imports those before it in its wing, those of its own line excepted.
GROUND = [["errors", "files", "formatting", "metrics", "record", "pipeline"], ["config"]]
ROAD = [["devices"], ["data"], ["target"], ["drafter"], ["formats", "decoding"], ["evaluate", "prepare", "run"]]
WATCH = [["gpus", "trackers"], ["monitor"], ["server"]]
TOP = ["build", "watch", "train", "cli", "__main__"]
FOR_OTHERS = ("trainer.metrics.catalogue", "trainer.record.format", "trainer.record.reader")

MOST_LINES, MOST_TEST_LINES, MOST_FUNCTION_LINES, MOST_FILES = 300, 400, 40, 12
CATCH_ALLS = {"utils", "util", "common", "core", "manager", "managers", "helpers", "misc", "components", "base"}
SYNONYMS = {"teacher", "verifier", "student"}  # the words are target and drafter


def rel(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def folder(module: str) -> str:
    """`trainer.data.batches` → `data`, `trainer.config` → `config`."""
    return module.split(".")[1]


def reached(module: str, graph: dict[str, set[str]] = GRAPH) -> set[str]:
    """All that importing `module` imports, at any distance."""
    seen: set[str] = set()
    ahead = [module]
    while ahead:
        new = graph.get(ahead.pop(), set()) - seen
        seen |= new
        ahead += new
    return seen


def allowed(wing: list[list[str]], name: str) -> set[str]:
    """The folders that `name` of `wing` may reach: itself, those before it, and the ground."""
    place = next(number for number, line in enumerate(wing) if name in line)
    before = {other for line in wing[:place] for other in line}
    ground = {other for line in GROUND for other in line} if wing is not GROUND else set()
    within = set(wing[place]) if wing is GROUND else {name}
    return before | within | ground


def test_road_and_watch_stand_on_the_ground_and_never_meet() -> None:
    offenders = []
    for module in GRAPH:
        if module.startswith("trainer.") and folder(module) not in TOP:
            wing = next(wing for wing in (GROUND, ROAD, WATCH) if any(folder(module) in line for line in wing))
            reaches = {other for other in reached(module) if "." in other}
            wrong = sorted(other for other in reaches if folder(other) not in allowed(wing, folder(module)))
            offenders += [f"{module} reaches {', '.join(wrong)}"] if wrong else []
    assert offenders == []


def test_every_folder_has_its_place_in_a_wing() -> None:
    placed = {name for wing in (GROUND, ROAD, WATCH) for line in wing for name in line} | set(TOP)
    assert {folder(module) for module in GRAPH if module.startswith("trainer.")} == placed


def test_who_draws_imports_the_catalogue_and_the_record_of_the_trainer_and_nothing_else() -> None:
    offenders = [
        f"{module} reaches {other}"
        for module in GRAPH
        if module.split(".")[0] in ("dashboard", "grafana")
        for other in sorted(reached(module))
        if other.startswith("trainer.") and not other.startswith(FOR_OTHERS) and other not in ("trainer.metrics", "trainer.record")
    ]
    assert offenders == []


def test_the_trainer_knows_nobody_who_draws() -> None:
    drawing = {"dashboard", "grafana", "tests", "plotly"}
    offenders = [rel(path) for path in product_modules("trainer") if {n.split(".")[0] for n in imported_names(path)} & drawing]
    assert offenders == []


def test_what_others_read_of_the_trainer_needs_only_the_standard_library() -> None:
    offenders = []
    for path in product_modules("trainer/metrics/catalogue", "trainer/pipeline"):
        offenders += _foreign(path)
    for name in ("trainer/record/format.py", "trainer/record/reader.py"):
        offenders += _foreign(ROOT / name)
    assert offenders == []


def _foreign(path: Path) -> list[str]:
    tops = {name.split(".")[0] for name in imported_names(path)} - set(sys.stdlib_module_names) - {"trainer"}
    return [f"{rel(path)} imports {top}" for top in sorted(tops)]


def test_no_import_cycles() -> None:
    try:
        list(TopologicalSorter(GRAPH).static_order())
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


@pytest.mark.parametrize("module", ["trainer.metrics.catalogue.index", "trainer.record.reader", "dashboard.app", "grafana.build"])
def test_importing_it_loads_no_torch(module: str) -> None:
    heavy = f"import sys, {module}; print([m for m in ('torch', 'transformers', 'datasets', 'pandas') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", heavy], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_folders_hold_few_files() -> None:
    folders = {path.parent for path in PRODUCT}
    counts = {
        rel(place): len([path for path in PRODUCT if path.parent == place and path.name != "__init__.py"]) for place in folders
    }
    assert {place: files for place, files in counts.items() if files > MOST_FILES} == {}


def test_files_are_small() -> None:
    most = dict.fromkeys(PRODUCT, MOST_LINES) | dict.fromkeys(TESTS, MOST_TEST_LINES)
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in most}
    assert {rel(path): lines for path, lines in lengths.items() if lines > most[path]} == {}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_functions_are_short() -> None:
    lengths = {f"{rel(path)}: {f.name}": f.end_lineno - f.lineno + 1 for path in PRODUCT for f in functions(path) if f.end_lineno}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_FUNCTION_LINES} == {}


def test_names_collect_nothing() -> None:
    assert [rel(path) for path in PRODUCT if set(path.relative_to(ROOT).with_suffix("").parts) & CATCH_ALLS] == []


def test_modules_and_folders_open_with_what_they_are() -> None:
    assert [rel(path) for path in PRODUCT if not ast.get_docstring(tree(path))] == []


def test_packages_hold_one_line() -> None:
    packages = [path for path in PRODUCT if path.name == "__init__.py"]
    assert [rel(path) for path in packages if len(path.read_text(encoding="utf-8").splitlines()) != 1] == []


def identifiers(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        yield from (str(getattr(node, field)) for field in ("id", "arg", "attr", "name") if getattr(node, field, None))


def test_one_word_per_thing() -> None:
    offenders = []
    for path in PRODUCT + TESTS:
        words = {word for name in identifiers(path) for word in re.split(r"_|\.|(?<=[a-z])(?=[A-Z])", name)}
        offenders += [f"{rel(path)}: {word}" for word in words if word.lower() in SYNONYMS]
    assert offenders == []


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


def test_links_lead_to_files_that_exist() -> None:
    broken = []
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]:
        links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        files = [link.partition("#")[0] for link in links if "://" not in link and not link.startswith("#")]
        broken += [f"{rel(page)}: {link}" for link in files if not page.parent.joinpath(link).exists()]
    assert broken == []


def test_paths_that_are_named_exist() -> None:
    """In pages, settings and comments: `trainer/…`, `tests/…` and their like."""
    wrong = []
    for path in text_files():
        if "decisions" not in path.parts and path.name != "CHANGELOG.md":
            text = path.read_text(encoding="utf-8")
            named = set(
                re.findall(
                    r"(?<![\w/.<-])(?:trainer|dashboard|grafana|tests|docs|docker)/[\w/-]+\.(?:py|md|yml|sh|js|toml)\b", text
                )
            )
            wrong += [f"{rel(path)}: {name}" for name in sorted(named) if not (ROOT / name).exists()]
    assert wrong == []


def test_what_the_walks_name_is_there() -> None:
    """docs/layout.md names classes and functions behind their file: `path` `name`."""
    layout = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)` `(\w+)`", layout)
    assert len(named) > 20
    assert [
        f"{path} {name}" for path, name in named if not re.search(rf"^(class|def) {name}\b", (ROOT / path).read_text(), re.M)
    ] == []
