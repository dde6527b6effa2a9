"""The dashboard *Operations*: alerts, checkpoints, failures, and what watching costs."""

from __future__ import annotations

from typing import Any

from grafana import no_data
from grafana.dashboard import Dashboard, Row
from grafana.panels import GREEN, ORANGE, RED, Panel, Target, bars, lines, stat, table
from grafana.queries import (
    ALERTS,
    ON_TARGET,
    OURS,
    SCRAPE_SAMPLES,
    SCRAPE_SECONDS,
    UP,
    age,
    by,
    filled,
    increase,
    of_run,
    quantile,
    rate,
    select,
    values,
)
from grafana.units import AGO, NUMBER, TIME_OF_DAY, rate_unit_of, unit_of
from trainer.metrics.catalogue import run as run_metrics
from trainer.metrics.catalogue import watching as watching_metrics
from trainer.metrics.catalogue.metric import Metric
from trainer.metrics.catalogue.training import DROPPED, EVALUATION_SECONDS, EVALUATIONS, LAST_STEP_TIME, SKIPPED_STEPS

_RUN, _EACH = "{{run_id}}", "{{instance}}"
_ANY_IS_BAD = ((None, GREEN), (0.5, RED))
_ANY_IS_ODD = ((None, GREEN), (0.5, ORANGE))


def _counts(title: str, metric: Metric, label: str, **more: Any) -> Panel:
    """How much a counter rose in the selected time range, a bar for each value of its label."""
    target = Target(by("sum", label, increase(metric)), f"{{{{{label}}}}}", newest=True)
    settings = {
        "unit": NUMBER,
        "decimals": 0,
        "min": 0,
        "width": 6,
        "note": "Within the selected time range.",
        "no_data": no_data.NO_RUN,
    }
    return bars(title, target, shows=[metric], **{**settings, **more})


def _rising(title: str, metric: Metric, label: str, **more: Any) -> Panel:
    """A counter's rate over time, a curve for each value of its label."""
    target = Target(by("sum", label, rate(metric)), f"{{{{{label}}}}}")
    settings = {"unit": rate_unit_of(metric), "min": 0, "no_data": no_data.NO_RUN}
    return lines(title, target, shows=[metric], **{**settings, **more})


# Not filtered by run: the target of an alert may be gone, and some alerts have no target.
_ALERTED = "alertname, alertstate, severity, instance, stage, gpu"
_FIRING = f'{ALERTS.full_name}{{{OURS}, job=~"$job|", instance=~"$instance|"}}'
_WATCHDOG = f'{ALERTS.full_name}{{alertname="DraftscopeWatchdog", alertstate="firing"}}'

_ALERTS = Row(
    "Is anything wrong?",
    [
        stat(
            "Answers scrapes",
            Target(by("min", "instance", values(UP)), _EACH, newest=True),
            shows=[UP],
            unit="none",
            words={0: ("no", RED), 1: ("yes", GREEN)},
            filled=True,
            no_data=no_data.NO_TARGET,
        ),
        stat(
            "Alert rules active",
            Target(f"count ({_WATCHDOG})", "rules", newest=True),
            shows=[ALERTS],
            note="The alert DraftscopeWatchdog always fires, which shows that the rules are evaluated.",
            unit="none",
            words={1: ("yes", GREEN)},
            no_data="No: Prometheus has not loaded grafana/rules/alerts.yml.",
        ),
        stat(
            "Started",
            Target(f"{by('max', 'run_id', values(run_metrics.START_TIME))} * 1000", _RUN, newest=True),
            shows=[run_metrics.START_TIME],
            unit=TIME_OF_DAY,
            no_data=no_data.NO_RUN,
            width=6,
        ),
        stat(
            "Earlier resumes",
            Target(by("max", "run_id", values(run_metrics.RESTARTS)), _RUN, newest=True),
            shows=[run_metrics.RESTARTS],
            unit=NUMBER,
            no_data=no_data.NO_RUN,
        ),
        stat(
            "Latest step",
            Target(f"{by('max', 'run_id', of_run(f'({select(LAST_STEP_TIME)} > 0)'))} * 1000", _RUN, newest=True),
            shows=[LAST_STEP_TIME],
            unit=AGO,
            no_data=no_data.NO_STEP,
            width=6,
        ),
        table(
            "Alerts",
            Target(filled(by("max", _ALERTED, _FIRING), "instance", "stage", "gpu"), newest=True, table=True),
            shows=[ALERTS],
            columns={
                "alertname": "alert",
                "alertstate": "state",
                "severity": "severity",
                "instance": "instance",
                "stage": "stage",
                "gpu": "GPU",
            },
            hidden=("Value",),
            no_data="No alert is pending or firing.",
            height=6,
        ),
    ],
)

