"""Metrics of training: steps, tokens, loss, acceptance length, evaluations."""

from __future__ import annotations

from trainer.metrics.catalogue.metric import Metric

TOKEN_KINDS = ("context", "draft")
DROP_REASONS = ("no_answer", "unaligned", "template", "malformed", "mask_token")
SKIP_REASONS = ("non_finite_loss", "non_finite_gradient", "non_finite_features", "no_draft_tokens")
EVALUATION_OUTCOMES = ("done", "failed", "skipped")
STEPS = Metric(
    name="steps_total",
    kind="counter",
    help="Optimizer steps taken by this process.",
    question="How many steps per second?",
)
SAMPLES = Metric(
    name="samples_total",
    kind="counter",
    help="Conversations that this process has trained on, counted once per pass over the data.",
    question="How much data has it seen?",
)
DROPPED = Metric(
    name="samples_dropped_total",
    kind="counter",
    labels=("reason",),
    values=(DROP_REASONS,),
    help="Conversations left out, by reason: no answer, rejected by the chat template, malformed, containing the mask token.",
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
    question="How many tokens per second, and of which kind?",
)
LOSS = Metric(
    name="loss",
    kind="gauge",
    column="loss",
    per_run=True,
    help="Loss of the latest step, in nats: per draft token, or per block if the objective is D-PACE.",
    question="Is it learning?",
)
LEARNING_RATE = Metric(
    name="learning_rate",
    kind="gauge",
    column="learning_rate",
    per_run=True,
    help="Learning rate of the latest step.",
    question="Where in the schedule is it?",
)
GRAD_NORM = Metric(
    name="grad_norm",
    kind="gauge",
    column="grad_norm",
    per_run=True,
    help="Gradient norm before clipping, at the latest step.",
    question="Is training stable?",
)
STEP_SECONDS = Metric(
    name="step_duration_seconds",
    kind="histogram",
    unit="seconds",
    column="step_seconds",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0),
    help="Wall-clock time from one optimizer step to the next.",
    question="How long does a step take?",
)
LAST_STEP_TIME = Metric(
    name="last_step_timestamp_seconds",
    kind="gauge",
    unit="seconds",
    help="Unix time of the latest step, 0 before the first.",
    question="When was the last step?",
)
SKIPPED_STEPS = Metric(
    name="skipped_steps_total",
    kind="counter",
    labels=("reason",),
    values=(SKIP_REASONS,),
    help="Steps whose update was skipped, by reason.",
    question="Is training stable?",
)
POSITION_ACCURACY = Metric(
    name="position_accuracy_ratio",
    kind="gauge",
    unit="ratio",
    labels=("position",),
    column="position_accuracy",
    per_run=True,
    help="Share of draft tokens that match the data, by position in the block (1 follows the anchor), at the latest step.",
    question="How far into the block are its guesses right?",
)
ESTIMATED_ACCEPTANCE = Metric(
    name="estimated_acceptance_length_tokens",
    kind="gauge",
    unit="tokens",
    column="estimated_acceptance_length",
    per_run=True,
    help="Tokens kept per round, bonus token included, estimated from the accuracy of the latest step. Not measured by decoding.",
    question="Roughly how well will it draft?",
)
MEASURED_ACCEPTANCE = Metric(
    name="measured_acceptance_length_tokens",
    kind="gauge",
    unit="tokens",
    per_run=True,
    help="Tokens kept per round, bonus token included, measured by speculative decoding of held-out prompts.",
    question="How well does it draft?",
)
MEASURED_POSITION = Metric(
    name="measured_position_acceptance_ratio",
    kind="gauge",
    unit="ratio",
    labels=("position",),
    per_run=True,
    help="Share of rounds that kept the draft token, by position in the block (1 follows the anchor), in the latest evaluation.",
    question="How far into the block are draft tokens kept?",
)
HELD_OUT_ACCEPTANCE = Metric(
    name="held_out_estimated_acceptance_length_tokens",
    kind="gauge",
    unit="tokens",
    per_run=True,
    help="Tokens kept per round, estimated from the accuracy on the latest evaluation's conversations. Not measured by decoding.",
    question="Does it draft well on text that it has never seen?",
)
EVALUATION_STEP = Metric(
    name="last_evaluation_step",
    kind="gauge",
    per_run=True,
    help="Step of the drafter that the latest evaluation measured.",
    question="How old is the measurement?",
)
EVALUATIONS = Metric(
    name="evaluations_total",
    kind="counter",
    labels=("outcome",),
    values=(EVALUATION_OUTCOMES,),
    help="Evaluations by outcome: done, failed, skipped (the previous one was still running).",
    question="Is it being evaluated?",
)
EVALUATION_SECONDS = Metric(
    name="evaluation_duration_seconds",
    kind="histogram",
    unit="seconds",
    buckets=(5.0, 15.0, 60.0, 300.0, 1800.0),
    help="Duration of an evaluation, which runs beside training.",
    question="What do evaluations cost?",
)
EVALUATION_ROUNDS = Metric(
    name="evaluation_rounds_total",
    kind="counter",
    help="Draft-and-verify rounds in all evaluations of this process.",
    question="How certain is the measured acceptance length?",
)
EVALUATION_ACCEPTED = Metric(
    name="evaluation_accepted_tokens_total",
    kind="counter",
    unit="tokens",
    help="Draft tokens kept in all evaluations of this process: 1 + this / rounds is the acceptance length.",
    question="How well does it draft?",
)
