"""A trained drafter by name: a run, a checkpoint or an exported folder in, its weights and where they come from out.

Weights are compared with the config by name, number and shape, since loaders leave out in silence what they do not know.
"""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from trainer.config import DrafterConfig
from trainer.drafter.checkpoint import MANIFEST, BrokenCheckpointError, Checkpoint, newest_checkpoint, read_checkpoint
from trainer.drafter.model import Drafter, drafter_architecture
from trainer.errors import ConfigError
from trainer.formats import zlab
from trainer.record.reader import newest_events
from trainer.target.load import Target

PROVENANCE = "provenance.json"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """How a drafter was trained. None and empty where nothing tells."""

    run: str | None = None
    command: str | None = None
    git_commit: str | None = None
    data: str | None = None
    """Folder of the conversations, as the run was given it."""
    data_fingerprint: str | None = None
    conversations: int | None = None
    precision: str | None = None
    """Of the target and of the drafter's products: `float32` or `bfloat16`."""
    template_args: dict[str, Any] = field(default_factory=dict)
    """For the target's chat template, as flags spell them."""
    versions: dict[str, str] = field(default_factory=dict)
    began_with: dict[str, Any] | None = None
    """The drafter that a warm start took over: its `name`, `path`, `step`, `target` and the `weights`' digest."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The newest acceptance that real decoding of held-out prompts showed, as the run recorded it."""

    step: int
    measured_length: float
    """Tokens kept per round, the bonus token included."""
    prompts: int | None = None


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A drafter on the CPU, its weights as stored, and what is known of it."""

    drafter: Drafter
    path: Path
    """The checkpoint or the folder that was read."""
    target: str | None
    """The target's name as the run was given it; None where the folder does not say."""
    step: int | None
    """Optimizer steps that it was trained for; 0 is untrained, None is not known."""
    facts: TrainingFacts
    measured: Measured | None = None

    @property
    def config(self) -> Qwen3Config:
        return self.drafter.config


def load_trained(name: str, runs: Path | str = "runs") -> Trained:
    """The drafter called `name`: a run by id or folder, a checkpoint's folder, or an exported one (z-lab's format).

    Of a run it is the newest whole checkpoint, that which `latest` names first. Raises `ConfigError`.
    """
    for folder in (Path(name).expanduser(), Path(runs) / name):
        if (folder / "run.json").is_file():
            return _from_checkpoint(_newest(folder))
        if (folder / MANIFEST).is_file() or (folder / "state.json").is_file():
            return _from_checkpoint(_whole(folder))
        if (folder / zlab.CONFIG).is_file():
            return _from_export(folder)
    found = "a folder without run.json, manifest.json or config.json" if Path(name).expanduser().is_dir() else "no folder"
    known = sorted((path.parent.name for path in Path(runs).glob("*/run.json")), reverse=True)
    have = f"runs there: {', '.join(known[:5])}" if known else "there are none there"
    raise ConfigError(f"{name!r} is {found} and no run in {runs} ({have}): give a run, a checkpoint or an exported drafter")


def drafter_with(config: Qwen3Config, weights: Mapping[str, torch.Tensor], place: str | Path) -> Drafter:
    """A drafter that holds these very tensors. Raises `ConfigError` that names every one too few, too many or of another shape."""
    with torch.device("meta"):
        drafter = Drafter(config)
    drafter.rotary = Qwen3RotaryEmbedding(config)  # frequencies, which are no weights and so not stored
    wanted = {name: list(tensor.shape) for name, tensor in drafter.state_dict().items()}
    if wrong := list(_differences(wanted, weights)):
        raise ConfigError(f"the weights in {place} are not those of its config: {'; '.join(wrong)}")
    drafter.load_state_dict(weights, assign=True)
    return drafter


def _differences(wanted: Mapping[str, list[int]], found: Mapping[str, torch.Tensor]) -> Iterator[str]:
    for name, shape in wanted.items():
        if name not in found:
            yield f"{name} is missing"
        elif list(found[name].shape) != shape:
            yield f"{name} is {list(found[name].shape)} instead of {shape}"
        elif not found[name].is_floating_point():
            yield f"{name} holds {found[name].dtype} and no fractions"
    yield from (f"{name} is none of them" for name in found if name not in wanted)


