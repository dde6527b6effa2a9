"""Loads a trained drafter by name (a run, a checkpoint or an exported folder), with what is known of its training.

Weights are compared with the config by name, number and shape: most loaders silently skip tensors that they do not know.
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
class TrainingDetails:
    """How a drafter was trained. None or empty where it is not recorded."""

    run: str | None = None
    command: str | None = None
    git_commit: str | None = None
    data: str | None = None
    """`--data` of the run."""
    data_fingerprint: str | None = None
    conversations: int | None = None
    precision: str | None = None
    """Precision of the target and of the drafter's products: `float32` or `bfloat16`."""
    template_args: dict[str, Any] = field(default_factory=dict)
    """`--dataset.template-args` of the run."""
    versions: dict[str, str] = field(default_factory=dict)
    began_with: dict[str, Any] | None = None
    """The drafter that a warm start began with: its `name`, `path`, `step`, `target` and the digest of its `weights`."""


@dataclass(frozen=True, kw_only=True)
class MeasuredAcceptance:
    """The newest acceptance length that the run recorded, by real decoding of held-out prompts."""

    step: int
    measured_length: float
    """Tokens kept per round, the bonus token included."""
    prompts: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainedDrafter:
    """A drafter on the CPU, with its weights as stored, and what is known of it."""

    drafter: Drafter
    path: Path
    """The checkpoint or folder that was read."""
    target: str | None
    """`--target` of the run; None where it is not recorded."""
    step: int | None
    """Optimizer steps of training; 0 is untrained, None is unknown."""
    training: TrainingDetails
    measured: MeasuredAcceptance | None = None

    @property
    def config(self) -> Qwen3Config:
        return self.drafter.config


def load_trained(name: str, runs: Path | str = "runs") -> TrainedDrafter:
    """The drafter called `name`: a run by id or folder, a checkpoint's folder, or an exported folder in z-lab's format.

    Of a run, the newest whole checkpoint is loaded; the one that `latest` names counts as the newest. Raises `ConfigError`.
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


def build_drafter(config: Qwen3Config, weights: Mapping[str, torch.Tensor], source: str | Path) -> Drafter:
    """A drafter that holds these very tensors. Raises `ConfigError` with every one that is missing, unknown or of another shape."""
    with torch.device("meta"):
        drafter = Drafter(config)
    drafter.rotary = Qwen3RotaryEmbedding(config)  # its frequencies are no weights, so they are not stored
    wanted = {name: list(tensor.shape) for name, tensor in drafter.state_dict().items()}
    if wrong := list(_differences(wanted, weights)):
        raise ConfigError(f"the weights in {source} are not those of its config: {'; '.join(wrong)}")
    drafter.load_state_dict(weights, assign=True)
    return drafter


def _differences(wanted: Mapping[str, list[int]], found: Mapping[str, torch.Tensor]) -> Iterator[str]:
    for name, shape in wanted.items():
        if name not in found:
            yield f"{name} is missing"
        elif list(found[name].shape) != shape:
            yield f"{name} is {list(found[name].shape)} instead of {shape}"
        elif not found[name].is_floating_point():
            yield f"{name} holds {found[name].dtype} instead of floating-point numbers"
    yield from (f"{name} is unknown" for name in found if name not in wanted)


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
        raise ConfigError(f"{error}: give another one, or the run, to take its newest whole one") from error


def _from_checkpoint(checkpoint: Checkpoint) -> TrainedDrafter:
    identity, config = checkpoint.metadata.get("identity", {}), checkpoint.metadata.get("config", {})
    run = checkpoint.metadata.get("run") or _run_json(checkpoint.path)
    data = run.get("data") or {}
    return TrainedDrafter(
        drafter=build_drafter(_architecture(checkpoint), checkpoint.weights, checkpoint.path),
        path=checkpoint.path,
        target=identity.get("target"),
        step=checkpoint.train_state.step,
        training=TrainingDetails(
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
    """The drafter's config. Older checkpoints do not hold it, so it is derived from the target's config as in training."""
    metadata = checkpoint.metadata
    try:
        if "drafter" in metadata:
            return Qwen3Config.from_dict(metadata["drafter"])
        identity, knobs = metadata["identity"], dict(metadata["config"]["drafter"])
        knobs["target_layer_ids"] = tuple(identity["layer_ids"])
        text = Target.find(identity["target"]).text_config
        return drafter_architecture(text, DrafterConfig(**knobs), knobs["target_layer_ids"], identity["mask_token_id"])
    except ConfigError as error:
        way = "make its target readable here, or train on with it for a step"
        raise ConfigError(
            f"checkpoint {checkpoint.path} does not say how its drafter is built, and its target cannot be read ({error}): {way}"
        ) from error
    except Exception as error:  # unexpected keys and types make transformers' own checks raise anything
        raise ConfigError(f"checkpoint {checkpoint.path} does not say how its drafter is built: {error}") from error


def _from_export(folder: Path) -> TrainedDrafter:
    drafter = build_drafter(zlab.read_architecture(folder), zlab.read_weights(folder), folder)
    told = zlab.read_json(folder / PROVENANCE) if (folder / PROVENANCE).is_file() else {}
    try:
        training, measured = TrainingDetails(**told.get("facts") or {}), told.get("measured")
        return TrainedDrafter(
            drafter=drafter,
            path=folder,
            target=told.get("target"),
            step=told.get("step"),
            training=training,
            measured=MeasuredAcceptance(**measured) if measured else None,
        )
    except TypeError as error:
        raise ConfigError(f"{folder / PROVENANCE} is not what export writes ({error}): remove it to load the drafter") from error


def provenance(trained: TrainedDrafter) -> dict[str, Any]:
    """The content of an exported folder's `provenance.json`, which `load_trained` reads."""
    return {
        "target": trained.target,
        "step": trained.step,
        "facts": dataclasses.asdict(trained.training),
        "measured": dataclasses.asdict(trained.measured) if trained.measured else None,
    }


def _run_json(checkpoint: Path) -> dict[str, Any]:
    """`run.json` of the run around an older checkpoint; empty where the checkpoint was moved out of its run."""
    file = checkpoint.parent.parent / "run.json"
    return zlab.read_json(file) if file.is_file() else {}


def _newest_measured(run: Path, step: int) -> MeasuredAcceptance | None:
    """The last measurement in a run's events that is not of a later step than the checkpoint's."""
    for event in newest_events(run, "evaluated", limit=None):
        at, length = event.get("step", 0), event.get("measured_length")
        if at <= step and isinstance(length, int | float):
            return MeasuredAcceptance(step=at, measured_length=length, prompts=event.get("prompts"))
    return None
