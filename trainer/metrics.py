"""Station 7. The catalogue: every number that is measured, declared once.

Standard library only, so that the dashboard and the docs can read it without torch. It says what a number *is*; how it is drawn
belongs to whoever draws it. Prometheus objects, the record's columns, dashboard charts and `docs/metrics.md` derive from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram", "info"]

PREFIX = "draftscope_"

RUN_STATES = ("starting", "running", "paused", "stalled", "finishing", "finished", "failed")
VERDICT_STATES = (
    "warming_up",
    "balanced",
    "stage_holds",
    "all_well",
    "starved",
    "stalled",
    "diverged",
    "paused",
    "finished",
    "failed",
)
STAGES = ("dataset", "batches", "target", "drafter")
QUEUES = ("samples", "batches", "features")
STAGE_STATES = ("busy", "waiting_input", "waiting_output")
TOKEN_KINDS = ("context", "draft")
DROP_REASONS = ("no_answer", "unaligned", "template", "malformed", "mask_token")
SKIP_REASONS = ("non_finite_loss", "non_finite_gradient", "non_finite_features", "no_draft_tokens")
CHECKPOINT_OUTCOMES = ("written", "failed")
EVALUATION_OUTCOMES = ("done", "failed", "skipped")
WATCH_PARTS = ("record", "sampler", "writer", "http")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number: its Prometheus name without the prefix, and all that is known of it before it is measured.

    `unit` is a base unit (`seconds`, `bytes`, `ratio`, `tokens` …) or "" for a bare count. `column` names the field of
    `steps.jsonl` that holds the same number, "" where the record keeps it elsewhere. `buckets` are a histogram's upper bounds,
    in `unit`.
    """

    name: str
    kind: Kind
    help: str
    question: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    column: str = ""
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        return PREFIX + self.name


