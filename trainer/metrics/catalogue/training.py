"""What the drafter learns: steps, tokens, loss, acceptance length, evaluations."""

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
