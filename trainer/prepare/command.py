"""`python -m trainer prepare`: prompts in, a folder of conversations out whose answers are the target's own.

A drafter learns to guess what its target says, so it is trained on what that target says, in the precision that it is used in.
Answers are kept in a working folder as they are made; the output appears whole when the last one is there.
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
from trainer.files import free_place
from trainer.prepare.answer_store import Answers, open_answers, working_folder
from trainer.prepare.output import collect, write_prepared
from trainer.prepare.summary import LeftOut, few_held_out
from trainer.prepare.turns import Dialogues
from trainer.record.environment import git_commit, versions
from trainer.target.load import Target
from trainer.target.provenance import weights_fingerprint


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    target: str
    """The model that answers: a folder, a hub id, `demo` or `tiny`."""
    prompts: str
    """What it is asked: `stdlib`, a text file (a prompt a line), a .jsonl file, or a folder made by `datasets.save_to_disk`."""
    output: str
    """Folder to make; it must not exist yet. Until it does, the answers are kept beside it, in a folder named OUTPUT.partial."""
    limit: int | None = None
    """Prompts taken at most; by default all."""
    turns: int = 1
    """Messages of the user that are asked at most, of prompts that are conversations; 0 asks all, each behind the target's own
    answers to those before."""
    max_new_tokens: int = 1024
    """Tokens of an answer at most."""
    keep_unfinished: bool = False
    """Keep answers cut off by `max_new_tokens`; training then takes the cut for the end of the answer."""
    temperature: float = 0.0
    """0 takes the likeliest token each time; else the chances are those of the target at this temperature."""
    top_p: float = 1.0
    """Draw from the likeliest tokens that make up this share; needs a temperature."""
    top_k: int = 0
    """Draw from so many of the likeliest tokens, 0 from all; needs a temperature."""
    held_out_ratio: float = 0.05
    """Share of the conversations that is kept from training, as a split of its own."""
    batch_size: int = 32
    """Prompts answered at once."""
    seed: int = 0
    """Decides the order of `stdlib`'s prompts, what is drawn, and which conversations are held out."""
    device: str = "auto"
    """Where the target runs, as in `cuda:0`; `auto` is the first GPU, else the CPU."""
    precision: Precision = "auto"
    """Of the target's weights; `auto` is bfloat16 on GPUs that have it, else float32. Train in the same."""
    cpu_threads: int | None = None
    """Threads that torch uses; by default as many as it likes. On a CPU that others use too, fewer can be faster."""
    template_args: dict[str, str] = field(default_factory=dict)
    """Extra arguments for the target's chat template, as in `enable_thinking false`; train with the same."""

    def __post_init__(self) -> None:
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
    """What is asked and who answers, all of it checked before a weight is loaded."""

    config: PrepareConfig
    output: Path
    prompts: Sequence[Prompt]
    target: Target
    device: torch.device
    precision: torch.dtype
    chat: Chat

    def made_with(self) -> dict[str, Any]:
        """All that decides the answers: those of an earlier process are taken over only where it is the same."""
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
    """Answer the prompts and write the folder, whole or not at all. Returns its path; raises `ConfigError` for what can't work.

    Interrupted, it leaves the answers that are there in the working folder, and the same command goes on from them.
    """
    console = console or Console(stderr=True)
    plan = _check(config)
    if plan.target.note:
        print_line(console, plan.target.note)
    folder = working_folder(plan.output)
    with open_answers(folder, plan.made_with()) as (answers, warnings):
        for warning in warnings:
            print_line(console, warning)
        free_place(config.output, "folder")  # once more: only now can no other process make it
        if len(answers):
            print_line(console, f"Found {len(answers):,} answers in {folder}: going on from there.")
        longest = (plan.target.description.max_positions or sys.maxsize) - config.max_new_tokens
        dialogues = Dialogues(plan.prompts, answers, plan.chat, turns=config.turns, longest=longest)
        try:
            _ask(plan, dialogues, console)
        except KeyboardInterrupt:
            if len(answers):
                print_line(console, f"Stopped: {len(answers):,} answers are kept in {folder}. The same command goes on from them.")
            raise
        sizes = _write(plan, dialogues, answers)
        shutil.rmtree(folder, ignore_errors=True)
    train, held_out = sizes["train"], sizes.get("held_out", 0)
    wrote = f"Wrote {train + held_out:,} conversations to {plan.output}: {train:,} to train on, {held_out:,} held out."
    print_line(console, f"{wrote} {_left_out(plan, dialogues).sentences()}".rstrip())
    if config.held_out_ratio and (few := few_held_out(held_out)):
        print_line(console, few)
    return plan.output


