"""Checkpoints: written whole or not at all, refused by name when broken.

A checkpoint is a folder `step-000000100` that holds the drafter's weights, the optimizer's state, the train state, and a manifest
of checksums that is written last. It is made under a temporary name, flushed to disk and renamed; only then does `latest` name it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trainer.files import flush_to_disk, write_atomic

FILES = {"drafter.safetensors", "optimizer.pt", "state.json"}
MANIFEST = "manifest.json"
FORMAT = 1


class BrokenCheckpointError(ValueError):
    """A checkpoint that is incomplete or damaged; the message names it and says what is wrong."""


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """How far a run is: everything that a resume needs beside the weights and the optimizer's moments. `START` is its zero."""

    step: int
    """Optimizer steps taken, skipped updates included."""
    next_seq: int
    """Number of the first batch that no step has used."""
    epoch: int
    """Complete visits of the data; with `position` it says where reading resumes (`data.batches.Cursor`)."""
    position: int
    """First conversation of the current visit that no step has used."""
    context_tokens: int
    """Context tokens, draft tokens and samples that the steps used, over all attempts of the run."""
    draft_tokens: int
    samples: int


START = TrainState(step=0, next_seq=0, epoch=0, position=0, context_tokens=0, draft_tokens=0, samples=0)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    path: Path
    train_state: TrainState
    metadata: dict[str, Any]
    """JSON that says what it was trained for."""
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any]


