"""Writes PromQL for metrics of the catalogue, filtered by the variables of a dashboard.

A metric with a `run_id` label is filtered by it. Any other is joined to `draftscope_run_info`, which filters it and adds
its `run_id`; the join includes `rank`, since the ranks of one host may share an `instance`.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.metrics.catalogue import run as run_metrics
from trainer.metrics.catalogue.metric import Metric
from trainer.metrics.catalogue.stages import STAGE_SECONDS
from trainer.metrics.catalogue.training import STEPS

HERE = 'job=~"$job", instance=~"$instance"'
OF_RUN = 'run_id=~"$run"'
RUN_INFO = f"{run_metrics.RUN_INFO.full_name}{{{HERE}, {OF_RUN}}}"
ON_TARGET = "on (job, instance, rank)"
# Alerts of our rules, except the one that always fires.
OURS = 'alertname=~"Draftscope.*", alertname!="DraftscopeWatchdog"'
RATE_WINDOW = "$__rate_interval"
ALL_TIME = "$__range"


@dataclass(frozen=True, kw_only=True)
class Outside:
    """A series that the trainer does not serve: a recording rule of grafana/rules, or Prometheus' own about its scrapes."""

    full_name: str
    help: str
    question: str
    unit: str = ""
    kind: str = "gauge"
    per_run: bool = False
    joined: bool = True
    """Whether it is joined to a run; a target that does not answer has none."""


Series = Metric | Outside

VERDICT_WORDS = Outside(
    full_name="instance:draftscope_verdict:words",
    help="Recording rule: the verdict, in the opening words of the sentence in `/status`.",
    question=run_metrics.VERDICT.question,
)
HOLDING_STAGE = Outside(
    full_name="instance:draftscope_holding_stage:busy_ratio",
    help="Recording rule: the busiest stage, and the share of thread time that it was busy.",
    question=STAGE_SECONDS.question,
    unit="ratio",
)
STEPS_RATE = Outside(
    full_name="instance:draftscope_steps:rate5m",
    help="Recording rule: optimizer steps per second over five minutes.",
    question=STEPS.question,
    per_run=True,
)
STEPS_MEDIAN = Outside(
    full_name="instance:draftscope_steps:rate5m_median6h",
    help="Recording rule: median of that rate over six hours, pauses excluded.",
    question="Is it slower than it used to be?",
    per_run=True,
)
UP = Outside(
    full_name="up",
    help="1 if the latest scrape was answered.",
    question="Does the trainer answer?",
    joined=False,
)
SCRAPE_SECONDS = Outside(
    full_name="scrape_duration_seconds",
    help="Time that a scrape of `/metrics` took.",
    question="What does watching cost?",
    unit="seconds",
    joined=False,
)
SCRAPE_SAMPLES = Outside(
    full_name="scrape_samples_scraped",
    help="Series returned by one scrape.",
    question="How many series does a trainer cost?",
    joined=False,
)
ALERTS = Outside(
    full_name="ALERTS",
    help="Prometheus' own series of alerts. Rules: grafana/rules/alerts.yml; what to do: docs/runbooks.",
    question="Is anything wrong?",
    joined=False,
)


def select(series: Series, *matchers: str, suffix: str = "") -> str:
    """Selects by the dashboard's variables, by run only where there is a `run_id`. `matchers` as in PromQL: `state="busy"`."""
    chosen = [HERE, *([OF_RUN] if series.per_run else []), *matchers]
    return f"{series.full_name}{suffix}{{{', '.join(chosen)}}}"


def values(series: Series, *matchers: str) -> str:
    """The series of the selected runs, with `run_id` unless it is not joined."""
    return _with_run(series, select(series, *matchers))


def rate(series: Series, *matchers: str, suffix: str = "") -> str:
    """A counter's increase per second."""
    return _with_run(series, f"rate({select(series, *matchers, suffix=suffix)}[{RATE_WINDOW}])")


def increase(series: Series, *matchers: str, over: str = ALL_TIME) -> str:
    """A counter's increase, by default over the selected time range."""
    return _with_run(series, f"increase({select(series, *matchers)}[{over}])")


def by(operation: str, labels: str, expression: str) -> str:
    """`by("sum", "run_id, stage", x)`: `sum by (run_id, stage) (x)`."""
    return f"{operation} by ({labels}) ({expression})"


def quantile(share: float, series: Series, labels: str, *matchers: str) -> str:
    """A quantile of a histogram, for each combination of `labels`."""
    return f"histogram_quantile({share:g}, {by('sum', f'{labels}, le', rate(series, *matchers, suffix='_bucket'))})"


def age(series: Series) -> str:
    """Seconds since a timestamp, absent before the first. Clamped at 0: a timestamp can be later than the start of its scrape."""
    return of_run(f"clamp_min(time() - ({select(series)} > 0), 0)")


def chosen_number(series: Series, cases: list[tuple[str, ...]]) -> str:
    """Number, from 1, of the case whose matchers select a series with the value 1, so that a timeline needs one line."""
    alternatives = " or ".join(f"{place} * ({select(series, *case)} == 1)" for place, case in enumerate(cases, start=1))
    return of_run(f"max by (job, instance, rank) ({alternatives})")


def filled(expression: str, *labels: str) -> str:
    """Sets each of `labels` that is empty or missing to a dash; a table would show its no-data text there."""
    for label in labels:
        expression = f'label_replace({expression}, "{label}", "-", "{label}", "")'
    return expression


def of_run(expression: str) -> str:
    """Filters an expression over targets to the selected runs, and adds their `run_id`."""
    return f"{expression} * {ON_TARGET} group_left (run_id) {RUN_INFO}"


def _with_run(series: Series, expression: str) -> str:
    joined = series.joined if isinstance(series, Outside) else True
    return of_run(expression) if joined and not series.per_run else expression