RUN_INFO = Metric(
    name="run_info",
    kind="info",
    labels=("run_id", "target", "version", "git_commit"),
    help="Always 1; carries the run's identity, to be joined to the other series.",
    question="Which run is this?",
)
STATE = Metric(
    name="run_state",
    kind="gauge",
    labels=("state",),
    help="1 for the run's present state, 0 for every other.",
    question="Is it running?",
)
VERDICT = Metric(
    name="verdict",
    kind="gauge",
    labels=("state", "stage"),
    help="1 for the present verdict; `stage` is empty where the verdict names none.",
    question="What holds the run back right now?",
)
HEADROOM = Metric(
    name="headroom_ratio",
    kind="gauge",
    unit="ratio",
    help="How much faster the run could go, at most, without the stage that holds it: 0.34 means up to 34 %; 0 where none does.",
    question="What would a faster stage bring?",
)
LOST_DEVICE_SECONDS = Metric(
    name="lost_device_seconds_total",
    kind="counter",
    unit="seconds",
    help="Time that drafter devices did not spend in a step, added up over the devices.",
    question="How much device time was lost to waiting?",
)
START_TIME = Metric(
    name="start_timestamp_seconds",
    kind="gauge",
    unit="seconds",
    help="Unix time at which this attempt began.",
    question="Since when does it run?",
)
GLOBAL_STEP = Metric(
    name="global_step",
    kind="gauge",
    help="Optimizer steps since the run began, resumes included.",
    question="How far is it?",
)
MAX_STEPS = Metric(
    name="max_steps",
    kind="gauge",
    help="Optimizer steps after which the run ends.",
    question="How far is it from its end?",
)
STEPS = Metric(
    name="steps_total",
    kind="counter",
    help="Optimizer steps taken by this process.",
    question="How many steps a second?",
)
SAMPLES = Metric(
    name="samples_total",
    kind="counter",
    help="Conversations trained on by this process, counted once per visit.",
    question="How much data has it seen?",
)
DROPPED = Metric(
    name="samples_dropped_total",
    kind="counter",
    labels=("reason",),
    help="Conversations left out: nothing to learn from, refused by the chat template, or with the mask token in them.",
    question="Is my data being used?",
)
TOKENS = Metric(
    name="tokens_total",
    kind="counter",
    unit="tokens",
    labels=("kind",),
    help="Tokens processed by this process: `context` as read by the target, `draft` as drafted (anchors x block size).",
    question="How many tokens a second, of which kind?",
)
LOSS = Metric(
    name="loss",
    kind="gauge",
    column="loss",
    help="Loss of the newest step, in nats: per draft token, or per block where the objective is D-PACE.",
    question="Is it learning?",
)
LEARNING_RATE = Metric(
    name="learning_rate",
    kind="gauge",
    column="learning_rate",
    help="Learning rate of the newest step.",
    question="Where in the schedule is it?",
)
GRAD_NORM = Metric(
    name="grad_norm",
    kind="gauge",
    column="grad_norm",
    help="Norm of the gradient before clipping, at the newest step.",
    question="Is training stable?",
)
POSITION_ACCURACY = Metric(
    name="position_accuracy_ratio",
    kind="gauge",
    unit="ratio",
    labels=("position",),
    column="position_accuracy",
    help="Share of draft tokens that equal the data's, by position in the block (1 follows the anchor), at the newest step.",
    question="How far into the block does it guess right?",
)
ESTIMATED_ACCEPTANCE = Metric(
    name="estimated_acceptance_length_tokens",
    kind="gauge",
    unit="tokens",
    column="estimated_acceptance_length",
    help="Tokens kept per round, the bonus token included, as estimated from the newest step's accuracy. Not measured by decoding.",
    question="How good will it draft, roughly?",
)
MEASURED_ACCEPTANCE = Metric(
    name="measured_acceptance_length_tokens",
    kind="gauge",
    unit="tokens",
    help="Tokens kept per round, the bonus token included, as measured by speculative decoding of held-out prompts.",
    question="How well does it draft?",
)
MEASURED_POSITION = Metric(
    name="measured_position_acceptance_ratio",
    kind="gauge",
    unit="ratio",
    labels=("position",),
    help="Share of rounds that kept the draft token, by position in the block (1 follows the anchor), at the newest evaluation.",
    question="How far into the block are draft tokens kept?",
)
HELD_OUT_ACCEPTANCE = Metric(
    name="held_out_estimated_acceptance_length_tokens",
    kind="gauge",
    unit="tokens",
    help="Tokens kept per round as estimated from accuracy on the newest evaluation's conversations. Not measured by decoding.",
    question="Does it draft for text that it never saw?",
)
EVALUATION_STEP = Metric(
    name="last_evaluation_step",
    kind="gauge",
    help="Step whose drafter the newest evaluation measured.",
    question="How old is the measurement?",
)
EVALUATIONS = Metric(
    name="evaluations_total",
    kind="counter",
    labels=("outcome",),
    help="Evaluations that were due, by outcome: done, failed, skipped (the one before was still under way).",
    question="Is it being measured?",
)
EVALUATION_SECONDS = Metric(
    name="evaluation_duration_seconds",
    kind="histogram",
    unit="seconds",
    buckets=(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0),
    help="Time that an evaluation took, beside training.",
    question="What do evaluations cost?",
)
STEP_SECONDS = Metric(
    name="step_duration_seconds",
    kind="histogram",
    unit="seconds",
    column="step_seconds",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    help="Wall time from one optimizer step to the next.",
    question="How long does a step take?",
)
LAST_STEP_TIME = Metric(
    name="last_step_timestamp_seconds",
    kind="gauge",
    unit="seconds",
    help="Unix time of the newest step, 0 before the first.",
    question="When did it last get on?",
)
SKIPPED_STEPS = Metric(
    name="skipped_steps_total",
    kind="counter",
    labels=("reason",),
    help="Steps whose update was left out.",
    question="Is training stable?",
)
STAGE_SECONDS = Metric(
    name="stage_seconds_total",
    kind="counter",
    unit="seconds",
    labels=("stage", "state"),
    help="Thread time of a stage by state: busy, waiting_input, waiting_output. The three add up to threads x elapsed time.",
    question="Which stage holds the run back?",
)
STAGE_THREADS = Metric(
    name="stage_threads",
    kind="gauge",
    labels=("stage",),
    help="Threads of a stage.",
    question="How many workers does a stage have?",
)
STAGE_ITEMS = Metric(
    name="stage_items_total",
    kind="counter",
    labels=("stage",),
    help="Items a stage has handed on (the drafter: batches trained on).",
    question="How fast is each stage?",
)
STAGE_IDLE = Metric(
    name="stage_since_progress_seconds",
    kind="gauge",
    unit="seconds",
    labels=("stage",),
    help="Time since a stage last took or handed on an item.",
    question="Is a stage stuck?",
)
QUEUE_ITEMS = Metric(
    name="queue_items", kind="gauge", labels=("queue",), help="Items in a queue.", question="Where does work pile up?"
)
QUEUE_CAPACITY_ITEMS = Metric(
    name="queue_capacity_items",
    kind="gauge",
    labels=("queue",),
    help="Items that a queue holds at most.",
    question="How full can a queue get?",
)
QUEUE_BYTES = Metric(
    name="queue_bytes",
    kind="gauge",
    unit="bytes",
    labels=("queue",),
    help="Bytes of tensors in a queue.",
    question="How much memory is in flight?",
)
QUEUE_CAPACITY_BYTES = Metric(
    name="queue_capacity_bytes",
    kind="gauge",
    unit="bytes",
    labels=("queue",),
    help="Bytes that a queue holds at most.",
    question="How much memory can be in flight?",
)
CHECKPOINTS = Metric(
    name="checkpoints_total",
    kind="counter",
    labels=("outcome",),
    help="Checkpoints tried, by outcome: written, failed.",
    question="Is my work safe?",
)
CHECKPOINT_TIME = Metric(
    name="last_checkpoint_timestamp_seconds",
    kind="gauge",
    unit="seconds",
    help="Unix time of the newest whole checkpoint, 0 before the first.",
    question="How much would a crash lose?",
)
CHECKPOINT_STEP = Metric(
    name="last_checkpoint_step",
    kind="gauge",
    help="Step of the newest whole checkpoint, 0 before the first.",
    question="How much would a crash lose?",
)
CHECKPOINT_SECONDS = Metric(
    name="checkpoint_duration_seconds",
    kind="histogram",
    unit="seconds",
    buckets=(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
    help="Time that writing a checkpoint took.",
    question="What do checkpoints cost?",
)
GPU_KERNEL_ACTIVE = Metric(
    name="gpu_kernel_active_ratio",
    kind="gauge",
    unit="ratio",
    labels=("gpu",),
    help="Share of the last sampling period in which at least one kernel ran: an upper bound of use, not use itself.",
    question="Is the GPU busy?",
)
GPU_MEMORY_USED = Metric(
    name="gpu_memory_used_bytes",
    kind="gauge",
    unit="bytes",
    labels=("gpu",),
    help="GPU memory in use by everybody.",
    question="Is it near its memory limit?",
)
GPU_MEMORY_TOTAL = Metric(
    name="gpu_memory_total_bytes",
    kind="gauge",
    unit="bytes",
    labels=("gpu",),
    help="GPU memory there is.",
    question="Is it near its memory limit?",
)
GPU_POWER = Metric(
    name="gpu_power_watts",
    kind="gauge",
    unit="watts",
    labels=("gpu",),
    help="Power draw.",
    question="Is the GPU working hard?",
)
GPU_TEMPERATURE = Metric(
    name="gpu_temperature_celsius",
    kind="gauge",
    unit="celsius",
    labels=("gpu",),
    help="Temperature of the GPU.",
    question="Is the GPU hot?",
)
GPU_SAMPLER_UP = Metric(
    name="gpu_sampler_up",
    kind="gauge",
    help="1 while GPU figures can be read, 0 where there is no GPU or its library fails; `/status` says why.",
    question="Can the GPU figures be trusted?",
)
PROCESS_CPU = Metric(
    name="process_cpu_seconds_total",
    kind="counter",
    unit="seconds",
    help="CPU time of the trainer, user and system; its rate is the number of cores in use.",
    question="Is the CPU the limit?",
)
PROCESS_MEMORY = Metric(
    name="process_resident_memory_bytes",
    kind="gauge",
    unit="bytes",
    help="Resident memory of the trainer.",
    question="Is memory running out?",
)
RECORD_ERRORS = Metric(
    name="record_errors_total",
    kind="counter",
    help="Writes to the run record that failed; training goes on without them.",
    question="Is the record whole?",
)
WATCH_SECONDS = Metric(
    name="watch_seconds_total",
    kind="counter",
    unit="seconds",
    labels=("part",),
    help="Time spent on watching: `record` on the drafter's own thread, `sampler`, `writer` and `http` on threads of their own.",
    question="What does watching cost?",
)
WATCH_ERRORS = Metric(
    name="watch_errors_total",
    kind="counter",
    labels=("part",),
    help="Errors within watching itself, by part as in watch_seconds_total; training goes on. Failed writes: record_errors_total.",
    question="Can what I see be trusted?",
)

CATALOGUE: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


def step_columns() -> Iterator[tuple[str, Metric]]:
    """The fields of `steps.jsonl` that the catalogue describes, in order."""
    return ((metric.column, metric) for metric in CATALOGUE if metric.column)
