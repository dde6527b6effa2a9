"""The catalogue in, PromQL out: what is chosen at the top of a dashboard, written into every query.

A metric that carries `run_id` is filtered by it. Any other is joined to `draftscope_run_info`, which filters it as well and tells
its run; `rank` is among the labels of the join since the ranks of one host may share their `instance`.
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
# Alerts of our rules, but the one that always fires.
OURS = 'alertname=~"Draftscope.*", alertname!="DraftscopeWatchdog"'
RATE_WINDOW = "$__rate_interval"
ALL_TIME = "$__range"


@dataclass(frozen=True, kw_only=True)
class Outside:
    """A series that the trainer does not serve: a recording rule of grafana/rules, or what Prometheus says of its own scrapes."""

    full_name: str
    help: str
    question: str
    unit: str = ""
    kind: str = "gauge"
    per_run: bool = False
    joined: bool = True
    """Whether it is joined to a run; what is known of a target that does not answer cannot be."""


Series = Metric | Outside

VERDICT_WORDS = Outside(
    full_name="instance:draftscope_verdict:words",
    help="A recording rule: the verdict in the words that the sentence of `/status` begins with.",
    question=run_metrics.VERDICT.question,
)
HOLDING_STAGE = Outside(
    full_name="instance:draftscope_holding_stage:busy_ratio",
    help="A recording rule: the busiest stage, and the share of its threads' time in which it worked.",
    question=STAGE_SECONDS.question,
    unit="ratio",
)
STEPS_RATE = Outside(
    full_name="instance:draftscope_steps:rate5m",
    help="A recording rule: optimizer steps a second over five minutes.",
    question=STEPS.question,
    per_run=True,
)
STEPS_MEDIAN = Outside(
    full_name="instance:draftscope_steps:rate5m_median6h",
    help="A recording rule: the median of that rate over six hours, in which the run got on.",
    question="Is it slower than it used to be?",
    per_run=True,
)
UP = Outside(
    full_name="up",
    help="1 where Prometheus' newest scrape was answered.",
    question="Does the trainer answer?",
    joined=False,
)
SCRAPE_SECONDS = Outside(
    full_name="scrape_duration_seconds",
    help="Time that Prometheus waited for `/metrics`.",
    question="What does watching cost?",
    unit="seconds",
    joined=False,
)
SCRAPE_SAMPLES = Outside(
    full_name="scrape_samples_scraped",
    help="Series that one scrape brought.",
    question="How many series does a trainer cost?",
    joined=False,
)
ALERTS = Outside(
    full_name="ALERTS",
    help="Prometheus' own series of alerts; grafana/rules/alerts.yml holds their rules, docs/runbooks what to do.",
    question="Is anything wrong?",
    joined=False,
)


def select(series: Series, *matchers: str, suffix: str = "") -> str:
    """The series as chosen, without its run where it does not carry one. `matchers` as in PromQL: `state="busy"`."""
    chosen = [HERE, *([OF_RUN] if series.per_run else []), *matchers]
    return f"{series.full_name}{suffix}{{{', '.join(chosen)}}}"


def values(series: Series, *matchers: str) -> str:
    """The series of the chosen runs; each carries `run_id`, unless it is not joined."""
    return _told(series, select(series, *matchers))


def rate(series: Series, *matchers: str, suffix: str = "") -> str:
    """A counter's rise a second."""
    return _told(series, f"rate({select(series, *matchers, suffix=suffix)}[{RATE_WINDOW}])")


def increase(series: Series, *matchers: str, over: str = ALL_TIME) -> str:
    """A counter's rise, by default within the time that is shown."""
    return _told(series, f"increase({select(series, *matchers)}[{over}])")


def by(operation: str, labels: str, expression: str) -> str:
    """`by("sum", "run_id, stage", x)`: `sum by (run_id, stage) (x)`."""
    return f"{operation} by ({labels}) ({expression})"


def quantile(share: float, series: Series, labels: str, *matchers: str) -> str:
    """A quantile of a histogram, for each combination of `labels`."""
    return f"histogram_quantile({share:g}, {by('sum', f'{labels}, le', rate(series, *matchers, suffix='_bucket'))})"


def age(series: Series) -> str:
    """Seconds since a timestamp; nothing before the first. A scrape may see one that is younger than its own beginning."""
    return of_run(f"clamp_min(time() - ({select(series)} > 0), 0)")


def chosen_number(series: Series, cases: list[tuple[str, ...]]) -> str:
    """The place, from 1, of the case whose matchers select a series that is 1. So a timeline needs one line for all."""
    alternatives = " or ".join(f"{place} * ({select(series, *case)} == 1)" for place, case in enumerate(cases, start=1))
    return of_run(f"max by (job, instance, rank) ({alternatives})")


def filled(expression: str, *labels: str) -> str:
    """With a dash for each of `labels` that is empty or missing; a table would say there why it has no data."""
    for label in labels:
        expression = f'label_replace({expression}, "{label}", "-", "{label}", "")'
    return expression


def of_run(expression: str) -> str:
    """An expression over targets, filtered to the chosen runs, with their `run_id`."""
    return f"{expression} * {ON_TARGET} group_left (run_id) {RUN_INFO}"


def _told(series: Series, expression: str) -> str:
    joined = series.joined if isinstance(series, Outside) else True
    return of_run(expression) if joined and not series.per_run else expression
