"""`python -m trainer prepare`: prompts in, a folder of conversations out whose answers are the target's own.

A drafter learns to guess what its target says, so it is trained on what that target says, greedily, in the precision it is used in.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import datasets
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from trainer.chat import Chat, Tokenised
from trainer.config import ConfigError, DatasetConfig, Precision, require
from trainer.conversations import Rejected
from trainer.devices import choose_precision, find_device, name_of
from trainer.folders import whole_folder
from trainer.generate import Answer, answer_prompts, stop_token_ids
from trainer.models import TargetDescription, describe, load_target_model, load_tokenizer
from trainer.prompts import Prompt, load_prompts


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    target: str
    """The model that answers: a folder, a hub id, `demo` or `tiny`."""
    prompts: str
    """What it is asked: `stdlib`, a text file (a prompt a line), a .jsonl file, or a folder made by `datasets.save_to_disk`."""
    output: str
    """Folder to make; it must not exist yet."""
    limit: int | None = None
    """Prompts taken at most; by default all."""
    max_new_tokens: int = 1024
    """Tokens of an answer at most."""
    keep_unfinished: bool = False
    """Keep answers cut off by `max_new_tokens`; training then takes the cut for the end of the answer."""
    held_out_ratio: float = 0.05
    """Share of the conversations that is kept from training, as a split of its own."""
    batch_size: int = 32
    """Prompts answered at once."""
    seed: int = 0
    """Decides the order of `stdlib`'s prompts and which conversations are held out."""
    device: str = "auto"
    """Where the target runs, as in `cuda:0`; `auto` is the first GPU, else the CPU."""
    precision: Precision = "auto"
    """Of the target's weights; `auto` is bfloat16 on GPUs that have it, else float32. Train in the same."""
    cpu_threads: int | None = None
    """Threads that torch uses; by default as many as it likes."""
    template_args: dict[str, str] = field(default_factory=dict)
    """Extra arguments for the target's chat template, as in `enable_thinking false`; train with the same."""

    def __post_init__(self) -> None:
        require(self.limit is None or self.limit >= 1, "limit", "at least 1", self.limit)
        require(self.max_new_tokens >= 2, "max_new_tokens", "at least 2", self.max_new_tokens)
        require(0 <= self.held_out_ratio < 1, "held_out_ratio", "from 0 to below 1", self.held_out_ratio)
        require(self.batch_size >= 1, "batch_size", "at least 1", self.batch_size)
        require(self.seed >= 0, "seed", "0 or more", self.seed)
        require(self.cpu_threads is None or self.cpu_threads >= 1, "cpu_threads", "at least 1", self.cpu_threads)


def prepare(config: PrepareConfig, console: Console | None = None) -> Path:
    """Answer the prompts and write the folder, whole or not at all. Returns its path; raises `ConfigError` for what can't work."""
    console = console or Console(stderr=True)
    output = _free_place(config.output)
    prompts = load_prompts(config.prompts, seed=config.seed, limit=config.limit)
    device = find_device(config.device if config.device != "auto" else _first_device(), "device")
    dtype = choose_precision(config.precision, (device,))
    target = describe(config.target)
    if target.note:
        _say(console, target.note)
    chat = Chat(load_tokenizer(config.target), template_args=DatasetConfig(template_args=config.template_args).template_values())
    if config.cpu_threads:
        torch.set_num_threads(config.cpu_threads)
    dropped: Counter[str] = Counter()
    longest = (target.max_positions or sys.maxsize) - config.max_new_tokens
    asked = _tokenise_prompts(chat, prompts, longest, dropped, console)
    model = load_target_model(config.target, dtype, device)
    rows: list[dict[str, Any]] = []
    with _progress(console, len(asked)) as advance:
        for answers in _answers(model, chat, [ids for _, ids in asked], config):
            rows += _rows(chat, asked, answers, config, dropped)
            advance(answers)
    if not rows:
        raise ConfigError(_nothing_left(config, dropped))
    rows.sort(key=lambda row: row["prompt_number"])
    splits = _split(rows, config)
    with whole_folder(output) as folder:
        _write(folder, splits, _provenance(config, target, dtype, rows, dropped))
    _say(console, f"Wrote {len(rows)} conversations to {output}. {_told(dropped)}")
    return output


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _free_place(output: str) -> Path:
    place = Path(output).expanduser()
    if place.exists():
        raise ConfigError(f"output {output!r} exists already: name a folder that does not, or remove it")
    return place


def _first_device() -> str:
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def _tokenise_prompts(
    chat: Chat, prompts: Sequence[Prompt], longest: int, dropped: Counter[str], console: Console
) -> list[tuple[tuple[int, Prompt], list[int]]]:
    """Each usable prompt with its number and token ids."""
    usable = []
    for number, prompt in enumerate(prompts):
        token_ids = chat.prompt_ids(prompt.messages)
        if not isinstance(token_ids, Rejected) and len(token_ids) > longest:
            token_ids = Rejected("too_long", f"its {len(token_ids)} tokens leave no room for an answer in the target's positions")
        if isinstance(token_ids, Rejected):
            if not dropped[token_ids.reason]:
                _say(console, f"Prompt {number} is left out: {token_ids.detail}. Others like it are only counted.")
            dropped[token_ids.reason] += 1
        else:
            usable.append(((number, prompt), token_ids))
    return usable


