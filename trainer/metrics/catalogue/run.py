"""Metrics of the run: identity, state and verdict, progress, checkpoints."""

from __future__ import annotations

from trainer.metrics.catalogue.metric import Metric
from trainer.metrics.catalogue.stages import STAGES

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
CHECKPOINT_OUTCOMES = ("written", "failed")
RUN_INFO = Metric(
    name="run_info",
    kind="info",
    labels=("run_id", "target", "version", "git_commit"),
    help="Always 1; its labels identify the run and are joined to other series.",
    question="Which run is this?",
)
BUILD_INFO = Metric(
    name="build_info",
    kind="info",
    labels=("version", "git_commit", "python", "torch"),
    help="Always 1; its labels are the versions in use.",
    question="Which code is running?",
)
STATE = Metric(
    name="run_state",
    kind="gauge",
    labels=("state",),
    values=(RUN_STATES,),
    help="1 for the current state of the run, 0 for all others.",
    question="Is it running?",
)
VERDICT = Metric(
    name="verdict",
    kind="gauge",
    labels=("state", "stage"),
    values=(VERDICT_STATES, ("", *STAGES)),
    help="1 for the current verdict; `stage` is empty if the verdict names none.",
    question="What is holding the run back right now?",
)
HEADROOM = Metric(
    name="headroom_ratio",
    kind="gauge",
    unit="ratio",
    help="Upper bound of the speed-up if the limiting stage were removed: 0.34 means up to 34 %; 0 if no stage limits the run.",
    question="How much would a faster stage gain?",
)
LOST_DEVICE_SECONDS = Metric(
    name="lost_device_seconds_total",
    kind="counter",
    unit="seconds",
    help="Time that drafter devices spent outside of steps, summed over devices.",
    question="How much device time was lost to waiting?",
)
START_TIME = Metric(
    name="start_timestamp_seconds",
    kind="gauge",
    unit="seconds",
    help="Unix time at which this attempt started.",
    question="How long has it been running?",
)
RESTARTS = Metric(
    name="restarts_total",
    kind="counter",
    help="Earlier attempts of this run, each in its own process: how often it was resumed.",
    question="Was it restarted?",
)
GLOBAL_STEP = Metric(
    name="global_step",
    kind="gauge",
    per_run=True,
    help="Optimizer steps since the start of the run, across resumes.",
    question="How far is it?",
)
MAX_STEPS = Metric(
    name="max_steps",
    kind="gauge",
    per_run=True,
    help="Optimizer steps after which the run ends.",
    question="How far is it from the end?",
)
PROGRESS = Metric(
    name="progress_ratio",
    kind="gauge",
    unit="ratio",
    per_run=True,
    help="Share of the run that is done, by steps or by passes over the data, whichever is further.",
    question="How far is it from the end?",
)
REMAINING = Metric(
    name="remaining_seconds",
    kind="gauge",
    unit="seconds",
    help="Estimated time to the end of the run at the speed of the last minute; absent while that speed is unknown.",
    question="When will it be done?",
)
CHECKPOINTS = Metric(
    name="checkpoints_total",
    kind="counter",
    labels=("outcome",),
    values=(CHECKPOINT_OUTCOMES,),
    help="Checkpoint attempts by outcome: written, failed.",
    question="Is my work safe?",
)
CHECKPOINT_TIME = Metric(
    name="last_checkpoint_timestamp_seconds",
    kind="gauge",
    unit="seconds",
    help="Unix time of the latest complete checkpoint, 0 before the first.",
    question="How much would a crash lose?",
)
CHECKPOINT_STEP = Metric(
    name="last_checkpoint_step",
    kind="gauge",
    help="Step of the latest complete checkpoint, 0 before the first.",
    question="How much would a crash lose?",
)
CHECKPOINT_EVERY = Metric(
    name="checkpoint_every_steps",
    kind="gauge",
    help="Steps between checkpoints; 0 if only the end of the run writes one.",
    question="Is a checkpoint overdue?",
)
CHECKPOINT_BYTES = Metric(
    name="last_checkpoint_bytes",
    kind="gauge",
    unit="bytes",
    help="Size of the latest complete checkpoint, 0 before the first.",
    question="What do checkpoints cost?",
)
CHECKPOINT_SECONDS = Metric(
    name="checkpoint_duration_seconds",
    kind="histogram",
    unit="seconds",
    buckets=(0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0),
    help="Time taken to write a checkpoint.",
    question="What do checkpoints cost?",
)
DISK_FREE = Metric(
    name="runs_disk_free_bytes",
    kind="gauge",
    unit="bytes",
    help="Free space, for this user, on the disk that holds the run.",
    question="Is the disk filling up?",
)
DISK_SIZE = Metric(
    name="runs_disk_size_bytes",
    kind="gauge",
    unit="bytes",
    help="Size of the disk that holds the run.",
    question="Is the disk filling up?",
)


def verdict_labels() -> list[tuple[str, str]]:
    """The pairs of state and stage that VERDICT can have: a stage only with a state that names one."""
    about_a_stage = [(state, stage) for state in ("stage_holds", "stalled") for stage in STAGES]
    return [*about_a_stage, *((state, "") for state in VERDICT_STATES if state != "stage_holds")]
