"""What makes an evaluation tell less than it seems to: facts of the training and of this use in, sentences out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.config import ConfigError
from trainer.conversations import fingerprint, load_conversations, load_held_out
from trainer.trained import Trained


@dataclass(frozen=True, kw_only=True)
class Use:
    """What a drafter is evaluated with, in the words of the command's options."""

    target: str
    precision: str
    template_args: Mapping[str, str]
    prompts: str


def cautions(trained: Trained, use: Use) -> Iterator[str]:
    """Each thing in which this use differs from the training, or by which its figures flatter or wrong the drafter."""
    if trained.step == 0:
        yield "The drafter is untrained: it shows how a drafter is served, not what one is worth."
    if trained.target and Path(trained.target).name.lower() != Path(use.target).name.lower():
        yield (
            f"The drafter was trained for target {trained.target!r} and drafts for {use.target!r} here: "
            "what another model says is harder to guess, even where all sizes fit."
        )
    trained_in = trained.facts.precision
    if trained_in and trained_in != use.precision:
        yield (
            f"The drafter was trained beside a target in {trained_in} and drafts for one in {use.precision} here: the two say "
            f"other words after a while, so that less may be accepted than in --precision {trained_in}."
        )
    yield from _other_template(trained, use)
    if _seen_in_training(trained, use.prompts):
        yield (
            "The prompts are those of the data that the drafter was trained on: what is accepted of answers "
            "that it has seen says little of new ones."
        )


def _other_template(trained: Trained, use: Use) -> Iterator[str]:
    told, here = trained.facts.template_args, dict(use.template_args)
    if trained.facts.run and told != here:
        yield (
            f"The drafter was trained with {_spelt(told)} for the target's chat template, and {_spelt(here)} here: "
            "a target that is asked in another way, as for thoughts, answers in another way."
        )


def _spelt(arguments: Mapping[str, object]) -> str:
    return " ".join(f"{name} {value}" for name, value in arguments.items()) or "no arguments"


def _seen_in_training(trained: Trained, prompts: str) -> bool:
    """Whether the prompts are a training split: a saved dataset's that holds no other is read instead."""
    with suppress(ConfigError):
        return load_held_out(prompts) is None and fingerprint(load_conversations(prompts)) == trained.facts.data_fingerprint
    return False
