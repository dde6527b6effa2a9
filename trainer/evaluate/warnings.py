"""What makes an evaluation tell less than it seems to: facts of the training and of this use in, sentences out."""

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
class Use:
    """What a drafter is evaluated with, in the words of the command's options."""

    target: Target
    precision: str
    template_args: Mapping[str, str]
    prompts: str


def cautions(trained: TrainedDrafter, use: Use) -> Iterator[str]:
    """Each thing in which this use differs from the training, or by which its figures flatter or wrong the drafter."""
    if trained.step == 0:
        yield "The drafter is untrained: it shows how a drafter is served, and not what one is worth."
        return
    differences = [*_other_target(trained, use), *_other_precision(trained, use), *_other_template(trained, use)]
    # If the training differs from this use, its data does too: one sentence is enough.
    yield from differences or _other_data(trained, use)
    if _seen_in_training(trained, use.prompts):
        yield (
            "The prompts are those of the data that the drafter was trained on: how much is accepted of answers that it has seen "
            "says little of new ones."
        )
    elif _answered_in_training(trained, use.prompts):
        yield (
            "The prompts are those that the training data were made from: how much is accepted of answers that the drafter has "
            "seen says little of new ones; --prompts with the data's folder asks what was held out."
        )


def _other_target(trained: TrainedDrafter, use: Use) -> Iterator[str]:
    if trained.target and not same_target(trained.target, use.target.name):
        yield (
            f"The drafter was trained for target {trained.target!r} and drafts for {use.target.name!r} here: what another "
            "model says is harder to guess, even where all sizes fit."
        )


def _other_precision(trained: TrainedDrafter, use: Use) -> Iterator[str]:
    before = trained.training.precision
    if before and before != use.precision:
        yield (
            f"The drafter was trained beside a target in {before} and drafts for one in {use.precision} here: the two say other "
            f"words after a while, so that less may be accepted than with --precision {before}."
        )


def _other_template(trained: TrainedDrafter, use: Use) -> Iterator[str]:
    before, here = _values(trained.training.template_args), _values(use.template_args)
    if trained.training.run and before != here:
        yield (
            f"The drafter was trained with {_spelt(before)} for the target's chat template and is evaluated with {_spelt(here)}: "
            "a target that is asked in another way, as with thoughts or without, answers in another way."
        )


def _other_data(trained: TrainedDrafter, use: Use) -> Iterator[str]:
    """Where the training itself was off: its data were not made as this target is used."""
    told = read_provenance(trained.training.data) if trained.training.data else None
    if told is None:
        return
    for sentence in mismatches(told, target=use.target, precision=use.precision, template_args=use.template_args):
        yield f"Of the training: {sentence}."


def _seen_in_training(trained: TrainedDrafter, prompts: str) -> bool:
    """Whether the prompts are those trained on. Of data with a held-out split, that one is asked, so that they are not."""
    with suppress(ConfigError):
        return load_held_out(prompts) is None and fingerprint(load_conversations(prompts)) == trained.training.data_fingerprint
    return False


def _answered_in_training(trained: TrainedDrafter, prompts: str) -> bool:
    """Whether `prepare` was given the same prompts, as far as it took them, to make the training data."""
    told = read_provenance(trained.training.data) if trained.training.data else None
    known, seed, limit = (told.get(name) for name in ("prompts_fingerprint", "seed", "limit")) if told else (None, None, None)
    with suppress(ConfigError):
        return known is not None and fingerprint_source(prompts, seed=seed or 0, limit=limit) == known
    return False


def _values(template_args: Mapping[str, Any]) -> dict[str, Any]:
    return DatasetConfig(template_args={name: str(word) for name, word in template_args.items()}).template_values()


def _spelt(arguments: Mapping[str, Any]) -> str:
    return "the arguments " + ", ".join(f"{name}={value}" for name, value in arguments.items()) if arguments else "no arguments"