def _newest(run: Path) -> Checkpoint:
    checkpoint, refused = newest_checkpoint(run / "checkpoints", with_optimizer=False)
    if checkpoint is None:
        broken = f" ({'; '.join(refused)})" if refused else ""
        raise ConfigError(f"run {run.name!r} has no whole checkpoint{broken}: let it train until it writes one")
    for sentence in refused:
        log.warning("%s; step %s is taken instead.", sentence, f"{checkpoint.train_state.step:,}")
    return checkpoint


def _whole(folder: Path) -> Checkpoint:
    try:
        return read_checkpoint(folder, with_optimizer=False)
    except BrokenCheckpointError as error:
        raise ConfigError(f"{error}: give another one, or the run, whose newest whole one is taken then") from error


def _from_checkpoint(checkpoint: Checkpoint) -> Trained:
    identity, config = checkpoint.metadata.get("identity", {}), checkpoint.metadata.get("config", {})
    run = checkpoint.metadata.get("run") or _run_json(checkpoint.path)
    data = run.get("data") or {}
    return Trained(
        drafter=drafter_with(_architecture(checkpoint), checkpoint.weights, checkpoint.path),
        path=checkpoint.path,
        target=identity.get("target"),
        step=checkpoint.train_state.step,
        facts=TrainingFacts(
            run=run.get("id"),
            command=shlex.join(run["command"]) if run.get("command") else None,
            git_commit=run.get("git_commit"),
            data=config.get("data"),
            data_fingerprint=identity.get("data"),
            conversations=data.get("conversations"),
            precision=identity.get("precision"),
            template_args=dict(identity.get("template_args") or {}),
            versions=dict(run.get("versions") or {}),
            began_with=run.get("from"),
        ),
        measured=_newest_measured(checkpoint.path.parent.parent, checkpoint.train_state.step),
    )


def _architecture(checkpoint: Checkpoint) -> Qwen3Config:
    """The drafter's config out of the checkpoint; older ones do not hold it, so that it is made from the target's again."""
    facts = checkpoint.metadata
    try:
        if "drafter" in facts:
            return Qwen3Config.from_dict(facts["drafter"])
        identity, knobs = facts["identity"], dict(facts["config"]["drafter"])
        knobs["target_layer_ids"] = tuple(identity["layer_ids"])
        text = Target.find(identity["target"]).text_config
        return drafter_architecture(text, DrafterConfig(**knobs), knobs["target_layer_ids"], identity["mask_token_id"])
    except ConfigError as error:
        way = "make its target readable here, or train on with it for a step"
        raise ConfigError(
            f"checkpoint {checkpoint.path} does not say how its drafter is built, and its target does not either ({error}): {way}"
        ) from error
    except Exception as error:  # whatever a config of other keys and types makes of transformers' own checks
        raise ConfigError(f"checkpoint {checkpoint.path} does not say how its drafter is built: {error}") from error


def _from_export(folder: Path) -> Trained:
    drafter = drafter_with(zlab.read_architecture(folder), zlab.read_weights(folder), folder)
    told = zlab.read_json(folder / PROVENANCE) if (folder / PROVENANCE).is_file() else {}
    try:
        facts, measured = TrainingFacts(**told.get("facts") or {}), told.get("measured")
        return Trained(
            drafter=drafter,
            path=folder,
            target=told.get("target"),
            step=told.get("step"),
            facts=facts,
            measured=Measured(**measured) if measured else None,
        )
    except TypeError as error:
        raise ConfigError(f"{folder / PROVENANCE} is not what export writes ({error}): remove it to load the drafter") from error


def provenance(trained: Trained) -> dict[str, Any]:
    """What an exported folder says in `provenance.json`, and `load_trained` reads from it."""
    return {
        "target": trained.target,
        "step": trained.step,
        "facts": dataclasses.asdict(trained.facts),
        "measured": dataclasses.asdict(trained.measured) if trained.measured else None,
    }


def _run_json(checkpoint: Path) -> dict[str, Any]:
    """What the run around an older checkpoint says of itself; nothing where it was taken out of its run."""
    file = checkpoint.parent.parent / "run.json"
    return zlab.read_json(file) if file.is_file() else {}


def _newest_measured(run: Path, step: int) -> Measured | None:
    """The last measurement in a run's events that is not of a later step than the checkpoint's."""
    for event in newest_events(run, "evaluated", limit=None):
        at, length = event.get("step", 0), event.get("measured_length")
        if at <= step and isinstance(length, int | float):
            return Measured(step=at, measured_length=length, prompts=event.get("prompts"))
    return None
