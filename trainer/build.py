"""Loads and allocates what a run needs: the target's weights on their devices, the drafter, the ring for features."""

from __future__ import annotations

import logging
from functools import partial

import torch
from transformers import PreTrainedModel

from trainer.decoding.generate import stop_token_ids
from trainer.drafter.learner import Learner
from trainer.drafter.model import Drafter
from trainer.errors import ConfigError
from trainer.evaluate.online import Evaluator, NoEvaluator
from trainer.monitor.acceptance import Evaluations
from trainer.monitor.monitor import Monitor
from trainer.run.preflight import Plan
from trainer.target.features import FeatureExtractor, FeatureRing, borrow_weights

log = logging.getLogger(__name__)


def load(plan: Plan, monitor: Monitor) -> tuple[Learner, list[FeatureExtractor], Evaluator | NoEvaluator]:
    """The learner, a feature extractor for each target thread, and the evaluator. Threads on one device share its weights."""
    config, placement = plan.config, plan.placement
    monitor.enter_phase("loading the target")
    try:
        models = {device: plan.target.load(placement.precision, device) for device in dict.fromkeys(placement.targets)}
    except ConfigError as error:  # the run already has a folder, so it fails instead of being refused
        raise RuntimeError(str(error)) from error
    ring = FeatureRing(
        # Those in the queue, the next in order, which may pass the bound, one with each target thread, one with the drafter.
        slots=plan.feature_slots + 1 + len(placement.targets) + 1,
        tokens=config.batches.token_budget,
        width=plan.feature_width,
        dtype=placement.precision,
        device=placement.drafter,
    )
    targets = {device: FeatureExtractor(model, plan.layer_ids, ring, keep_last=plan.keep_last) for device, model in models.items()}
    weights = borrow_weights(models[placement.targets[0]], placement.drafter)

    monitor.enter_phase("making the drafter")
    torch.manual_seed(config.seed)
    drafter = Drafter(plan.drafter)
    if plan.warm_start:
        log.info("%s", plan.warm_start.sentence())
        drafter.load_state_dict(plan.warm_start.trained.drafter.state_dict())
    learner = Learner(drafter.to(placement.drafter), weights, config, len(plan.conversations), autocast=placement.autocast)
    evaluator = _evaluator(plan, models[placement.targets[0]], Evaluations(monitor))
    monitor.enter_phase("waiting for the first features")
    return learner, [targets[device] for device in placement.targets], evaluator


def _evaluator(plan: Plan, model: PreTrainedModel, evaluations: Evaluations) -> Evaluator | NoEvaluator:
    if plan.held_out is None:
        return NoEvaluator()
    return Evaluator(
        model,
        plan.drafter,
        plan.held_out,
        evaluations,
        every=plan.config.evaluate.every,
        anchors=plan.config.drafter.anchors,
        max_new_tokens=plan.config.evaluate.max_new_tokens,
        stop_ids=stop_token_ids(model, plan.chat.end_token_id(), plan.chat.eos_id),
        thread_start=partial(torch.set_num_threads, plan.placement.cpu_threads),
    )