_NO_CHECKPOINT = "No checkpoint yet: --checkpoint.every sets the interval; the last one is written at the end or at Ctrl-C."

_CHECKPOINTS = Row(
    "Is my work safe?",
    [
        lines(
            "Steps that a crash would lose",
            Target(
                by(
                    "max",
                    "run_id",
                    f"{values(run_metrics.GLOBAL_STEP)} - {ON_TARGET} group_left () {select(run_metrics.CHECKPOINT_STEP)}",
                ),
                "at risk {{run_id}}",
            ),
            Target(by("max", "run_id", of_run(f"({select(run_metrics.CHECKPOINT_EVERY)} > 0)")), "interval {{run_id}}"),
            shows=[run_metrics.CHECKPOINT_STEP, run_metrics.GLOBAL_STEP, run_metrics.CHECKPOINT_EVERY],
            unit=NUMBER,
            axis="steps",
            min=0,
            no_data=no_data.NO_RUN,
        ),
        lines(
            "Age of the latest checkpoint",
            Target(by("max", "run_id", age(run_metrics.CHECKPOINT_TIME)), _RUN),
            shows=[run_metrics.CHECKPOINT_TIME],
            unit=unit_of(run_metrics.CHECKPOINT_TIME),
            min=0,
            no_data=_NO_CHECKPOINT,
        ),
        _counts("Checkpoints", run_metrics.CHECKPOINTS, "outcome", width=8),
        lines(
            "Time to write a checkpoint",
            Target(quantile(0.5, run_metrics.CHECKPOINT_SECONDS, "run_id"), "median {{run_id}}"),
            Target(quantile(0.95, run_metrics.CHECKPOINT_SECONDS, "run_id"), "95th percentile {{run_id}}"),
            shows=[run_metrics.CHECKPOINT_SECONDS],
            note="Plotted only when one was written; training continues meanwhile.",
            unit=unit_of(run_metrics.CHECKPOINT_SECONDS),
            min=0,
            no_data=_NO_CHECKPOINT,
        ),
        stat(
            "Size of the latest checkpoint",
            Target(by("max", "run_id", of_run(f"({select(run_metrics.CHECKPOINT_BYTES)} > 0)")), _RUN, newest=True),
            shows=[run_metrics.CHECKPOINT_BYTES],
            unit=unit_of(run_metrics.CHECKPOINT_BYTES),
            no_data=_NO_CHECKPOINT,
            width=8,
            height=8,
        ),
        lines(
            "Disk space",
            Target(by("min", "instance", values(run_metrics.DISK_FREE)), "free {{instance}}"),
            Target(by("max", "instance", values(run_metrics.DISK_SIZE)), "size {{instance}}"),
            shows=[run_metrics.DISK_FREE, run_metrics.DISK_SIZE],
            unit=unit_of(run_metrics.DISK_FREE),
            min=0,
            no_data=no_data.NO_RUN,
        ),
    ],
)

