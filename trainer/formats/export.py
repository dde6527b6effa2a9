"""`python -m trainer export`: writes a trained drafter as a folder that z-lab's package, SGLang and vLLM load.

The folder is read back from disk and compared with the drafter bit by bit; it only appears under its name if they are equal.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import Qwen3Config

from trainer.config import DrafterConfig, Precision
from trainer.devices import choose_precision, precision_name
from trainer.drafter.compatibility import check_fit
from trainer.drafter.model import Drafter, choose_layer_ids, drafter_architecture
from trainer.errors import ConfigError, flag_of, require
from trainer.files import expand_home, free_place, make_folder
from trainer.formats import speculators, zlab
from trainer.formats.load import PROVENANCE, TrainedDrafter, TrainingDetails, build_drafter, load_trained, provenance
from trainer.formats.model_card import Exported, model_card
from trainer.record.environment import git_commit, versions
from trainer.target.load import Target
from trainer.target.mask_token import choose_mask_token_id
from trainer.target.provenance import same_target

CARD = "README.md"

log = logging.getLogger(__name__)


class UnequalError(RuntimeError):
    """What was written reads back differently; no folder is made then."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    output: str
    """Folder to make; it must not exist yet."""
    checkpoint: str | None = None
    """What to export: a run by id or folder (its newest whole checkpoint), a checkpoint, or an exported folder."""
    format: Literal["zlab", "speculators"] = "zlab"
    """`zlab` is loaded by z-lab's package, SGLang and vLLM; `speculators` by vLLM and by `speculators` 0.9.0."""
    target: str | None = None
    """The target, if it is now elsewhere than in training: a folder, a hub id, `demo` or `tiny`."""
    runs: str = "runs"
    """Folder of all runs."""
    dtype: Precision = "auto"
    """Number format of the weights; `auto` is bfloat16 if the run's precision was bfloat16, else float32."""
    dry_run: bool = False
    """Export an untrained drafter for --target, to try a serving stack before training."""
    seed: int = 0
    """With --dry-run: decides the initial weights, as in `train`."""
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    """With --dry-run: the drafter's shape, as in `train`."""

    def __post_init__(self) -> None:
        expand_home(self, "output", "checkpoint", "target", "runs")
        require(bool(self.output), "output", "a folder to make", self.output)
        require(0 <= self.seed < 2**63, "seed", "from 0 to 2**63 - 1", self.seed)
        if self.dry_run:
            untrained = "left out with --dry-run, which exports an untrained drafter"
            require(self.checkpoint is None, "checkpoint", untrained, self.checkpoint)
            require(bool(self.target), "target", "given with --dry-run, as there is no run to take it from", self.target)
        elif not self.checkpoint:
            raise ConfigError("there is nothing to export: give --checkpoint, or --dry-run with --target")
        elif shape := " ".join(_changed_flags(self.drafter)):
            raise ConfigError(f"{shape} only goes with --dry-run: a trained drafter has its shape")


def _changed_flags(drafter: DrafterConfig) -> Iterator[str]:
    """The flags whose values are not the defaults."""
    for option in fields(drafter):
        value = getattr(drafter, option.name)
        if value != option.default:
            words = map(str, value) if isinstance(value, tuple) else [str(value)]
            yield " ".join([flag_of(f"drafter.{option.name}"), *words])


def export(config: ExportConfig, command: Sequence[str] = ()) -> Path:
    """Write the folder, whole or not at all, and return its path. The model card of a dry run names `command`.

    Raises `ConfigError` for what cannot work and `UnequalError` for a folder that reads back differently.
    """
    output = free_place(config.output, "folder")
    if config.dry_run:
        target = Target.find(str(config.target))
        trained = _untrained(config, target, command)
    else:
        trained = load_trained(str(config.checkpoint), config.runs)
        target = _target_of(trained, config)
    check_fit(trained.config, target.text_config, target.name)
    if trained.target and not same_target(trained.target, target.name):
        log.warning(
            "The drafter was trained for target %r and is exported for %r, which has the same shape: "
            "its drafts are only right if both are the same model.",
            trained.target,
            target.name,
        )
    dtype = _dtype(config.dtype, trained)
    drafter = _cast(trained, dtype)
    layout = _layout(config.format, drafter.config, target, dtype)
    card = model_card(Exported(trained=trained, target=target.description, dtype=dtype, format=config.format))
    origin = {**provenance(trained), "target": target.name, "format": config.format, "dtype": precision_name(dtype)}
    try:
        with make_folder(output) as folder:
            _write(folder, layout, drafter, card, origin)
            check_written(folder, drafter, config.format)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"output {config.output!r} cannot be written ({error}): choose another with --output") from error
    return output


