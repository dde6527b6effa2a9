"""Metrics of the pipeline: stages and the queues between them."""

from __future__ import annotations

from trainer.metrics.catalogue.metric import Metric

STAGES = ("dataset", "batches", "target", "drafter")
QUEUES = ("samples", "batches", "features")
STAGE_STATES = ("busy", "waiting_input", "waiting_output")
STAGE_SECONDS = Metric(
    name="stage_seconds_total",
    kind="counter",
    unit="seconds",
    labels=("stage", "state"),
    values=(STAGES, STAGE_STATES),
    help="Thread time of a stage by state: busy, waiting_input, waiting_output. They add up to threads x time, without pauses.",
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
    question="Has a thread died, or has the stage finished?",
)
STAGE_ITEMS = Metric(
    name="stage_items_total",
    kind="counter",
    labels=("stage",),
    values=(STAGES,),
    help="Items that a stage has passed on (for the drafter: batches trained on).",
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
    question="Do a few slow items hold up the rest?",
)
STAGE_IDLE = Metric(
    name="stage_since_progress_seconds",
    kind="gauge",
    unit="seconds",
    labels=("stage",),
    values=(STAGES,),
    help="Time since a stage last took or passed on an item.",
    question="Is a stage stuck?",
)
STAGE_DEVICE = Metric(
    name="stage_gpu_info",
    kind="info",
    labels=("stage", "gpu"),
    values=(STAGES, ()),
    help="Always 1; a stage and a GPU that it runs on, numbered as nvidia-smi does.",
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
    help="Maximum number of items in a queue.",
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
    help="Maximum number of bytes in a queue.",
    question="How much memory can be in flight?",
)
