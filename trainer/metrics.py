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
WATCH_PARTS = ("record", "sampler", "writer", "http", "gpu", "trackers")
WATCH_ERROR_PARTS = ("sampler", "http", "gpu", "trackers")
LOG_LEVELS = ("warning", "error")
HTTP_REFUSALS = ("host", "origin", "token", "rate", "size", "streams")
CONTROL_ACTIONS = ("checkpoint", "pause", "resume", "stop")
TRACKERS = ("wandb", "tensorboard")
GPU_BACKENDS = ("nvml", "amdsmi", "none")
GPU_CLOCKS = ("sm", "memory")
GPU_DIRECTIONS = ("receive", "transmit")
GPU_THROTTLE_REASONS = ("power_cap", "power_brake", "thermal", "hardware", "other")

# Labels that no list can hold, and what bounds them instead.
OPEN_LABELS = {
    "run_id": "the run's name; a process serves one run",
    "target": "the name of the target; one a run",
    "version": "of Draftscope; one a process",
    "git_commit": "of the code that runs, empty outside of a checkout; one a process",
    "python": "version; one a process",
    "torch": "version; one a process",
    "position": "1 … block size - 1; one for which there was no draft token is absent",
    "gpu": "counted as nvidia-smi does, `0:1` for part 1 of a split GPU 0 (MIG); those that the process may use",
    "uuid": "one a GPU",
    "name": "of the model; one a GPU",
    "driver": "version; one a GPU",
}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number: its Prometheus name without the prefix, and all that is known of it before it is measured.

    `unit` is a base unit (`seconds`, `bytes`, `ratio`, `tokens` …) or "" for a bare count. `column` names the field of
    `steps.jsonl` that holds the same number, "" where the record keeps it elsewhere. `buckets` are a histogram's upper bounds,
    in `unit`. `per_run` says that its curve is compared between runs: it carries the run's id as a label `run_id`, before `labels`;
    everything else is joined to it by `run_info`. `values` are all that each of `labels` can say, in the same order; () for one of
    OPEN_LABELS, and left out where all are.
    """

    name: str
    kind: Kind
    help: str
    question: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    column: str = ""
    buckets: tuple[float, ...] = ()
    per_run: bool = False
    values: tuple[tuple[str, ...], ...] = ()

    @property
    def full_name(self) -> str:
        return PREFIX + self.name

    @property
    def label_names(self) -> tuple[str, ...]:
        """All labels that Prometheus sees of it."""
        return ("run_id", *self.labels) if self.per_run else self.labels

    @property
    def known_values(self) -> dict[str, tuple[str, ...]]:
        """Label → all that it can say; () for one of OPEN_LABELS."""
        return dict(zip(self.labels, self.values or ((),) * len(self.labels), strict=True))


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
    values=(DROP_REASONS,),
    help="Conversations left out: nothing to learn from, refused by the chat template, or with the mask token in them.",
    question="Is my data being used?",
)
TOKENS = Metric(
    name="tokens_total",
    kind="counter",
    unit="tokens",
    labels=("kind",),
    values=(TOKEN_KINDS,),
    per_run=True,
    help="Tokens processed by this process: `context` as read by the target, `draft` as drafted (anchors x block size).",
    question="How many tokens a second, of which kind?",
)
LOSS = Metric(
    name="loss",
    kind="gauge",
    column="loss",
    per_run=True,
    help="Loss of the newest step, in nats: per draft token, or per block where the objective is D-PACE.",
    question="Is it learning?",
)
LEARNING_RATE = Metric(
    name="learning_rate",
    kind="gauge",
    column="learning_rate",
    per_run=True,
    help="Learning rate of the newest step.",
    question="Where in the schedule is it?",
)
GRAD_NORM = Metric(
    name="grad_norm",
    kind="gauge",
    column="grad_norm",
    per_run=True,
    help="Norm of the gradient before clipping, at the newest step.",
    question="Is training stable?",
)
STEP_SECONDS = Metric(
    name="step_duration_seconds",
    kind="histogram",
    unit="seconds",
    column="step_seconds",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0),
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
    values=(SKIP_REASONS,),
    help="Steps whose update was left out.",
    question="Is training stable?",
)
POSITION_ACCURACY = Metric(
    name="position_accuracy_ratio",
    kind="gauge",
    unit="ratio",
    labels=("position",),
    column="position_accuracy",
    per_run=True,
    help="Share of draft tokens that equal the data's, by position in the block (1 follows the anchor), at the newest step.",
    question="How far into the block does it guess right?",
)
ESTIMATED_ACCEPTANCE = Metric(
    name="estimated_acceptance_length_tokens",
    kind="gauge",
    unit="tokens",
    column="estimated_acceptance_length",
    per_run=True,
    help="Tokens kept per round, the bonus token included, as estimated from the newest step's accuracy. Not measured by decoding.",
    question="How good will it draft, roughly?",
)
MEASURED_ACCEPTANCE = Metric(
    name="measured_acceptance_length_tokens",
    kind="gauge",
    unit="tokens",
    per_run=True,
    help="Tokens kept per round, the bonus token included, as measured by speculative decoding of held-out prompts.",
    question="How well does it draft?",
)
MEASURED_POSITION = Metric(
    name="measured_position_acceptance_ratio",
    kind="gauge",
    unit="ratio",
    labels=("position",),
    per_run=True,
    help="Share of rounds that kept the draft token, by position in the block (1 follows the anchor), at the newest evaluation.",
    question="How far into the block are draft tokens kept?",
)
HELD_OUT_ACCEPTANCE = Metric(
    name="held_out_estimated_acceptance_length_tokens",
    kind="gauge",
    unit="tokens",
    per_run=True,
    help="Tokens kept per round as estimated from accuracy on the newest evaluation's conversations. Not measured by decoding.",
    question="Does it draft for text that it never saw?",
)
EVALUATION_STEP = Metric(
    name="last_evaluation_step",
    kind="gauge",
    per_run=True,
    help="Step whose drafter the newest evaluation measured.",
    question="How old is the measurement?",
)
EVALUATIONS = Metric(
    name="evaluations_total",
    kind="counter",
    labels=("outcome",),
    values=(EVALUATION_OUTCOMES,),
    help="Evaluations that were due, by outcome: done, failed, skipped (the one before was still under way).",
    question="Is it being measured?",
)
EVALUATION_SECONDS = Metric(
    name="evaluation_duration_seconds",
    kind="histogram",
    unit="seconds",
    buckets=(5.0, 15.0, 60.0, 300.0, 1800.0),
    help="Time that an evaluation took, beside training.",
    question="What do evaluations cost?",
)
EVALUATION_ROUNDS = Metric(
    name="evaluation_rounds_total",
    kind="counter",
    help="Draft-and-verify rounds of all evaluations of this process.",
    question="How sure is the measured acceptance?",
)
EVALUATION_ACCEPTED = Metric(
    name="evaluation_accepted_tokens_total",
    kind="counter",
    unit="tokens",
    help="Tokens kept in all evaluations of this process, less one a round: 1 + this / rounds is the acceptance length.",
    question="How well does it draft?",
)
STAGE_SECONDS = Metric(
    name="stage_seconds_total",
    kind="counter",
    unit="seconds",
    labels=("stage", "state"),
    values=(STAGES, STAGE_STATES),
    help="Thread time of a stage by state: busy, waiting_input, waiting_output. Together they are threads x time, pauses left out.",
    question="Which stage holds the run back?",
)
STAGE_THREADS = Metric(
    name="stage_threads",
    kind="gauge",
    labels=("stage",),
    values=(STAGES,),
    help="Threads of a stage.",
    question="How many workers does a stage have?",
)
STAGE_RUNNING = Metric(
    name="stage_running_threads",
    kind="gauge",
    labels=("stage",),
    values=(STAGES,),
    help="Threads of a stage that have not ended.",
    question="Has a thread died, or the stage done its work?",
)
STAGE_ITEMS = Metric(
    name="stage_items_total",
    kind="counter",
    labels=("stage",),
    values=(STAGES,),
    help="Items a stage has handed on (the drafter: batches trained on).",
    question="How fast is each stage?",
)
STAGE_ITEM_SECONDS = Metric(
    name="stage_item_duration_seconds",
    kind="histogram",
    unit="seconds",
    labels=("stage",),
    values=(STAGES,),
    buckets=(0.001, 0.01, 0.1, 1.0, 10.0),
    help="Time that one thread of a stage was busy with one item.",
    question="Do all items take as long, or do some hold everything up?",
)
STAGE_IDLE = Metric(
    name="stage_since_progress_seconds",
    kind="gauge",
    unit="seconds",
    labels=("stage",),
    values=(STAGES,),
    help="Time since a stage last took or handed on an item.",
    question="Is a stage stuck?",
)
STAGE_DEVICE = Metric(
    name="stage_gpu_info",
    kind="info",
    labels=("stage", "gpu"),
    values=(STAGES, ()),
    help="Always 1; a stage and a GPU that it computes on, counted as nvidia-smi does.",
    question="Which stage uses which GPU?",
)
QUEUE_ITEMS = Metric(
    name="queue_items",
    kind="gauge",
    labels=("queue",),
    values=(QUEUES,),
    help="Items in a queue.",
    question="Where does work pile up?",
)
QUEUE_CAPACITY_ITEMS = Metric(
    name="queue_capacity_items",
    kind="gauge",
    labels=("queue",),
    values=(QUEUES,),
    help="Items that a queue holds at most.",
    question="How full can a queue get?",
)
QUEUE_BYTES = Metric(
    name="queue_bytes",
    kind="gauge",
    unit="bytes",
    labels=("queue",),
    values=(QUEUES,),
    help="Bytes of tensors in a queue.",
    question="How much memory is in flight?",
)
QUEUE_CAPACITY_BYTES = Metric(
    name="queue_capacity_bytes",
    kind="gauge",
    unit="bytes",
    labels=("queue",),
    values=(QUEUES,),
    help="Bytes that a queue holds at most.",
    question="How much memory can be in flight?",
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
GPU_KERNEL_ACTIVE = Metric(
    name="gpu_kernel_active_ratio",
    kind="gauge",
    unit="ratio",
    labels=("gpu",),
    help="Share of the last sampling period in which at least one kernel ran: an upper bound of use, not use itself.",
    question="Is the GPU busy?",
)
GPU_SM_ACTIVE = Metric(
    name="gpu_sm_active_ratio",
    kind="gauge",
    unit="ratio",
    labels=("gpu",),
    help="Share of time that the streaming multiprocessors had work, mean over them. Hopper and newer.",
    question="How much of the GPU is in use?",
)
GPU_SM_OCCUPANCY = Metric(
    name="gpu_sm_occupancy_ratio",
    kind="gauge",
    unit="ratio",
    labels=("gpu",),
    help="Warps resident on the streaming multiprocessors, as a share of what they hold. Hopper and newer.",
    question="Are the kernels large enough?",
)
GPU_TENSOR_ACTIVE = Metric(
    name="gpu_tensor_active_ratio",
    kind="gauge",
    unit="ratio",
    labels=("gpu",),
    help="Share of time that the tensor cores were at work. Hopper and newer.",
    question="Does the arithmetic run on tensor cores?",
)
GPU_DRAM_ACTIVE = Metric(
    name="gpu_dram_active_ratio",
    kind="gauge",
    unit="ratio",
    labels=("gpu",),
    help="Share of the memory bandwidth in use. Hopper and newer.",
    question="Does memory bandwidth limit it?",
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
GPU_MEMORY_RESERVED = Metric(
    name="gpu_memory_reserved_bytes",
    kind="gauge",
    unit="bytes",
    labels=("gpu",),
    help="GPU memory that the driver keeps for itself.",
    question="Where is the rest of the memory?",
)
GPU_POWER = Metric(
    name="gpu_power_watts",
    kind="gauge",
    unit="watts",
    labels=("gpu",),
    help="Power draw.",
    question="Is the GPU working hard?",
)
GPU_POWER_LIMIT = Metric(
    name="gpu_power_limit_watts",
    kind="gauge",
    unit="watts",
    labels=("gpu",),
    help="Power at which the GPU slows itself down.",
    question="Is power the limit?",
)
GPU_ENERGY = Metric(
    name="gpu_energy_joules_total",
    kind="counter",
    unit="joules",
    labels=("gpu",),
    help="Energy drawn since the driver was loaded; its rate is the mean power.",
    question="What does the run cost in energy?",
)
GPU_TEMPERATURE = Metric(
    name="gpu_temperature_celsius",
    kind="gauge",
    unit="celsius",
    labels=("gpu",),
    help="Temperature of the GPU.",
    question="Is the GPU hot?",
)
GPU_CLOCK = Metric(
    name="gpu_clock_hertz",
    kind="gauge",
    unit="hertz",
    labels=("gpu", "clock"),
    values=((), GPU_CLOCKS),
    help="Clock of the streaming multiprocessors (sm) and of the memory.",
    question="Does the GPU run at full clock?",
)
GPU_THROTTLED = Metric(
    name="gpu_throttled",
    kind="gauge",
    labels=("gpu", "reason"),
    values=((), GPU_THROTTLE_REASONS),
    help="1 while the GPU slows its clocks for this reason, else 0.",
    question="Why is the GPU slower than it could be?",
)
GPU_PCIE = Metric(
    name="gpu_pcie_bytes_per_second",
    kind="gauge",
    unit="bytes_per_second",
    labels=("gpu", "direction"),
    values=((), GPU_DIRECTIONS),
    help="Traffic over PCIe, as seen from the GPU.",
    question="Is the link to the host the limit?",
)
GPU_NVLINK = Metric(
    name="gpu_nvlink_bytes_per_second",
    kind="gauge",
    unit="bytes_per_second",
    labels=("gpu", "direction"),
    values=((), GPU_DIRECTIONS),
    help="Traffic over all NVLinks of the GPU. Hopper and newer.",
    question="Is the link between GPUs the limit?",
)
GPU_XIDS = Metric(
    name="gpu_xid_errors_total",
    kind="counter",
    labels=("gpu",),
    help="Errors that the driver reported for this GPU (XID) since this process began.",
    question="Is the GPU broken?",
)
GPU_XID_CODE = Metric(
    name="gpu_xid_last_code",
    kind="gauge",
    labels=("gpu",),
    help="Code of the newest XID error, 0 before the first.",
    question="What is wrong with the GPU?",
)
GPU_XID_TIME = Metric(
    name="gpu_xid_last_timestamp_seconds",
    kind="gauge",
    unit="seconds",
    labels=("gpu",),
    help="Unix time of the newest XID error, 0 before the first.",
    question="When did the GPU break?",
)
GPU_INFO = Metric(
    name="gpu_info",
    kind="info",
    labels=("gpu", "uuid", "name", "driver"),
    help="Always 1; carries the identity of a GPU.",
    question="Which GPU is this?",
)
ALLOCATED = Metric(
    name="gpu_allocator_allocated_bytes",
    kind="gauge",
    unit="bytes",
    labels=("gpu",),
    help="GPU memory in tensors of this process, as torch counts it.",
    question="How much memory does training itself need?",
)
RESERVED = Metric(
    name="gpu_allocator_reserved_bytes",
    kind="gauge",
    unit="bytes",
    labels=("gpu",),
    help="GPU memory that torch holds, tensors and cache.",
    question="How much of the memory is torch's cache?",
)
ALLOCATED_PEAK = Metric(
    name="gpu_allocator_peak_bytes",
    kind="gauge",
    unit="bytes",
    labels=("gpu",),
    help="Most GPU memory that tensors of this process ever took.",
    question="How near was it to its memory limit?",
)
ALLOCATOR_RETRIES = Metric(
    name="gpu_allocator_retries_total",
    kind="counter",
    labels=("gpu",),
    help="Times that torch emptied its cache to find memory, which stops the GPU for a moment.",
    question="Is memory so short that it costs speed?",
)
ALLOCATOR_OOMS = Metric(
    name="gpu_allocator_out_of_memory_total",
    kind="counter",
    labels=("gpu",),
    help="Times that torch found no memory.",
    question="Is memory so short that work fails?",
)
GPU_SAMPLER_UP = Metric(
    name="gpu_sampler_up",
    kind="gauge",
    help="1 while GPU figures can be read, 0 where there is no GPU, its library fails or the run has ended; `/status` says why.",
    question="Can the GPU figures be trusted?",
)
GPU_BACKEND = Metric(
    name="gpu_backend_info",
    kind="info",
    labels=("backend",),
    values=(GPU_BACKENDS,),
    help="Always 1; names the library that the GPU figures come from.",
    question="Where do the GPU figures come from?",
)
GPU_SAMPLE_TIME = Metric(
    name="gpu_last_sample_timestamp_seconds",
    kind="gauge",
    unit="seconds",
    help="Unix time of the newest GPU figures, 0 before the first.",
    question="How old are the GPU figures?",
)
GPU_SAMPLE_SECONDS = Metric(
    name="gpu_sample_duration_seconds",
    kind="gauge",
    unit="seconds",
    help="Time that the newest look at all GPUs took.",
    question="Does the driver answer slowly?",
)
GPU_SAMPLE_ERRORS = Metric(
    name="gpu_sample_errors_total",
    kind="counter",
    help="Looks at the GPUs that failed or were given up.",
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
    values=(WATCH_PARTS,),
    help="Time spent on watching: `record` on the drafter's thread, `trackers` in processes of their own, the rest on own threads.",
    question="What does watching cost?",
)
WATCH_ERRORS = Metric(
    name="watch_errors_total",
    kind="counter",
    labels=("part",),
    values=(WATCH_ERROR_PARTS,),
    help="Errors within watching itself, by part as in watch_seconds_total; training goes on. Failed writes: record_errors_total.",
    question="Can what I see be trusted?",
)
LOG_MESSAGES = Metric(
    name="log_messages_total",
    kind="counter",
    labels=("level",),
    values=(LOG_LEVELS,),
    help="Messages in the run's log, by level: warning, error.",
    question="Is anything wrong?",
)
HTTP_REFUSED = Metric(
    name="http_refused_total",
    kind="counter",
    labels=("reason",),
    values=(HTTP_REFUSALS,),
    help="Requests to the trainer that were refused, by reason.",
    question="Does anybody ask who must not?",
)
EVENT_STREAMS = Metric(
    name="event_streams",
    kind="gauge",
    help="Open event streams.",
    question="Who is watching?",
)
CONTROL_REQUESTS = Metric(
    name="control_requests_total",
    kind="counter",
    labels=("action",),
    values=(CONTROL_ACTIONS,),
    help="Requests to control the run that were taken, by action.",
    question="Did somebody stop it?",
)
TRACKER_UP = Metric(
    name="tracker_up",
    kind="gauge",
    labels=("tracker",),
    values=(TRACKERS,),
    help="1 while a tracker that was asked for takes the run's numbers; absent for those that were not.",
    question="Do the other trackers follow?",
)
TRACKER_DROPPED = Metric(
    name="tracker_dropped_total",
    kind="counter",
    labels=("tracker",),
    values=(TRACKERS,),
    help="Lines of the run record that a tracker had not taken when it ended; they can still be sent to it.",
    question="Is the other tracker's curve whole?",
)

CATALOGUE: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


def verdict_labels() -> list[tuple[str, str]]:
    """The pairs of state and stage that VERDICT can say: a stage only with a state that is about one."""
    about_a_stage = [(state, stage) for state in ("stage_holds", "stalled") for stage in STAGES]
    return [*about_a_stage, *((state, "") for state in VERDICT_STATES if state != "stage_holds")]


def step_columns() -> Iterator[tuple[str, Metric]]:
    """The fields of `steps.jsonl` that the catalogue describes, in order."""
    return ((metric.column, metric) for metric in CATALOGUE if metric.column)