def check_written(folder: Path, drafter: Drafter, format_: Literal["zlab", "speculators"]) -> None:
    """Read a drafter back from disk, weights and config, and compare it with the one that was written. Raises `UnequalError`.

    Names, shapes, number formats and bits of the weights must be equal, and so must the hidden states for random features and
    blocks: any head then gives the same logits.
    """
    try:
        weights = zlab.read_weights(folder)
        architecture = (zlab if format_ == "zlab" else speculators).read_architecture(folder)
        again = build_drafter(architecture, weights, folder)
    except ConfigError as error:
        raise UnequalError(f"what was written does not read back: {error}") from error
    expected = zlab.tensor_shapes(drafter.config)
    found = {name: list(tensor.shape) for name, tensor in weights.items()}
    if wrong := [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]:
        raise UnequalError(f"the tensors written are not those of the format: {', '.join(sorted(wrong))}")
    for name, tensor in drafter.state_dict().items():
        if weights[name].dtype != tensor.dtype or not torch.equal(weights[name], tensor):
            raise UnequalError(f"{name} reads back from disk with other values")
    if again.block_size != drafter.block_size or again.mask_token_id != drafter.mask_token_id:
        raise UnequalError("the config reads back from disk with another block size or mask token")
    if not torch.equal(_hidden_states(again), _hidden_states(drafter)):
        raise UnequalError("the drafter that reads back from disk drafts something else")


@torch.no_grad()
def _hidden_states(drafter: Drafter) -> torch.Tensor:
    """The drafter's hidden states [2 * block_size, D] for random features and two blocks among them, the same at every call."""
    config, generator = drafter.config, torch.Generator().manual_seed(0)
    context, block, dtype = 3 * drafter.block_size, drafter.block_size, drafter.fc.weight.dtype
    anchor_A = torch.tensor([block, 2 * block])
    block_Q = torch.arange(2).repeat_interleave(block)
    position_Q = anchor_A[block_Q] + torch.arange(block).repeat(2)
    context_T = torch.arange(context)
    mask_QK = torch.cat([context_T[None] < anchor_A[block_Q, None], block_Q[:, None] == block_Q[None]], dim=1)
    features_TF = torch.randn(context, drafter.fc.in_features, generator=generator).to(dtype)
    draft_QD = torch.randn(2 * block, config.hidden_size, generator=generator).to(dtype)
    hidden_QD: torch.Tensor = drafter(features_TF, context_T, draft_QD, position_Q, mask_QK)
    return hidden_QD


def _target_of(trained: TrainedDrafter, config: ExportConfig) -> Target:
    """The target that the drafter is exported for: the one named, else the one it was trained for."""
    name = config.target or trained.target
    if name is None:
        raise ConfigError(f"{trained.path} does not say which target it was trained for: name it with --target")
    try:
        target = Target.find(name)
        _ = target.description  # reads the config
    except ConfigError as error:
        if config.target:
            raise
        raise ConfigError(f"{error} (the drafter was trained for it; if it is elsewhere now, say where with --target)") from error
    return target


def _untrained(config: ExportConfig, target: Target, command: Sequence[str]) -> TrainedDrafter:
    """The drafter that training with these options would start from."""
    layer_ids = choose_layer_ids(target.description.layers, config.drafter)
    mask_id = choose_mask_token_id(config.drafter.mask_token_id, target.text_config, target.tokenizer)
    target.outline()  # raises for a target that no drafter fits
    architecture = drafter_architecture(target.text_config, config.drafter, layer_ids, mask_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        drafter = Drafter(architecture)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    precision = choose_precision("auto", (device,))  # what training on this machine would choose
    training = TrainingDetails(
        command=shlex.join(command) or None, precision=precision_name(precision), git_commit=git_commit(), versions=versions()
    )
    return TrainedDrafter(drafter=drafter, path=Path(config.output), target=target.name, step=0, training=training)


def _dtype(requested: Precision, trained: TrainedDrafter) -> torch.dtype:
    """`auto` is bfloat16 where training rounded the matrices to it for every product, else float32.

    Norms and the residual stream were float32 in training, whatever its precision, so drafts may differ a little.
    """
    rounded = trained.training.precision == "bfloat16" or trained.drafter.fc.weight.dtype == torch.bfloat16
    chosen = requested if requested != "auto" else "bfloat16" if rounded else "float32"
    return torch.bfloat16 if chosen == "bfloat16" else torch.float32


def _cast(trained: TrainedDrafter, dtype: torch.dtype) -> Drafter:
    """The drafter in the number format that is written. Raises `ConfigError` where a weight is not finite."""
    weights = {name: tensor.detach().to(dtype).contiguous() for name, tensor in trained.drafter.state_dict().items()}
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise ConfigError(f"{name} of {trained.path} holds NaN or infinity: the run has diverged, export an earlier checkpoint")
    return build_drafter(trained.config, weights, trained.path)


def _layout(format_: str, drafter: Qwen3Config, target: Target, dtype: torch.dtype) -> dict[str, Any]:
    if format_ == "speculators":
        return speculators.config_json(drafter, target, dtype)
    return zlab.config_json(drafter, target.text_config, dtype)


def _write(folder: Path, layout: dict[str, Any], drafter: Drafter, card: str, origin: dict[str, Any]) -> None:
    # transformers refuses a file without `format` in its metadata.
    save_file(drafter.state_dict(), folder / zlab.WEIGHTS, metadata={"format": "pt"})
    (folder / zlab.WEIGHTS).chmod(0o644)  # safetensors makes files that only their owner may read
    for name, value in ((zlab.CONFIG, layout), (PROVENANCE, origin)):
        (folder / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / CARD).write_text(card, encoding="utf-8")
