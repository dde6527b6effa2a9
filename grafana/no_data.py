"""Why a panel of Draftscope may be empty, in the words that it shows then; and the colours that several panels share."""

from __future__ import annotations

from grafana.panels import GREEN, ORANGE, RED
from trainer.metrics.catalogue.run import VERDICT_STATES

RULES_LACK = "Load grafana/rules/recording.yml into Prometheus."
NO_RUN = (
    "No such run in this time: choose another time, job, run or instance above. Is the trainer up, and does Prometheus scrape it?"
)
NO_STEP = "No step in this time, or no such run: the verdict above says what the run does."
NO_EVALUATION = "Not measured in this time: --evaluate.every says how often, and it needs prompts."
NO_GPU = "No GPU figures: draftscope_gpu_sampler_up is 0 and /status says why, or the run uses no GPU."
NO_HOPPER = f"Hopper and newer GPUs only. {NO_GPU}"
NO_LINK = f"This GPU has no NVLink, or does not tell (Hopper and newer do). {NO_GPU}"
NO_ALLOCATOR = "Torch has not touched a GPU: the run computes on the CPU, or is only starting."
NO_TARGET = "Prometheus knows no such target: does it scrape the chosen job?"

AGAINST_TIME = "Drawn against time, at Prometheus' pace; every single step, against the step, is in the web app (link above)."

# As in the web app.
STAGE_COLORS = {"dataset": "#2f7fc1", "batches": "#0f8f6b", "target": "#cb5a10", "drafter": "#9447a0"}
BAD_VERDICTS = ("stalled", "diverged", "failed")
ODD_VERDICTS = ("starved", "paused", "stage_holds")
GOOD_VERDICTS = tuple(state for state in VERDICT_STATES if state not in BAD_VERDICTS + ODD_VERDICTS)
VERDICT_COLORS = {**dict.fromkeys(BAD_VERDICTS, RED), **dict.fromkeys(ODD_VERDICTS, ORANGE), **dict.fromkeys(GOOD_VERDICTS, GREEN)}