def _check(config: PrepareConfig) -> _Plan:
    """Look at everything the cheap way. Raises `ConfigError`."""
    output = free_place(config.output, "folder")
    prompts = load_prompts(config.prompts, seed=config.seed, limit=config.limit)
    device = find_device(config.device if config.device != "auto" else default_device(), "device")
    target = Target.find(config.target)
    _ = target.description
    target.outline()  # answers of a target that cannot be trained for are of no use
    return _Plan(
        config=config,
        output=output,
        prompts=prompts,
        target=target,
        device=device,
        precision=choose_precision(config.precision, (device,)),
        chat=Chat(target.tokenizer, template_args=DatasetConfig(template_args=config.template_args).template_values()),
    )


def _ask(plan: _Plan, dialogues: Dialogues, console: Console) -> None:
    """Ask the target everything that has no answer yet."""
    requests = RequestQueue()
    for number in range(len(dialogues)):
        if request := dialogues.next_question(number, lambda sentence: print_line(console, sentence)):
            requests.put(request)
    if not requests:
        return
    if plan.config.cpu_threads:
        torch.set_num_threads(plan.config.cpu_threads)
    progress = AnswerProgress(len(dialogues), len(dialogues) - len(requests))
    print_line(console, f"Loading target {plan.config.target!r} in {precision_name(plan.precision)} on {plan.device}.")
    steps = _answers(plan, plan.target.load(plan.precision, plan.device), requests)
    with show_progress(console, progress, lambda: progress.status(progress.rate())) as advance:
        for step in steps:
            done = 0
            for answer in step.answers:
                following = dialogues.hear(answer)
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
            "one, which goes on from the answers that are there"
        ) from error


def _write(plan: _Plan, dialogues: Dialogues, answers: Answers) -> dict[str, int]:
    """Make the output of the answers, whole or not at all. Returns how many conversations each split has."""
    config = plan.config
    try:
        data, counts = collect(dialogues.conversations(config.keep_unfinished), answers.folder / "conversations.arrow")
        if data is None:
            raise ConfigError(_left_out(plan, dialogues).nothing(str(answers.folder) if len(answers) else None))
        told = _provenance(plan, dialogues, counts)
        return write_prepared(plan.output, data, told, held_out_ratio=config.held_out_ratio, seed=config.seed)
    except OSError as error:
        raise ConfigError(
            f"the conversations cannot be written to {plan.output} ({error.strerror or error}): mend that and give the same "
            f"command again; the answers are kept in {answers.folder}"
        ) from error


def _provenance(plan: _Plan, dialogues: Dialogues, counts: dict[str, int]) -> dict[str, Any]:
    return {
        "command": _command(plan.config),
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **plan.made_with(),
        **counts,
        "dropped": dict(dialogues.dropped),
        "cut_short": dict(dialogues.cut_short),
        "git_commit": git_commit(),
        "versions": {**versions(), "tokenizers": version("tokenizers")},
    }


def _left_out(plan: _Plan, dialogues: Dialogues) -> LeftOut:
    return LeftOut(
        dropped=dialogues.dropped,
        cut_short=dialogues.cut_short,
        max_new_tokens=plan.config.max_new_tokens,
        target=plan.config.target,
        positions=plan.target.description.max_positions,
    )


def _command(config: PrepareConfig) -> str:
    """The shortest command that asks for the same."""
    words = ["python", "-m", "trainer", "prepare"]
    for knob in fields(config):
        value = getattr(config, knob.name)
        if value in (knob.default, {}):
            continue
        flag = knob.name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            listed = [word for pair in value.items() for word in pair] if isinstance(value, dict) else [str(value)]
            words += [f"--{flag}", *listed]
    return shlex.join(words)
