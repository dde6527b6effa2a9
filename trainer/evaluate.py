"""`python -m trainer evaluate`: real speculative decoding with a trained drafter, held against the target by itself.

A drafter and prompts in; acceptance length, rates with and without the drafter and losslessness out (docs/evaluate.md).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import PreTrainedModel

from trainer.config import ConfigError
from trainer.devices import name_of
from trainer.evaluation_plan import EvaluateOptions, Evaluation, check
from trainer.evaluation_report import Report, report
from trainer.generate import stop_token_ids
from trainer.models import load_target_model
from trainer.side_by_side import Answered, Terms, answer_all
from trainer.speculate import Speculator, acceptance_length, seat
from trainer.wording import number

# A table that is piped somewhere has no terminal to take its width from.
_PIPED_WIDTH = 120
_LINE_SECONDS = 10.0


def evaluate(options: EvaluateOptions, console: Console | None = None, out: Console | None = None) -> bool:
    """Evaluate and print: progress and warnings to `console`, by default stderr, the result to `out`, by default stdout.

    Returns False where an answer parts from the target's own and rounding does not explain it. Raises `ConfigError`.
    """
    console = console or Console(stderr=True)
    out = out or Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    output = _free_file(options.output)
    evaluation = check(options)
    for sentence in evaluation.warnings:
        _say(console, f"Warning: {sentence}")
    if options.cpu_threads:
        torch.set_num_threads(options.cpu_threads)
    found = report(_answer(evaluation, console), evaluation.trained.drafter.block_size, compared=evaluation.compared)
    told = _strict_json(as_json(evaluation, found)) + "\n" if output or options.json else ""
    if output:
        _write(output, told)
    if options.json:
        out.file.write(told)
    else:
        show(evaluation, found, out)
    if found.bugs:
        _say(console, f"Warning: {verdict(evaluation, found)}")
    return not found.bugs


def _answer(evaluation: Evaluation, console: Console) -> list[Answered]:
    """Load the target and answer every prompt, with the drafter and, if asked for, without."""
    model = load_target_model(evaluation.target, evaluation.dtype, evaluation.device)
    terms = _terms(evaluation, model)
    drafter = seat(evaluation.trained.drafter, model)
    answers: list[Answered] = []
    with Speculator(model, drafter) as speculator, _progress(console, len(evaluation.prompts)) as advance:
        for answered in answer_all(model, speculator, evaluation.prompts, terms):
            answers.append(answered)
            advance(answers)
    return answers


def _terms(evaluation: Evaluation, model: PreTrainedModel) -> Terms:
    stop_ids = stop_token_ids(model, evaluation.chat.end_token_id(), evaluation.chat.eos_id)
    if not stop_ids:
        raise ConfigError(f"target {evaluation.target!r} names no token that ends an answer: set eos_token_id in its config.json")
    options = evaluation.options
    return Terms(
        max_new_tokens=options.max_new_tokens,
        stop_ids=stop_ids,
        sampling=options.sampling,
        seed=options.seed,
        baseline=options.baseline,
    )


def as_json(evaluation: Evaluation, found: Report) -> dict[str, Any]:
    """Everything that is told of an evaluation; docs/evaluate.md says what each field means."""
    options = evaluation.options
    return {
        "checkpoint": str(evaluation.trained.path),
        "step": evaluation.trained.step,
        "target": evaluation.target,
        "block_size": evaluation.trained.drafter.block_size,
        **asdict(found.total),
        "prompts_left_out": dict(evaluation.left_out),
        "partings": found.partings(),
        "warnings": evaluation.warnings,
        "by_category": {name: asdict(figures) for name, figures in found.by_category.items()},
        "by_prompt": found.by_prompt(),
        "settings": {
            "prompts": options.prompts,
            "max_new_tokens": options.max_new_tokens,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "top_k": options.top_k,
            "seed": options.seed,
            "device": str(evaluation.device),
            "precision": name_of(evaluation.dtype),
            "template_args": evaluation.template_args,
            "cpu_threads": torch.get_num_threads(),
        },
        "versions": {name: version(name) for name in ("torch", "transformers")},
    }


def show(evaluation: Evaluation, found: Report, out: Console) -> None:
    """The table for people, and what it means."""
    trained, sampling = evaluation.trained, evaluation.options.sampling
    how = "greedy" if sampling.greedy else f"sampled at temperature {sampling.temperature:g}"
    step = "" if trained.step is None else f", step {trained.step:,}"
    where = f"{how}, {name_of(evaluation.dtype)} on {evaluation.device}"
    out.print(found.table(f"{evaluation.options.checkpoint}{step}, drafting for {evaluation.target} ({where})"))
    for sentence in (*found.drafting(), verdict(evaluation, found)):
        _say(out, sentence)
    if left_out := evaluation.left_out:
        reasons = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in left_out.most_common())
        _say(out, f"Prompts left out: {reasons}.")


def verdict(evaluation: Evaluation, found: Report) -> str:
    """Whether drafting changed a text, in one sentence."""
    if not evaluation.options.sampling.greedy:
        return "Sampled texts differ by chance and are not compared; greedy ones (--temperature 0) would be."
    if not evaluation.options.baseline:
        return "Losslessness and speed-up are not known: the target was not asked alone (--no-baseline)."
    return found.lossless_sentence()


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _free_file(output: str | None) -> Path | None:
    if output is None:
        return None
    place = Path(output).expanduser()
    if place.exists() or place.is_symlink():
        raise ConfigError(f"output {output!r} exists already: name a file that does not, or remove it")
    if not place.parent.is_dir():
        raise ConfigError(f"output {output!r} lies in a folder that does not exist: make it first")
    return place


def _write(place: Path, text: str) -> None:
    unfinished = place.with_name(f".{place.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(place)


def _strict_json(facts: dict[str, Any]) -> str:
    return json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False)


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[Sequence[Answered]], None]]:
    """A bar with the acceptance so far, or a line now and then where there is no terminal; yields what to call with the answers."""
    columns = (TextColumn("answering"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn())
    told = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        row = bar.add_task("", total=total, note="")

        def advance(answers: Sequence[Answered]) -> None:
            nonlocal told
            length = acceptance_length([one for answer in answers for one in answer.drafted.rounds])
            note = f"acceptance length {number(length, '.2f')}"
            bar.update(row, completed=len(answers), note=note)
            if not console.is_terminal and time.monotonic() - told >= _LINE_SECONDS:
                told = time.monotonic()
                _say(console, f"{len(answers)} of {total} prompts answered, {note}")

        yield advance
