"""Checks everything that can be wrong with an evaluation before the target's weights are read. Raises `ConfigError`."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass

import torch

from trainer.config import DatasetConfig, Precision
from trainer.data.chat_template import Chat
from trainer.data.prompts import held_out_split, load_prompts
from trainer.decoding.sampling import Sampling
from trainer.devices import choose_precision, default_device, find_device, precision_name
from trainer.drafter.compatibility import check_fit
from trainer.errors import ConfigError, require
from trainer.evaluate.compare import TokenisedPrompt, read_prompts
from trainer.evaluate.warnings import EvaluationSettings, evaluation_warnings
from trainer.files import expand_home
from trainer.formats.load import TrainedDrafter, load_trained
from trainer.target.load import Target


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    checkpoint: str
    """The drafter: a run by id or folder, a checkpoint's folder or an exported one."""
    prompts: str
    """Prompts: a text file (one per line), a .jsonl file, a folder made by `datasets.save_to_disk`, `demo` or `stdlib`."""
    target: str | None = None
    """The model to draft for; by default the one that the drafter was trained for."""
    runs: str = "runs"
    """Folder of all runs, in which a run's id is looked up."""
    limit: int | None = None
    """Most prompts to answer, the first ones; by default all."""
    max_new_tokens: int = 256
    """Most tokens in an answer."""
    temperature: float = 0.0
    """0 is greedy; above 0, tokens are sampled at this temperature."""
    top_p: float = 1.0
    """Sample only from the likeliest tokens that make up this share of the probability."""
    top_k: int = 0
    """Sample only from this many of the likeliest tokens; 0 is all."""
    seed: int = 0
    """Decides the sampling and the order of `stdlib`'s prompts."""
    device: str = "auto"
    """Device of both models, such as `cuda:0`; `auto` is the first GPU, else the CPU."""
    precision: Precision = "auto"
    """Precision of the target's weights; `auto` is that of the training, if known, else bfloat16 on GPUs that have it, else
    float32."""
    cpu_threads: int | None = None
    """Threads that torch uses; by default as many as torch chooses."""
    template_args: dict[str, str] | None = None
    """Arguments for the target's chat template, such as `enable_thinking false`; by default those of the training."""
    baseline: bool = True
    """Also let the target answer alone. Without, evaluation takes half the time, but speed-up and losslessness are unknown."""
    json: bool = False
    """Print JSON instead of the table."""
    output: str | None = None
    """A file to write the JSON to; it must not exist yet."""

    def __post_init__(self) -> None:
        expand_home(self, "checkpoint", "prompts", "target", "runs", "output")
        require(self.limit is None or self.limit >= 1, "limit", "at least 1", self.limit)
        require(self.max_new_tokens >= 2, "max_new_tokens", "at least 2", self.max_new_tokens)
        require(0 <= self.seed < 2**53, "seed", "from 0 to 2**53 - 1", self.seed)
        require(self.cpu_threads is None or self.cpu_threads >= 1, "cpu_threads", "at least 1", self.cpu_threads)
        _ = self.sampling

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """Everything an evaluation needs, checked."""

    options: EvaluateOptions
    trained: TrainedDrafter
    target: Target
    device: torch.device
    dtype: torch.dtype
    chat: Chat
    prompts: list[TokenisedPrompt]
    left_out: Counter[str]
    warnings: list[str]
    template_args: dict[str, str]
    split: str | None
    """The split that the prompts are read from, where they are a saved dataset with splits."""

    @property
    def compared(self) -> bool:
        """Whether each answer is compared with the target's own, token for token."""
        return self.options.baseline and self.options.sampling.greedy


def check(options: EvaluateOptions) -> EvaluationPlan:
    """Read the drafter, the prompts and the target's config and tokenizer. Raises `ConfigError` for what cannot work."""
    trained = _read_drafter(options)
    target = _find_target(options, trained)
    description = target.description
    device = find_device(options.device if options.device != "auto" else default_device(), "device")
    dtype = _precision(options.precision, trained.training.precision, device)
    template_args = dict(trained.training.template_args) if options.template_args is None else options.template_args
    chat = Chat(
        target.tokenizer,
        template_args=DatasetConfig(template_args=template_args).template_values(),
        mask_token_id=trained.drafter.mask_token_id,
        vocab_size=description.vocab_size,
    )
    prompts, left_out = read_prompts(
        chat,
        load_prompts(options.prompts, seed=options.seed, limit=options.limit, held_out=True),
        limit=(description.max_positions or sys.maxsize) - options.max_new_tokens,
    )
    settings = EvaluationSettings(
        target=target, precision=precision_name(dtype), template_args=template_args, prompts=options.prompts
    )
    return EvaluationPlan(
        options=options,
        trained=trained,
        target=target,
        device=device,
        dtype=dtype,
        chat=chat,
        prompts=prompts,
        left_out=left_out,
        warnings=[*([target.note] if target.note else []), *evaluation_warnings(trained, settings)],
        template_args=template_args,
        split=held_out_split(options.prompts),
    )


def _read_drafter(options: EvaluateOptions) -> TrainedDrafter:
    trained = load_trained(options.checkpoint, options.runs)
    if not all(bool(weight.isfinite().all()) for weight in trained.drafter.parameters()):
        raise ConfigError(f"the drafter in {trained.path} has weights that are NaN or infinite: take an earlier checkpoint")
    return trained


def _find_target(options: EvaluateOptions, trained: TrainedDrafter) -> Target:
    name = options.target or trained.target
    if name is None:
        raise ConfigError(f"{options.checkpoint!r} does not say which target it drafts for: name it with --target")
    target = Target.find(name)
    _ = target.description  # raises for what is no decoder-only language model
    check_fit(trained.config, target.text_config, name)
    target.outline()  # raises for a target that no drafter fits
    return target


def _precision(requested: Precision, trained_in: str | None, device: torch.device) -> torch.dtype:
    for known in (torch.float32, torch.bfloat16):
        if requested == "auto" and trained_in == precision_name(known):
            return known
    return choose_precision(requested, (device,))
