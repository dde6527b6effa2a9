"""Alerts and recording rules: accepted and tested by promtool, named by the mixin conventions, about metrics that exist."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from tests.conftest import TOOLS
from tests.support import rules
from tests.support.rules import ALERTS, RECORDED
from tests.support.sources import ROOT
from trainer import config
from trainer.metrics.catalogue import index
from trainer.metrics.catalogue.run import VERDICT
from trainer.metrics.catalogue.stages import STAGES
from trainer.monitor import acceptance
from trainer.monitor.collectors import verdict_samples
from trainer.monitor.verdict import Evidence, StageShare, Verdict, judge

RUNBOOKS = ROOT / "docs" / "runbooks"
ADDRESS = "http://127.0.0.1:8400/runbooks/"
ALWAYS = {"DraftscopeWatchdog"}
DISCOVERED = {"job", "instance", "rank"}
NAMES = sorted({rule["alert"] for rule in ALERTS})


def promtools() -> list[str]:
    """Debian's of .tools and the one on PATH: rules are to pass with Prometheus 2 and 3."""
    found = (shutil.which("promtool", path=path) for path in (str(TOOLS), os.environ["PATH"]))
    return list(dict.fromkeys(path for path in found if path))


@pytest.fixture(params=promtools() or [pytest.param("", marks=pytest.mark.skip("no promtool (sh tests/setup/tools.sh .tools)"))])
def tool(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_promtool_accepts_the_rules(tool):
    checked = subprocess.run(
        [tool, "check", "rules", "--lint=all", "--lint-fatal", *rules.FILES], capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(ALERTS)} rules found" in checked.stdout


def test_the_rules_do_what_their_tests_say(tool, tmp_path):
    """All files in one process. Those about every alert at once load them all, the others only what they name."""
    whole = [path for path in rules.TEST_FILES if rules.read(path)["rule_files"] != ["../alerts.yml"] or path.stem == "hours"]
    asked = [path if path in whole else rules.narrowed(path, tmp_path) for path in rules.TEST_FILES]
    tested = subprocess.run([tool, "test", "rules", *asked], capture_output=True, text=True, timeout=200)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert tested.stdout.count("SUCCESS") == len(asked)


def test_every_alert_has_tests_in_which_it_fires_does_not_fire_and_resolves():
    assert [f"{name}: {fault}" for name in NAMES for fault in untested(name)] == []


def untested(name: str) -> Iterator[str]:
    """What the promtool cases of an alert do not show."""
    expected = rules.expectations(name)
    severities = {rule["labels"]["severity"] for rule in ALERTS if rule["alert"] == name}
    fired = {labels["severity"] for moment in expected for labels in moment.firing}
    if fired != severities:
        yield f"fires as {fired}, is declared as {severities}"
    if name in ALWAYS:
        return
    if all(moment.firing for moment in expected):
        yield "no moment at which it does not fire"
    for severity in severities:
        resolved = [
            (before, after)
            for before in expected
            for after in expected
            if before.case == after.case and before.at < after.at and not after.firing
            if severity in {labels["severity"] for labels in before.firing}
        ]
        if not resolved:
            yield f"no case in which it resolves after firing as {severity}"


def test_every_recorded_series_has_a_test_of_its_values():
    tests = [
        moment for path in rules.TEST_FILES for case in rules.read(path)["tests"] for moment in case.get("promql_expr_test", ())
    ]
    asked = " ".join(moment["expr"] for moment in tests if moment.get("exp_samples"))
    assert sorted({rule["record"] for rule in RECORDED if rule["record"] not in asked}) == []


def test_alerts_follow_the_conventions():
    assert [f"{rule['alert']}: {fault}" for rule in ALERTS for fault in unconventional(rule)] == []


def unconventional(rule: dict[str, Any]) -> Iterator[str]:
    """Where an alert is not named, labelled or described as the monitoring mixins ask."""
    name, notes = rule["alert"], rule["annotations"]
    if not re.fullmatch(r"Draftscope([A-Z][a-z]+)+", name):
        yield "the name is not Draftscope in CamelCase"
    if set(rule["labels"]) != {"severity"} or rule["labels"]["severity"] not in ("critical", "warning", "info"):
        yield f"labels {rule['labels']}"
    if set(notes) != {"summary", "description", "runbook_url"}:
        yield f"annotations {set(notes)}"
    if not re.fullmatch(r"[A-Z][^{}]+\.", notes["summary"]):
        yield "the summary is no static sentence"
    if not notes["description"].endswith("."):
        yield "the description is no sentence"
    if "{{ $labels.instance }}" not in notes["description"] and name not in ALWAYS | {"DraftscopeTrainerMissing"}:
        yield "the description does not name the instance"
    if notes["runbook_url"] != ADDRESS + name.lower() or not (RUNBOOKS / f"{name.lower()}.md").is_file():
        yield "no runbook at its URL"


def test_a_name_and_severity_stand_once():
    both = [(rule["alert"], rule["labels"]["severity"]) for rule in ALERTS]
    assert len(both) == len(set(both))
    assert len(NAMES) >= 28


CATALOGUE = {metric.full_name: metric for metric in index.CATALOGUE}


def recorded_labels(name: str) -> set[str]:
    """What the series that a recording rule makes may be asked by."""
    made = [rule for rule in RECORDED if rule["record"] == name]
    assert made, f"no recording rule makes {name}"
    asked = {label for rule in made for one in rules.selectors(rule["expr"]) for label in known_labels(one.metric)}
    return asked | {label for rule in made for label in rule.get("labels", {})}


def known_labels(name: str) -> set[str]:
    if name == "up":
        return set()
    if ":" in name:
        return recorded_labels(name)
    assert name in CATALOGUE, f"{name} is not in the catalogue"
    return set(CATALOGUE[name].label_names)


def test_rules_query_metrics_labels_and_values_that_exist():
    every = [*ALERTS, *RECORDED]
    assert [f"{rule.get('alert') or rule['record']}: {fault}" for rule in every for fault in unknown(rule)] == []


def unknown(rule: dict[str, Any]) -> Iterator[str]:
    """What a rule asks for that no target serves."""
    asked = rules.selectors(rule["expr"])
    if not asked and rule.get("alert") not in ALWAYS:
        yield "it selects no series"
    labels = DISCOVERED.union(*(known_labels(one.metric) for one in asked))
    for one in asked:
        if extra := set(one.matchers) - known_labels(one.metric) - DISCOVERED:
            yield f"{one.metric} has no label {extra}"
        for label, (operator, value) in one.matchers.items():
            allowed = CATALOGUE[one.metric].known_values.get(label) if one.metric in CATALOGUE else None
            given = value.split("|") if "~" in operator else [value]
            if allowed and not set(given) <= {*allowed, ""}:
                yield f"{one.metric} never has {label}={value}"
        if one.metric == "up" and one.matchers != {"job": ("=", "draftscope")}:
            yield "up of other jobs, too"
    told = set(re.findall(r"\$labels\.(\w+)", rule.get("annotations", {}).get("description", "")))
    if strange := (rules.joined_labels(rule["expr"]) | told) - labels:
        yield f"joined or described by {strange}, which no series has"


def test_series_are_never_joined_without_the_rank():
    """Each torchrun rank is a target of its own, with the same job."""
    for rule in [*ALERTS, *RECORDED]:
        for inside in re.findall(r"\bon\s*\(([^)]*)\)", rule["expr"]):
            assert {label.strip() for label in inside.split(",")} >= DISCOVERED, rule


def test_measured_is_far_from_estimated_where_the_trainer_says_so():
    (rule,) = [rule for rule in ALERTS if rule["alert"] == "DraftscopeAcceptanceParted"]
    words = " ".join(rule["expr"].split())
    assert f"- 1 >= {acceptance.PROMISED_TOKENS} ) < {acceptance.KEPT_SHARE} and" in words
    assert f"(draftscope_evaluation_rounds_total >= {acceptance.ROUNDS})" in words


# The words of Grafana are those of /status.


def stage(name: str, busy: float, waiting_input: float = 0.0, on_item: float = 0.01) -> StageShare:
    return StageShare(
        name=name,
        threads=1,
        items=40,
        busy_ratio=busy,
        waiting_input_ratio=waiting_input,
        waiting_output_ratio=1 - busy - waiting_input,
        seconds_since_progress=400.0,
        seconds_on_item=on_item,
    )


def road(busiest: str = "", hungry: float = 0.0, stuck: str = "") -> tuple[StageShare, ...]:
    return tuple(
        stage(name, 0.8 if name == busiest else 0.3, hungry if name == "drafter" else 0.0, 999.0 if name == stuck else 0.01)
        for name in STAGES
    )


AT_WORK = Evidence(now=0.0, state="running", step=50, steps=50, loss=2.0, progress_ratio=0.5, stages=road("target"))
IDLE = tuple(replace(one, seconds_on_item=0.0) for one in road())
MOMENTS = [
    *(("stage_holds", replace(AT_WORK, stages=road(name))) for name in STAGES),
    *(("stalled", replace(AT_WORK, stages=road("target", stuck=name))) for name in STAGES),
    ("stalled", replace(AT_WORK, stages=IDLE)),
    ("starved", replace(AT_WORK, stages=road("dataset", hungry=0.5))),
    ("starved", replace(AT_WORK, stages=road("batches", hungry=0.5))),
    ("balanced", replace(AT_WORK, stages=road())),
    ("all_well", replace(AT_WORK, stages=(stage("target", 0.95), stage("drafter", 0.95)))),
    ("warming_up", replace(AT_WORK, steps=0)),
    ("warming_up", replace(AT_WORK, state="starting", steps=0, stages=(), phase="loading the target")),
    ("diverged", replace(AT_WORK, loss=float("nan"))),
    ("diverged", replace(AT_WORK, skipped_in_a_row=5)),
    ("paused", replace(AT_WORK, state="paused")),
    ("finished", replace(AT_WORK, state="finished", progress_ratio=1.0)),
    ("finished", replace(AT_WORK, state="finished", progress_ratio=None)),
    ("finished", replace(AT_WORK, state="finished", progress_ratio=0.5)),
    *(("failed", replace(AT_WORK, state="failed", failed_stage=name, error="no")) for name in (None, "start", "target")),
]


def exported(verdict: Verdict) -> tuple[str, str]:
    """Labels of the verdict that is 1 on /metrics."""
    (labels,) = [one.labels for one in verdict_samples(verdict) if one.metric is VERDICT and one.value == 1]
    return labels[0], labels[1]


def words_of(state: str, stage_name: str, progress: float | None) -> list[str]:
    """What instance:draftscope_verdict:words says, by the YAML."""
    found = []
    for rule in RECORDED:
        if rule["record"] != "instance:draftscope_verdict:words":
            continue
        wanted = rules.selectors(rule["expr"])[0].matchers
        early = progress is not None and progress < 1
        fits = "draftscope_progress_ratio" not in rule["expr"] or ("unless" in rule["expr"]) != early
        if wanted["state"] == ("=", state) and wanted.get("stage", ("=", stage_name)) == ("=", stage_name) and fits:
            found.append(rule["labels"]["words"])
    return found


def test_grafana_says_the_words_that_the_sentence_of_the_status_begins_with():
    wrong = []
    for state, facts in MOMENTS:
        verdict = judge(facts, None)
        assert verdict.state == state
        words = words_of(*exported(verdict), facts.progress_ratio)
        if len(words) != 1 or not re.match(re.escape(words[0]) + r"[.:, ]", verdict.sentence):
            wrong.append((words, verdict.sentence))
    assert wrong == []


def test_every_verdict_that_is_exported_has_words():
    made = {exported(judge(facts, None)) for _, facts in MOMENTS}
    there = {one.labels for one in verdict_samples(judge(AT_WORK, None)) if one.metric is VERDICT}
    assert there == made
    assert {len(words_of(state, stage_name, 1.0)) for state, stage_name in there} == {1}


# The pages.


def flags() -> set[str]:
    """Of `train`, in the spelling of the command line."""

    def of(part: type, before: str) -> set[str]:
        kinds = {field.name: field.default_factory for field in fields(part)}
        nested = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}
        plain = {f"--{before}{name}" for name in kinds if name not in nested}
        return plain.union(*(of(kind, f"{before}{name}.") for name, kind in nested.items()))

    return {flag.replace("_", "-") for flag in of(config.TrainConfig, "")}


