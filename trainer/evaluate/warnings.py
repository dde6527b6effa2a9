"""Warns where an evaluation does not match the drafter's training, or where its result would mislead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trainer.config import DatasetConfig
from trainer.data.conversations import fingerprint, load_conversations, load_held_out
from trainer.data.prompts import fingerprint_source
from trainer.errors import ConfigError
from trainer.formats.load import TrainedDrafter
from trainer.target.load import Target
from trainer.target.provenance import mismatches, read_provenance, same_target


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """What a drafter is evaluated with, as the command's options name it."""

    target: Target
    precision: str
    template_args: Mapping[str, str]
    prompts: str


def evaluation_warnings(trained: TrainedDrafter, settings: EvaluationSettings) -> Iterator[str]:
    """A sentence for each difference from the training, and for each reason why the result is too good or too bad."""
    if trained.step == 0:
        yield "The drafter is untrained: it shows how a drafter is served, not what a trained one achieves."
        return
    differences = [*_other_target(trained, settings), *_other_precision(trained, settings), *_other_template(trained, settings)]
    # If the training already differs, so does its data: one sentence is enough.
    yield from differences or _other_data(trained, settings)
    if _seen_in_training(trained, settings.prompts):
        yield (
            "The prompts are those of the data that the drafter was trained on: acceptance on answers that it has seen says little "
            "about new ones."
        )
    elif _answered_in_training(trained, settings.prompts):
        yield (
            "The prompts are those that the training data were made from: acceptance on answers that the drafter has seen says "
            "little about new ones; --prompts with the data's folder takes those that were held out."
        )


def _other_target(trained: TrainedDrafter, settings: EvaluationSettings) -> Iterator[str]:
    if trained.target and not same_target(trained.target, settings.target.name):
        yield (
            f"The drafter was trained for target {trained.target!r} and drafts for {settings.target.name!r} here: another "
            "model's text is harder to predict, even where all sizes fit."
        )


def _other_precision(trained: TrainedDrafter, settings: EvaluationSettings) -> Iterator[str]:
    before = trained.training.precision
    if before and before != settings.precision:
        yield (
            f"The drafter was trained beside a target in {before} and drafts for one in {settings.precision} here: their texts "
            f"diverge after a while, so less may be accepted than with --precision {before}."
        )


def _other_template(trained: TrainedDrafter, settings: EvaluationSettings) -> Iterator[str]:
    before, now = _values(trained.training.template_args), _values(settings.template_args)
    if trained.training.run and before != now:
        yield (
            f"The drafter was trained with {_listed(before)} for the target's chat template and is evaluated with {_listed(now)}: "
            "a target that is prompted differently, for example with thinking on, answers differently."
        )


def _other_data(trained: TrainedDrafter, settings: EvaluationSettings) -> Iterator[str]:
    """Where the training data were not made by this target as it is used here."""
    provenance = read_provenance(trained.training.data) if trained.training.data else None
    if provenance is None:
        return
    for sentence in mismatches(
        provenance, target=settings.target, precision=settings.precision, template_args=settings.template_args
    ):
        yield f"Of the training: {sentence}."


def _seen_in_training(trained: TrainedDrafter, prompts: str) -> bool:
    """Whether the prompts are the training data. Of data with a held-out split, evaluation uses that one, so they are not."""
    with suppress(ConfigError):
        return load_held_out(prompts) is None and fingerprint(load_conversations(prompts)) == trained.training.data_fingerprint
    return False


def _answered_in_training(trained: TrainedDrafter, prompts: str) -> bool:
    """Whether `prepare` made the training data from the same prompts, up to its `--limit`."""
    made = read_provenance(trained.training.data) if trained.training.data else None
    known, seed, limit = (made.get(name) for name in ("prompts_fingerprint", "seed", "limit")) if made else (None, None, None)
    with suppress(ConfigError):
        return known is not None and fingerprint_source(prompts, seed=seed or 0, limit=limit) == known
    return False


def _values(template_args: Mapping[str, Any]) -> dict[str, Any]:
    return DatasetConfig(template_args={name: str(word) for name, word in template_args.items()}).template_values()


def _listed(arguments: Mapping[str, Any]) -> str:
    return "the arguments " + ", ".join(f"{name}={value}" for name, value in arguments.items()) if arguments else "no arguments"
