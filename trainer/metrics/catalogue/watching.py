"""Metrics of the trainer's process, and of the cost of watching."""

from __future__ import annotations

from trainer.metrics.catalogue.metric import Metric

WATCH_PARTS = ("record", "sampler", "writer", "http", "gpu", "trackers")
WATCH_ERROR_PARTS = ("sampler", "http", "gpu", "trackers")
LOG_LEVELS = ("warning", "error")
HTTP_REFUSALS = ("host", "origin", "token", "rate", "size", "streams")
CONTROL_ACTIONS = ("checkpoint", "pause", "resume", "stop")
TRACKERS = ("wandb", "tensorboard")
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
    help="Failed writes to the run record; training continues without them.",
    question="Is the record complete?",
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
    help="Errors in watching itself, by part as in watch_seconds_total; training continues. Failed writes: record_errors_total.",
    question="Can I trust what I see?",
)
LOG_MESSAGES = Metric(
    name="log_messages_total",
    kind="counter",
    labels=("level",),
    values=(LOG_LEVELS,),
    help="Messages in the run's log by level: warning, error.",
    question="Is anything wrong?",
)
HTTP_REFUSED = Metric(
    name="http_refused_total",
    kind="counter",
    labels=("reason",),
    values=(HTTP_REFUSALS,),
    help="Requests that the trainer refused, by reason.",
    question="Is anyone sending requests that they should not?",
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
    help="Accepted requests to control the run, by action.",
    question="Did someone stop it?",
)
TRACKER_UP = Metric(
    name="tracker_up",
    kind="gauge",
    labels=("tracker",),
    values=(TRACKERS,),
    help="1 while a requested tracker accepts the run's numbers; absent for trackers that were not requested.",
    question="Are the other trackers keeping up?",
)
TRACKER_DROPPED = Metric(
    name="tracker_dropped_total",
    kind="counter",
    labels=("tracker",),
    values=(TRACKERS,),
    help="Lines of the run record that a tracker had not accepted when it ended; they can still be sent.",
    question="Is the other tracker's curve complete?",
)
