"""The text that an empty panel shows, saying why; and the colours that several panels share."""

from __future__ import annotations

from grafana.panels import GREEN, ORANGE, RED
from trainer.metrics.catalogue.run import VERDICT_STATES

LOAD_RULES = "Load grafana/rules/recording.yml into Prometheus."
NO_RUN = "No run matches: change the time range, job, run or instance above. Is the trainer up, and does Prometheus scrape it?"
NO_STEP = "No step in the selected time range, or no run matches: the verdict above says what the run is doing."
NO_EVALUATION = "No evaluation in the selected time range: --evaluate.every sets the interval, and prompts are needed."
NO_GPU = "No GPU figures: draftscope_gpu_sampler_up is 0 (/status says why), or the run uses no GPU."
NO_HOPPER = f"Hopper and newer GPUs only. {NO_GPU}"
NO_LINK = f"This GPU has no NVLink or does not report it (Hopper and newer do). {NO_GPU}"
NO_ALLOCATOR = "torch has not used a GPU: the run computes on the CPU or is still starting."
NO_TARGET = "Prometheus has no such target: does it scrape the selected job?"

OVER_TIME = "Plotted over time, one point per scrape. The web app (link above) plots every single step."

# As in the web app.
STAGE_COLORS = {"dataset": "#2f7fc1", "batches": "#0f8f6b", "target": "#cb5a10", "drafter": "#9447a0"}
BAD_VERDICTS = ("stalled", "diverged", "failed")
ODD_VERDICTS = ("starved", "paused", "stage_holds")
GOOD_VERDICTS = tuple(state for state in VERDICT_STATES if state not in BAD_VERDICTS + ODD_VERDICTS)
VERDICT_COLORS = {**dict.fromkeys(BAD_VERDICTS, RED), **dict.fromkeys(ODD_VERDICTS, ORANGE), **dict.fromkeys(GOOD_VERDICTS, GREEN)}