_FAILURES = Row(
    "What failed, and what was left out?",
    [
        _counts("Steps skipped", SKIPPED_STEPS, "reason", thresholds=_ANY_IS_ODD),
        _counts("Conversations left out", DROPPED, "reason", thresholds=_ANY_IS_ODD),
        _counts("Log messages", watching_metrics.LOG_MESSAGES, "level", thresholds=_ANY_IS_ODD),
        _counts("Errors in watching", watching_metrics.WATCH_ERRORS, "part", thresholds=_ANY_IS_BAD),
        _rising("Steps skipped, over time", SKIPPED_STEPS, "reason", width=6),
        _rising("Log messages, over time", watching_metrics.LOG_MESSAGES, "level", width=6),
        stat(
            "Failed writes to the record",
            Target(by("sum", "run_id", increase(watching_metrics.RECORD_ERRORS)), _RUN, newest=True),
            shows=[watching_metrics.RECORD_ERRORS],
            note="Within the selected time range.",
            unit=NUMBER,
            decimals=0,
            thresholds=_ANY_IS_BAD,
            no_data=no_data.NO_RUN,
            width=6,
            height=8,
        ),
        _counts("Control requests", watching_metrics.CONTROL_REQUESTS, "action"),
        _counts("Evaluations", EVALUATIONS, "outcome"),
        lines(
            "Evaluation time",
            Target(quantile(0.5, EVALUATION_SECONDS, "run_id"), "median {{run_id}}"),
            Target(quantile(0.95, EVALUATION_SECONDS, "run_id"), "95th percentile {{run_id}}"),
            shows=[EVALUATION_SECONDS],
            note="Plotted only when one ended.",
            unit=unit_of(EVALUATION_SECONDS),
            min=0,
            no_data=no_data.NO_EVALUATION,
            width=18,
        ),
    ],
)

_WATCHING = Row(
    "What does watching cost?",
    [
        _rising(
            "Time spent on watching",
            watching_metrics.WATCH_SECONDS,
            "part",
            note="As a share of wall-clock time; `record` runs on the drafter's thread.",
        ),
        lines(
            "Scrape duration",
            Target(by("max", "instance", values(SCRAPE_SECONDS)), _EACH),
            shows=[SCRAPE_SECONDS],
            unit=unit_of(SCRAPE_SECONDS),
            min=0,
            no_data=no_data.NO_TARGET,
        ),
        lines(
            "Series per scrape",
            Target(by("max", "instance", values(SCRAPE_SAMPLES)), _EACH),
            shows=[SCRAPE_SAMPLES],
            unit=NUMBER,
            min=0,
            no_data=no_data.NO_TARGET,
        ),
        _counts("Refused requests", watching_metrics.HTTP_REFUSED, "reason", thresholds=_ANY_IS_ODD),
        lines(
            "Open event streams",
            Target(by("sum", "instance", values(watching_metrics.EVENT_STREAMS)), _EACH),
            shows=[watching_metrics.EVENT_STREAMS],
            unit=NUMBER,
            min=0,
            no_data=no_data.NO_RUN,
            width=6,
        ),
        stat(
            "Trackers up",
            Target(by("min", "instance, tracker", values(watching_metrics.TRACKER_UP)), "{{tracker}} {{instance}}", newest=True),
            shows=[watching_metrics.TRACKER_UP],
            unit="none",
            words={0: ("no", ORANGE), 1: ("yes", GREEN)},
            no_data="No other tracker was requested with --trackers.",
            width=6,
            height=8,
        ),
        _counts(
            "Lines that trackers did not accept",
            watching_metrics.TRACKER_DROPPED,
            "tracker",
            thresholds=_ANY_IS_ODD,
            no_data="No other tracker was requested with --trackers.",
        ),
        table(
            "Versions",
            Target(filled(values(run_metrics.BUILD_INFO), "git_commit"), newest=True, table=True),
            shows=[run_metrics.BUILD_INFO],
            columns={"instance": "instance", "version": "version", "git_commit": "commit", "python": "Python", "torch": "torch"},
            hidden=("Value", "job", "rank", "run_id"),
            no_data=no_data.NO_RUN,
        ),
    ],
)

OPERATIONS = Dashboard(
    uid="draftscope-operations",
    title="Draftscope: Operations",
    description="Alerts, checkpoints, failures, and what watching costs.",
    rows=[_ALERTS, _CHECKPOINTS, _FAILURES, _WATCHING],
    choices=[],
)