def write_checkpoint(
    root: Path,
    train_state: TrainState,
    weights: dict[str, torch.Tensor],
    optimizer: dict[str, Any],
    metadata: dict[str, Any],
    keep: int,
) -> Path:
    """Write a checkpoint under `root`, make `latest` name it, then remove all but the newest `keep`. Raises `OSError`.

    `metadata` (JSON) says what it was trained for, so that a resume can refuse a checkpoint of another run.
    """
    root.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(root)
    final = checkpoint_folder(root, train_state.step)
    partial = root / f"{final.name}.tmp.{os.getpid()}"
    partial.mkdir()
    try:
        _write_tensors(partial, weights, optimizer)
        # The keys are those of format 1: checkpoints of 0.1 stay readable.
        state = {"format": FORMAT, "place": asdict(train_state), "facts": metadata}
        (partial / "state.json").write_text(json.dumps(state, indent=1))
        _write_manifest(partial)
        _publish(partial, final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    write_atomic(root / "latest", f"{final.name}\n")
    # Later steps belong to an attempt that a resume overtook; they do not count, or they would push this one out.
    for old in [path for path in list_checkpoints(root) if path.name <= final.name][:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def checkpoint_folder(root: Path, step: int) -> Path:
    """Path of the checkpoint of `step`."""
    return root / f"step-{step:09d}"


def list_checkpoints(root: Path) -> list[Path]:
    """The finished checkpoints under `root`, by rising step."""
    return sorted(path for path in root.glob("step-*") if path.suffix == "" and path.is_dir())


def read_checkpoint(path: Path, *, with_tensors: bool = True, with_optimizer: bool = True, verify: bool = True) -> Checkpoint:
    """Read and verify one checkpoint. Raises `BrokenCheckpointError` if a file is missing, short or changed.

    Without tensors, or without the optimizer's state, which takes twice the memory of the weights, their files are verified but not
    loaded. `verify=False` skips the checksums, for a checkpoint that this process has verified.
    """
    try:
        if verify:
            _verify(path)
        state = json.loads((path / "state.json").read_text())
        if state["format"] != FORMAT:
            raise ValueError(f"its format is {state['format']}, and this Draftscope reads {FORMAT}")
        return Checkpoint(
            path=path,
            train_state=TrainState(**state["place"]),
            metadata=state["facts"],
            weights=load_file(path / "drafter.safetensors") if with_tensors else {},
            optimizer=_load_optimizer(path / "optimizer.pt") if with_tensors and with_optimizer else {},
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
        raise BrokenCheckpointError(f"checkpoint {path} is broken: {error}") from error


def newest_checkpoint(root: Path, *, with_tensors: bool = True, with_optimizer: bool = True) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint under `root`, or None, and a sentence for each broken one that was tried before it.

    The one that `latest` names counts as the newest: later steps may belong to an attempt that a resume overtook.
    """
    refused: list[str] = []
    for path in _newest_first(root):
        try:
            return read_checkpoint(path, with_tensors=with_tensors, with_optimizer=with_optimizer), refused
        except BrokenCheckpointError as error:
            refused.append(str(error))
    return None, refused


def newest_metadata(root: Path) -> dict[str, Any] | None:
    """`metadata` of the newest checkpoint whose state file can be read, its other files unverified; None without one."""
    for path in _newest_first(root):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return dict(json.loads((path / "state.json").read_text())["facts"])
    return None


def _newest_first(root: Path) -> list[Path]:
    return sorted(list_checkpoints(root), key=lambda path: (path.name == _latest(root), path.name), reverse=True)


def folder_bytes(path: Path) -> int:
    """Size of a checkpoint's files."""
    return sum(file.stat().st_size for file in path.iterdir())


def when_written(path: Path) -> float:
    """Unix time at which a checkpoint was complete: its manifest is written last. Raises `OSError`."""
    return (path / MANIFEST).stat().st_mtime


def _remove_leftovers(root: Path) -> None:
    """Remove unfinished checkpoints of processes that have ended, and of this one, which writes one at a time."""
    for path in root.glob("*.tmp.*"):
        pid = path.name.rpartition(".")[2]
        if pid.isdecimal() and (int(pid) == os.getpid() or not psutil.pid_exists(int(pid))):
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)


def _write_tensors(folder: Path, weights: dict[str, torch.Tensor], optimizer: dict[str, Any]) -> None:
    try:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "drafter.safetensors")
        torch.save(optimizer, folder / "optimizer.pt")
    except (SafetensorError, RuntimeError) as error:  # what safetensors and torch raise on a full disk
        raise OSError(f"the tensors cannot be written to {folder}: {error}") from error


def _publish(partial: Path, final: Path) -> None:
    """Rename a finished checkpoint. One of the same step, from before a resume, is moved aside first and back if that fails."""
    before = final.with_name(f"{final.name}.before.tmp.{os.getpid()}")
    if final.exists():
        final.rename(before)
    try:
        partial.rename(final)
    except BaseException:
        if before.exists():
            before.rename(final)
        raise
    try:
        flush_to_disk(final.parent)
    finally:
        shutil.rmtree(before, ignore_errors=True)


def _write_manifest(folder: Path) -> None:
    """Flush every file to disk, then write the manifest: where it is complete, so are they."""
    manifest = {}
    for file in sorted(folder.iterdir()):
        flush_to_disk(file)
        manifest[file.name] = {"bytes": file.stat().st_size, "sha256": _digest(file)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    flush_to_disk(folder / MANIFEST)
    flush_to_disk(folder)


def _load_optimizer(file: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return state


def _verify(folder: Path) -> None:
    for name in sorted({MANIFEST} | FILES):
        if not (folder / name).is_file():
            raise ValueError(f"{name} is missing")
    manifest = json.loads((folder / MANIFEST).read_text())
    if missing := FILES - manifest.keys():
        raise ValueError(f"its manifest does not name {', '.join(sorted(missing))}")
    for name, recorded in manifest.items():
        file = folder / name
        if file.stat().st_size != recorded["bytes"]:
            raise ValueError(f"{name} has {file.stat().st_size} bytes instead of {recorded['bytes']}")
        if _digest(file) != recorded["sha256"]:
            raise ValueError(f"the checksum of {name} differs")


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _latest(root: Path) -> str:
    try:
        return (root / "latest").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
