"""`python -m trainer prepare`: the target answers prompts; the conversations become a folder to train on.

A drafter learns to predict its target, so it is trained on the target's own answers, in the precision in which the target is used.
Answers are kept in a working folder as they are made; the output appears, whole, after the last one.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from trainer.config import DatasetConfig, Precision
from trainer.data.chat_template import Chat
from trainer.data.prompts import Prompt, fingerprint_prompts, load_prompts
from trainer.decoding.generate import DecodeStep, RequestQueue, generate_answers, require_stop_token_ids
from trainer.decoding.progress import AnswerProgress, print_line, show_progress
from trainer.decoding.sampling import Sampling
from trainer.devices import choose_precision, default_device, find_device, precision_name
from trainer.errors import ConfigError, require
from trainer.files import expand_home, free_place
from trainer.prepare.answer_store import AnswerStore, open_store, working_folder
from trainer.prepare.output import collect, write_prepared
from trainer.prepare.summary import DropSummary, warn_of_few_held_out
from trainer.prepare.turns import ConversationBuilder
from trainer.record.environment import git_commit, versions
from trainer.target.load import Target
from trainer.target.provenance import weights_fingerprint


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    target: str
    """The model that answers: a folder, a hub id, `demo` or `tiny`."""
    prompts: str
    """Prompts to answer: `stdlib`, a text file (one per line), a .jsonl file, or a folder made by `datasets.save_to_disk`."""
    output: str
    """Folder to make; it must not exist yet. Until then the answers are kept beside it, in a folder named OUTPUT.partial."""
    limit: int | None = None
    """Most prompts to answer; by default all."""
    turns: int = 1
    """Most messages of the user to ask, for prompts that are conversations; 0 asks all, each after the target's own answers to
    those before."""
    max_new_tokens: int = 1024
    """Most tokens in an answer."""
    keep_unfinished: bool = False
    """Keep answers that `--max-new-tokens` cut off; training then takes the cut for the end of the answer."""
    temperature: float = 0.0
    """0 always takes the likeliest token; above 0, tokens are sampled at this temperature."""
    top_p: float = 1.0
    """Sample only from the likeliest tokens that make up this share of the probability; needs a temperature."""
    top_k: int = 0
    """Sample only from this many of the likeliest tokens, 0 from all; needs a temperature."""
    held_out_ratio: float = 0.05
    """Share of the conversations that is held out from training, as a split of its own."""
    batch_size: int = 32
    """Prompts answered at once."""
    seed: int = 0
    """Decides the order of `stdlib`'s prompts, the sampling, and which conversations are held out."""
    device: str = "auto"
    """Device of the target, such as `cuda:0`; `auto` is the first GPU, else the CPU."""
    precision: Precision = "auto"
    """Precision of the target's weights; `auto` is bfloat16 on GPUs that have it, else float32. Train in the same."""
    cpu_threads: int | None = None
    """Threads that torch uses; by default as many as torch chooses. On a busy CPU, fewer can be faster."""
    template_args: dict[str, str] = field(default_factory=dict)
    """Extra arguments for the target's chat template, such as `enable_thinking false`; train with the same."""

    def __post_init__(self) -> None:
        expand_home(self, "target", "prompts", "output")
        require(self.limit is None or self.limit >= 1, "limit", "at least 1", self.limit)
        require(self.turns >= 0, "turns", "0 (all) or more", self.turns)
        require(self.max_new_tokens >= 2, "max_new_tokens", "at least 2", self.max_new_tokens)
        require(0 <= self.held_out_ratio < 1, "held_out_ratio", "from 0 to below 1", self.held_out_ratio)
        require(self.batch_size >= 1, "batch_size", "at least 1", self.batch_size)
        require(self.seed >= 0, "seed", "0 or more", self.seed)
        require(self.cpu_threads is None or self.cpu_threads >= 1, "cpu_threads", "at least 1", self.cpu_threads)
        without = "left out where temperature is 0, which always takes the likeliest token"
        require(not self.sampling.greedy or self.top_p == 1, "top_p", without, self.top_p)
        require(not self.sampling.greedy or self.top_k == 0, "top_k", without, self.top_k)

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Prompts and target, checked before a weight is loaded."""

    config: PrepareConfig
    output: Path
    prompts: Sequence[Prompt]
    target: Target
    device: torch.device
    precision: torch.dtype
    chat: Chat

    def made_with(self) -> dict[str, Any]:
        """Everything that decides the answers: those of an earlier process are reused only if it is the same."""
        config = self.config
        return {
            "target": config.target,
            "target_stand_in": self.target.note or None,
            "target_weights": weights_fingerprint(config.target),
            "precision": precision_name(self.precision),
            "decoding": "greedy" if config.sampling.greedy else "sampled",
            "temperature": config.temperature,
            "top_p": config.top_p,
            "top_k": config.top_k,
            "template_args": config.template_args,
            "max_new_tokens": config.max_new_tokens,
            "turns": config.turns,
            "seed": config.seed,
            "prompts": config.prompts,
            "limit": config.limit,
            "prompts_fingerprint": fingerprint_prompts(self.prompts),
        }


def prepare(config: PrepareConfig, console: Console | None = None) -> Path:
    """Answer the prompts and write the folder, whole or not at all. Returns its path; raises `ConfigError` for what cannot work.

    When interrupted, it leaves the answers made so far in the working folder, and the same command continues from them.
    """
    console = console or Console(stderr=True)
    plan = _check(config)
    if plan.target.note:
        print_line(console, plan.target.note)
    folder = working_folder(plan.output)
    with open_store(folder, plan.made_with()) as (answers, warnings):
        for warning in warnings:
            print_line(console, warning)
        free_place(config.output, "folder")  # again: only now no other process can make it
        if len(answers):
            print_line(console, f"Found {len(answers):,} answers in {folder}: continuing from there.")
        longest = (plan.target.description.max_positions or sys.maxsize) - config.max_new_tokens
        builder = ConversationBuilder(plan.prompts, answers, plan.chat, turns=config.turns, longest=longest)
        try:
            _answer_prompts(plan, builder, console)
        except KeyboardInterrupt:
            if len(answers):
                print_line(
                    console, f"Stopped: {len(answers):,} answers are kept in {folder}. The same command continues from them."
                )
            raise
        sizes = _write(plan, builder, answers)
        shutil.rmtree(folder, ignore_errors=True)
    train, held_out = sizes["train"], sizes.get("held_out", 0)
    wrote = f"Wrote {train + held_out:,} conversations to {plan.output}: {train:,} to train on, {held_out:,} held out."
    print_line(console, f"{wrote} {_summary(plan, builder).sentences()}".rstrip())
    if config.held_out_ratio and (few := warn_of_few_held_out(held_out)):
        print_line(console, few)
    return plan.output


def _check(config: PrepareConfig) -> _Plan:
    """Check everything that can be checked without weights. Raises `ConfigError`."""
    output = free_place(config.output, "folder")
    prompts = load_prompts(config.prompts, seed=config.seed, limit=config.limit)
    device = find_device(config.device if config.device != "auto" else default_device(), "device")
    target = Target.find(config.target)
    _ = target.description
    target.outline()  # raises for a target that no drafter can be trained for
    return _Plan(
        config=config,
        output=output,
        prompts=prompts,
        target=target,
        device=device,
        precision=choose_precision(config.precision, (device,)),
        chat=Chat(target.tokenizer, template_args=DatasetConfig(template_args=config.template_args).template_values()),
    )


def _answer_prompts(plan: _Plan, builder: ConversationBuilder, console: Console) -> None:
    """Let the target answer every question that has no answer yet."""
    requests = RequestQueue()
    for number in range(len(builder)):
        if request := builder.next_question(number, lambda sentence: print_line(console, sentence)):
            requests.put(request)
    if not requests:
        return
    if plan.config.cpu_threads:
        torch.set_num_threads(plan.config.cpu_threads)
    progress = AnswerProgress(len(builder), len(builder) - len(requests))
    print_line(console, f"Loading target {plan.config.target!r} in {precision_name(plan.precision)} on {plan.device}.")
    steps = _answers(plan, plan.target.load(plan.precision, plan.device), requests)
    with show_progress(console, progress, lambda: progress.status(progress.rate())) as advance:
        for step in steps:
            done = 0
            for answer in step.answers:
                following = builder.add_answer(answer)
                if following:
                    requests.put(following)
                done += following is None
            advance(step.tokens, done)


def _answers(plan: _Plan, model: Any, requests: RequestQueue) -> Iterator[DecodeStep]:
    config, chat = plan.config, plan.chat
    stop_ids = require_stop_token_ids(model, config.target, chat.end_token_id(), chat.eos_id)
    try:
        yield from generate_answers(
            model,
            requests,
            stop_ids=stop_ids,
            max_new_tokens=config.max_new_tokens,
            batch_size=config.batch_size,
            sampling=config.sampling,
            seed=config.seed,
        )
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"batch_size {config.batch_size} does not fit into the memory of {plan.device}: give the same command with a smaller "
            "one, which continues from the answers made so far"
        ) from error


def _write(plan: _Plan, builder: ConversationBuilder, answers: AnswerStore) -> dict[str, int]:
    """Make the output from the answers, whole or not at all. Returns how many conversations each split has."""
    config = plan.config
    try:
        data, counts = collect(builder.conversations(config.keep_unfinished), answers.folder / "conversations.arrow")
        if data is None:
            raise ConfigError(_summary(plan, builder).error(str(answers.folder) if len(answers) else None))
        provenance = _provenance(plan, builder, counts)
        return write_prepared(plan.output, data, provenance, held_out_ratio=config.held_out_ratio, seed=config.seed)
    except OSError as error:
        raise ConfigError(
            f"the conversations cannot be written to {plan.output} ({error.strerror or error}): fix that and give the same "
            f"command again; the answers are kept in {answers.folder}"
        ) from error


def _provenance(plan: _Plan, builder: ConversationBuilder, counts: dict[str, int]) -> dict[str, Any]:
    return {
        "command": _command(plan.config),
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **plan.made_with(),
        **counts,
        "dropped": dict(builder.dropped),
        "cut_short": dict(builder.cut_short),
        "git_commit": git_commit(),
        "versions": {**versions(), "tokenizers": version("tokenizers")},
    }


def _summary(plan: _Plan, builder: ConversationBuilder) -> DropSummary:
    return DropSummary(
        dropped=builder.dropped,
        cut_short=builder.cut_short,
        max_new_tokens=plan.config.max_new_tokens,
        target=plan.config.target,
        positions=plan.target.description.max_positions,
    )


def _command(config: PrepareConfig) -> str:
    """The shortest command with the same options."""
    words = ["python", "-m", "trainer", "prepare"]
    for option in fields(config):
        value = getattr(config, option.name)
        if value in (option.default, {}):
            continue
        flag = option.name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            listed = [word for pair in value.items() for word in pair] if isinstance(value, dict) else [str(value)]
            words += [f"--{flag}", *listed]
    return shlex.join(words)