def _answers(model: Any, chat: Chat, prompts: Sequence[list[int]], config: PrepareConfig) -> Iterator[list[Answer]]:
    stop_ids = stop_token_ids(model, chat.end_token_id(), chat.eos_id)
    if not stop_ids:
        raise ConfigError(f"target {config.target!r} names no token that ends an answer: set eos_token_id in its config.json")
    return answer_prompts(model, prompts, stop_ids=stop_ids, max_new_tokens=config.max_new_tokens, batch_size=config.batch_size)


def _rows(
    chat: Chat,
    asked: Sequence[tuple[tuple[int, Prompt], list[int]]],
    answers: Sequence[Answer],
    config: PrepareConfig,
    dropped: Counter[str],
) -> Iterator[dict[str, Any]]:
    for answer in answers:
        (number, prompt), prompt_ids = asked[answer.index]
        messages = [*prompt.messages, {"role": "assistant", "content": chat.decode(answer.token_ids)}]
        tokenised = chat.tokenise(messages)
        if not answer.finished and not config.keep_unfinished:
            dropped["unfinished"] += 1
        elif isinstance(tokenised, Rejected) or not tokenised.learnable:
            dropped["nothing_to_learn"] += 1
        else:
            yield {
                "messages": [{"role": message["role"], "content": message["content"]} for message in messages],
                "category": prompt.category,
                "finished": answer.finished,
                "prompt_number": number,
                "answer_tokens": len(answer.token_ids),
                "exact": _reads_back(tokenised, prompt_ids, answer),
            }


def _reads_back(tokenised: Tokenised, prompt_ids: list[int], answer: Answer) -> bool:
    """Whether the tokens that training will see are the very ones that the target read and said."""
    said = [*prompt_ids, *answer.token_ids]
    return bool(tokenised.token_ids[: len(said)].tolist() == said)


def _split(rows: Sequence[dict[str, Any]], config: PrepareConfig) -> datasets.DatasetDict:
    """The splits `train` and `held_out`, drawn by the seed; without a second one where there is nothing to put into it."""
    held = min(round(len(rows) * config.held_out_ratio), len(rows) - 1)
    order = np.random.default_rng([config.seed, len(rows)]).permutation(len(rows))
    shares = {"train": sorted(order[held:]), "held_out": sorted(order[:held])}
    columns = ("messages", "category", "finished")
    return datasets.DatasetDict(
        {
            name: datasets.Dataset.from_list([{column: rows[index][column] for column in columns} for index in share])
            for name, share in shares.items()
            if share
        }
    )


def _write(folder: Path, splits: datasets.DatasetDict, provenance: dict[str, Any]) -> None:
    datasets.disable_progress_bars()
    splits.save_to_disk(str(folder))
    (folder / "provenance.json").write_text(json.dumps(provenance, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _provenance(
    config: PrepareConfig, target: TargetDescription, dtype: torch.dtype, rows: Sequence[dict[str, Any]], dropped: Counter[str]
) -> dict[str, Any]:
    packages = ("torch", "transformers", "tokenizers", "datasets")
    return {
        "command": _command(config),
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "target": target.name,
        "target_stand_in": target.note or None,
        "precision": name_of(dtype),
        "decoding": "greedy",
        "max_new_tokens": config.max_new_tokens,
        "seed": config.seed,
        "conversations": len(rows),
        "answer_tokens": sum(row["answer_tokens"] for row in rows),
        "unfinished": sum(not row["finished"] for row in rows),
        # Tokens that training reads back from the text may differ from those said: most texts can be spelled in several ways.
        "exact": sum(row["exact"] for row in rows),
        "dropped": dict(dropped),
        "versions": {"python": python_version(), **{name: version(name) for name in packages}},
    }


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


def _told(dropped: Counter[str]) -> str:
    total = sum(dropped.values())
    return f"Left out {total}: {', '.join(f'{count} {reason}' for reason, count in dropped.most_common())}." if total else ""


def _nothing_left(config: PrepareConfig, dropped: Counter[str]) -> str:
    way = (
        "raise --max-new-tokens or pass --keep-unfinished"
        if dropped["unfinished"]
        else "look at the prompts and the target's template"
    )
    return f"none of the answers can be used ({', '.join(f'{count} {reason}' for reason, count in dropped.most_common())}): {way}"


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[Sequence[Answer]], None]]:
    """A bar with the rate, or a line per batch where there is no terminal; yields a function to call with each batch of answers."""
    columns = (TextColumn("answering"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    said = 0
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total, rate="")
        began = time.monotonic()

        def advance(answers: Sequence[Answer]) -> None:
            nonlocal said
            said += sum(len(answer.token_ids) for answer in answers)
            rate = f"{said / max(time.monotonic() - began, 1e-6):,.0f} tokens/s"
            bar.update(task, advance=len(answers), rate=rate)
            if not console.is_terminal:
                _say(console, f"{bar.tasks[0].completed:.0f} of {total} prompts answered, {rate}")

        yield advance
