"""transformers' logits warpers: the oracle for what a token is drawn from, written by others."""

import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from trainer.decoding.sampling import Sampling


def warped(sampling: Sampling, logit_TV: torch.Tensor) -> torch.Tensor:
    """The distribution [T, V] that `generate` would draw from with these settings, in its order: temperature, top-k, top-p."""
    steps = [TemperatureLogitsWarper(sampling.temperature)]
    steps += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    steps += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    logit_TV = logit_TV.float()
    return LogitsProcessorList(steps)(torch.zeros(len(logit_TV), 1, dtype=torch.long), logit_TV.clone()).softmax(-1)
