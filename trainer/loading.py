"""The heavy part of a start: the target's weights onto their devices, a fresh drafter, the ring for features."""

from __future__ import annotations

import torch

from trainer.config import ConfigError
from trainer.drafter import Drafter
from trainer.learner import Learner
from trainer.live import Live
from trainer.models import load_target_model
from trainer.preflight import Plan
from trainer.target import FeatureRing, Target, borrow_weights


def load(plan: Plan, live: Live) -> tuple[Learner, list[Target]]:
    """The learner and a target for each target thread; threads on one device share its weights."""
    config, placement = plan.config, plan.placement
    live.phase("loading the target")
    try:
        models = {
            device: load_target_model(config.target, placement.precision, device) for device in dict.fromkeys(placement.targets)
        }
    except ConfigError as error:  # too late for that: the run has a folder
        raise RuntimeError(str(error)) from error
    ring = FeatureRing(
        # Those in the queue, the one whose turn passes its bound, one in the hands of each target thread, one with the drafter.
        slots=plan.feature_slots + 1 + len(placement.targets) + 1,
        tokens=config.batches.token_budget,
        width=len(plan.layer_ids) * plan.target.hidden_size,
        dtype=placement.precision,
        device=placement.drafter,
    )
    targets = {device: Target(model, plan.layer_ids, ring) for device, model in models.items()}
    weights = borrow_weights(models[placement.targets[0]], placement.drafter)

    live.phase("making the drafter")
    torch.manual_seed(config.seed)
    drafter = Drafter(plan.drafter)
    learner = Learner(drafter.to(placement.drafter), weights, config, len(plan.conversations), autocast=placement.autocast)
    live.phase("waiting for the first features")
    return learner, [targets[device] for device in placement.targets]