def test_every_page_belongs_to_an_alert():
    assert sorted(path.stem for path in RUNBOOKS.glob("*.md")) == sorted(name.lower() for name in NAMES)


def test_runbooks_have_their_parts_and_name_only_what_exists():
    assert [f"{name}: {fault}" for name in NAMES for fault in page_faults(name)] == []


def page_faults(name: str) -> Iterator[str]:
    """What is missing from the runbook of an alert, or named there without being there."""
    text = (RUNBOOKS / f"{name.lower()}.md").read_text(encoding="utf-8")
    if text.split("\n")[0] != f"# {name}" or not text.split("\n\n")[1].startswith("**"):
        yield "no title, or no bold sentence below it"
    if re.findall(r"^## (.+)$", text, flags=re.MULTILINE) != ["Check", "Causes", "What to do", "Silence"]:
        yield "other headings"
    if "1. " not in text.partition("## Causes")[2]:
        yield "no list of causes"
    named = set(re.findall(r"(?<![\w:/])(draftscope_\w+[a-z])(?![\w…:])", text))
    recorded = set(re.findall(r"\w+:draftscope_\w+:\w+", text))
    asked = set(re.findall(r"(?<![\w-])--(?:resume|from|[a-z]+\.[a-z-]+|[a-z]+-devices?|precision|trackers|seed)\b", text))
    links = {link for link in re.findall(r"\]\(([^)#\s]+)", text) if not (RUNBOOKS / link).exists()}
    known_flags = flags() | {"--resume", "--from"}
    for strange in (named - set(CATALOGUE), recorded - {rule["record"] for rule in RECORDED}, asked - known_flags, links):
        if strange:
            yield f"names {', '.join(sorted(strange))}"


def test_the_table_of_alerts_is_that_of_the_rules():
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| \[(\w+)\]\(runbooks/(\w+)\.md\) \| ([a-z, ]+) \| ([^|]+) \| ([^|]+) \|$", page, flags=re.MULTILINE)
    for name, link, severity, summaries, wait in told:
        made = [rule for rule in ALERTS if rule["alert"] == name]
        assert link == name.lower()
        assert severity == ", ".join(rule["labels"]["severity"] for rule in made)
        assert summaries == " ".join(rule["annotations"]["summary"] for rule in made)
        assert wait == ", ".join(rule.get("for", "at once") for rule in made)
    assert [row[0] for row in told] == list(dict.fromkeys(rule["alert"] for rule in ALERTS))
