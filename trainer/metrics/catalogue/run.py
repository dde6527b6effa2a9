"""The run: who it is, its state and verdict, how far it is, its checkpoints."""

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
    help="Always 1; carries the run's identity, to be joined to the other series.",
    question="Which run is this?",
)
BUILD_INFO = Metric(
    name="build_info",
    kind="info",
    labels=("version", "git_commit", "python", "torch"),
    help="Always 1; carries the versions of what runs.",
    question="Which code runs?",
)
STATE = Metric(
    name="run_state",
    kind="gauge",
    labels=("state",),
    values=(RUN_STATES,),
    help="1 for the run's present state, 0 for every other.",
    question="Is it running?",
)
VERDICT = Metric(
    name="verdict",
    kind="gauge",
    labels=("state", "stage"),
    values=(VERDICT_STATES, ("", *STAGES)),
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
RESTARTS = Metric(
    name="restarts_total",
    kind="counter",
    help="Attempts of the run before this one, in other processes: how often it was resumed.",
    question="Was it restarted?",
)
GLOBAL_STEP = Metric(
    name="global_step",
    kind="gauge",
    per_run=True,
    help="Optimizer steps since the run began, resumes included.",
    question="How far is it?",
)
MAX_STEPS = Metric(
    name="max_steps",
    kind="gauge",
    per_run=True,
    help="Optimizer steps after which the run ends.",
    question="How far is it from its end?",
)
PROGRESS = Metric(
    name="progress_ratio",
    kind="gauge",
    unit="ratio",
    per_run=True,
    help="Share of the run that is done, by steps or by visits of the data, whichever is further.",
    question="How far is it from its end?",
)
REMAINING = Metric(
    name="remaining_seconds",
    kind="gauge",
    unit="seconds",
    help="Time to the end of the run at the pace of the last minute; absent while there is no pace.",
    question="When will it be done?",
)
CHECKPOINTS = Metric(
    name="checkpoints_total",
    kind="counter",
    labels=("outcome",),
    values=(CHECKPOINT_OUTCOMES,),
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
CHECKPOINT_EVERY = Metric(
    name="checkpoint_every_steps",
    kind="gauge",
    help="Steps from one checkpoint to the next; 0 where one is written at the end only.",
    question="Is a checkpoint overdue?",
)
CHECKPOINT_BYTES = Metric(
    name="last_checkpoint_bytes",
    kind="gauge",
    unit="bytes",
    help="Size of the newest whole checkpoint, 0 before the first.",
    question="What do checkpoints cost?",
)
CHECKPOINT_SECONDS = Metric(
    name="checkpoint_duration_seconds",
    kind="histogram",
    unit="seconds",
    buckets=(0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0),
    help="Time that writing a checkpoint took.",
    question="What do checkpoints cost?",
)
DISK_FREE = Metric(
    name="runs_disk_free_bytes",
    kind="gauge",
    unit="bytes",
    help="Room left, for this user, on the disk that holds the run.",
    question="Is the disk filling?",
)
DISK_SIZE = Metric(
    name="runs_disk_size_bytes",
    kind="gauge",
    unit="bytes",
    help="Size of the disk that holds the run.",
    question="Is the disk filling?",
)


def verdict_labels() -> list[tuple[str, str]]:
    """The pairs of state and stage that VERDICT can say: a stage only with a state that is about one."""
    about_a_stage = [(state, stage) for state in ("stage_holds", "stalled") for stage in STAGES]
    return [*about_a_stage, *((state, "") for state in VERDICT_STATES if state != "stage_holds")]
