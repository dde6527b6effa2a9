"""`python -m trainer evaluate`: real speculative decoding with a trained drafter, compared with the target alone.

It reports acceptance length, rates with and without the drafter, and whether decoding is lossless (docs/evaluate.md).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedModel

from trainer.decoding.acceptance_length import acceptance_length
from trainer.decoding.generate import require_stop_token_ids
from trainer.decoding.progress import AnswerProgress, print_line, show_progress
from trainer.decoding.speculative import SpeculativeDecoder, prepare_for_decoding
from trainer.devices import precision_name
from trainer.errors import ConfigError
from trainer.evaluate.compare import AnsweredPrompt, DecodingSettings, answer_prompts
from trainer.evaluate.plan import EvaluateOptions, EvaluationPlan, check
from trainer.evaluate.report import Report, make_report
from trainer.files import free_place, write_atomic
from trainer.formatting import number

# Width of the table where stdout is no terminal.
_PIPED_WIDTH = 120


def evaluate(options: EvaluateOptions, console: Console | None = None, out: Console | None = None) -> bool:
    """Evaluate and print: progress and warnings to `console`, by default stderr, the result to `out`, by default stdout.

    Returns False if an answer diverges from the target's own and rounding does not explain it. Raises `ConfigError`; if the output
    file cannot be written, only after the result has been printed.
    """
    console = console or Console(stderr=True)
    out = out or Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    output = _free_file(options.output)
    evaluation = check(options)
    for sentence in evaluation.warnings:
        print_line(console, f"Warning: {sentence}")
    if options.cpu_threads:
        torch.set_num_threads(options.cpu_threads)
    found = make_report(_answer(evaluation, console), evaluation.trained.drafter.block_size, compared=evaluation.compared)
    told = _strict_json(as_json(evaluation, found)) + "\n" if output or options.json else ""
    if options.json:
        out.file.write(told)
    else:
        show(evaluation, found, out)
    if found.unexplained:
        print_line(console, f"Warning: {verdict(evaluation, found)}")
    if output:
        _write(output, told)
    return not found.unexplained


def _answer(evaluation: EvaluationPlan, console: Console) -> list[AnsweredPrompt]:
    """Load the target and answer every prompt with the drafter and, unless `--no-baseline`, without."""
    print_line(console, f"Loading target {evaluation.target.name!r} in {precision_name(evaluation.dtype)} on {evaluation.device}.")
    model = evaluation.target.load(evaluation.dtype, evaluation.device)
    settings = _decoding_settings(evaluation, model)
    drafter = prepare_for_decoding(evaluation.trained.drafter, model)
    answers: list[AnsweredPrompt] = []
    progress = AnswerProgress(len(evaluation.prompts), 0)

    def status() -> str:
        length = acceptance_length([one for answer in answers for one in answer.drafted.rounds])
        return progress.status(f"acceptance length {number(length, '.2f')}")

    with SpeculativeDecoder(model, drafter) as speculator, show_progress(console, progress, status) as advance:
        for answered in answer_prompts(model, speculator, evaluation.prompts, settings):
            answers.append(answered)
            advance(len(answered.drafted.token_ids), 1)
    return answers


def _decoding_settings(evaluation: EvaluationPlan, model: PreTrainedModel) -> DecodingSettings:
    options, chat = evaluation.options, evaluation.chat
    return DecodingSettings(
        max_new_tokens=options.max_new_tokens,
        stop_ids=require_stop_token_ids(model, evaluation.target.name, chat.end_token_id(), chat.eos_id),
        sampling=options.sampling,
        seed=options.seed,
        baseline=options.baseline,
    )


def as_json(evaluation: EvaluationPlan, found: Report) -> dict[str, Any]:
    """Everything an evaluation reports; docs/evaluate.md explains each field."""
    options = evaluation.options
    return {
        "checkpoint": str(evaluation.trained.path),
        "step": evaluation.trained.step,
        "target": evaluation.target.name,
        "block_size": evaluation.trained.drafter.block_size,
        **asdict(found.total),
        "prompts_left_out": dict(evaluation.left_out),
        "divergences": found.divergences(),
        "warnings": evaluation.warnings,
        "by_category": {name: asdict(figures) for name, figures in found.by_category.items()},
        "by_prompt": found.by_prompt(),
        "settings": {
            "prompts": options.prompts,
            "split": evaluation.split,
            "max_new_tokens": options.max_new_tokens,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "top_k": options.top_k,
            "seed": options.seed,
            "device": str(evaluation.device),
            "precision": precision_name(evaluation.dtype),
            "template_args": evaluation.template_args,
            "cpu_threads": torch.get_num_threads(),
        },
        "versions": {name: version(name) for name in ("torch", "transformers")},
    }


def show(evaluation: EvaluationPlan, found: Report, out: Console) -> None:
    """Print the table for people, with sentences that explain it."""
    trained, sampling = evaluation.trained, evaluation.options.sampling
    how = "greedy" if sampling.greedy else f"sampled at temperature {sampling.temperature:g}"
    step = "" if trained.step is None else f", step {trained.step:,}"
    where = f"{how}, {precision_name(evaluation.dtype)} on {evaluation.device}"
    out.print(found.table(f"{evaluation.options.checkpoint}{step}, drafting for {evaluation.target.name} ({where})"))
    if evaluation.split:
        print_line(
            out, f"Prompts: the split {evaluation.split!r} of {evaluation.options.prompts!r}, which is held out from training."
        )
    for sentence in (*found.drafting(), verdict(evaluation, found)):
        print_line(out, sentence)
    if left_out := evaluation.left_out:
        reasons = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in left_out.most_common())
        print_line(out, f"Prompts left out: {reasons}.")


def verdict(evaluation: EvaluationPlan, found: Report) -> str:
    """One sentence that says whether drafting changed a text."""
    if not evaluation.options.sampling.greedy:
        return "Sampled texts differ by chance and are not compared; greedy ones (--temperature 0) are."
    if not evaluation.options.baseline:
        return "Losslessness and speed-up are unknown: the target did not answer alone (--no-baseline)."
    return found.lossless_sentence()


def _free_file(output: str | None) -> Path | None:
    if output is None:
        return None
    place = free_place(output, "file")
    if not place.parent.is_dir():
        raise ConfigError(f"output {output!r} is in a folder that does not exist: make it first")
    return place


def _write(place: Path, text: str) -> None:
    """Make the file, whole or not at all, and never over another one."""
    try:
        write_atomic(place, text, durable=False, exclusive=True)
    except OSError as error:
        way = "the result is printed above but in no file; name another file next time"
        raise ConfigError(f"output {str(place)!r} cannot be written ({error.strerror or error}): {way}") from error


def _strict_json(facts: dict[str, Any]) -> str:
    return json.dumps(_finite(facts), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    """The same value with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
