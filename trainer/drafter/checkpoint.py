"""Checkpoints: written whole or not at all, refused by name when broken.

A checkpoint is a folder `step-000000100` with the drafter's weights, the optimizer's state, the place in the data, and a manifest
of checksums that is written last. It is made under another name, flushed to disk and renamed; only then does `latest` point to
it.
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
    """A checkpoint that is not whole; the message names it and says what is wrong."""


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
    facts: dict[str, Any]
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any]


def write_checkpoint(
    root: Path,
    train_state: TrainState,
    weights: dict[str, torch.Tensor],
    optimizer: dict[str, Any],
    facts: dict[str, Any],
    keep: int,
) -> Path:
    """Write a checkpoint under `root`, point `latest` to it, then remove all but the newest `keep`. Raises `OSError`.

    `facts` go into it as they are (JSON): what it was trained for, so that a wrong one is not resumed from.
    """
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root)
    final = checkpoint_folder(root, train_state.step)
    partial = root / f"{final.name}.tmp.{os.getpid()}"
    partial.mkdir()
    try:
        _write_tensors(partial, weights, optimizer)
        state = {"format": FORMAT, "place": asdict(train_state), "facts": facts}  # its name on disk is that of format 1
        (partial / "state.json").write_text(json.dumps(state, indent=1))
        _seal(partial)
        _put_in_place(partial, final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    write_atomic(root / "latest", f"{final.name}\n")
    # Later steps than this one are those of an attempt that a resume overtook; they must not push this one out.
    for old in [path for path in list_checkpoints(root) if path.name <= final.name][:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def checkpoint_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of `step` lies."""
    return root / f"step-{step:09d}"


def list_checkpoints(root: Path) -> list[Path]:
    """The checkpoints under `root`, oldest first, unfinished ones left out."""
    return sorted(path for path in root.glob("step-*") if path.suffix == "" and path.is_dir())


def read_checkpoint(path: Path, *, with_optimizer: bool = True) -> Checkpoint:
    """Read and verify one checkpoint. Raises `BrokenCheckpointError` when anything is missing, short or changed.

    Without its optimizer, which is twice the weights in memory, that file is verified all the same.
    """
    try:
        _verify(path)
        state = json.loads((path / "state.json").read_text())
        if state["format"] != FORMAT:
            raise ValueError(f"its format is {state['format']}, and this Draftscope reads {FORMAT}")
        return Checkpoint(
            path=path,
            train_state=TrainState(**state["place"]),
            facts=state["facts"],
            weights=load_file(path / "drafter.safetensors"),
            optimizer=torch.load(path / "optimizer.pt", map_location="cpu", weights_only=True) if with_optimizer else {},
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
        raise BrokenCheckpointError(f"checkpoint {path} is broken: {error}") from error


def newest_checkpoint(root: Path, *, with_optimizer: bool = True) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint under `root`, or None, and a sentence for each broken one that was passed over.

    The one that `latest` names comes first: later steps may be of an attempt that a resume overtook.
    """
    refused: list[str] = []
    for path in _newest_first(root):
        try:
            return read_checkpoint(path, with_optimizer=with_optimizer), refused
        except BrokenCheckpointError as error:
            refused.append(str(error))
    return None, refused


def newest_facts(root: Path) -> dict[str, Any] | None:
    """The `facts` of the newest checkpoint whose state can be read, which need not be whole; None where there is none."""
    for path in _newest_first(root):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return dict(json.loads((path / "state.json").read_text())["facts"])
    return None


def _newest_first(root: Path) -> list[Path]:
    return sorted(list_checkpoints(root), key=lambda path: (path.name == _latest(root), path.name), reverse=True)


def folder_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def when_written(path: Path) -> float:
    """Unix time at which a checkpoint was whole. Raises `OSError`."""
    return (path / MANIFEST).stat().st_mtime


def _sweep(root: Path) -> None:
    """Remove what writers that are no more have left unfinished; a process writes one checkpoint at a time."""
    for path in root.glob("*.tmp.*"):
        pid = path.name.rpartition(".")[2]
        if pid.isdecimal() and (int(pid) == os.getpid() or not psutil.pid_exists(int(pid))):
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)


def _write_tensors(folder: Path, weights: dict[str, torch.Tensor], optimizer: dict[str, Any]) -> None:
    try:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "drafter.safetensors")
        torch.save(optimizer, folder / "optimizer.pt")
    except (SafetensorError, RuntimeError) as error:  # so both libraries tell of a full disk
        raise OSError(f"the tensors cannot be written to {folder}: {error}") from error


def _put_in_place(partial: Path, final: Path) -> None:
    """Give a finished checkpoint its name. One of the same step, from before a resume, makes room and comes back if that fails."""
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


def _seal(folder: Path) -> None:
    """Flush every file to disk and write the manifest last."""
    manifest = {}
    for file in sorted(folder.iterdir()):
        flush_to_disk(file)
        manifest[file.name] = {"bytes": file.stat().st_size, "sha256": _digest(file)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    flush_to_disk(folder / MANIFEST)
    flush_to_disk(folder)


def _verify(folder: Path) -> None:
    for name in sorted({MANIFEST} | FILES):
        if not (folder / name).is_file():
            raise ValueError(f"{name} is missing")
    manifest = json.loads((folder / MANIFEST).read_text())
    if missing := FILES - manifest.keys():
        raise ValueError(f"its manifest does not name {', '.join(sorted(missing))}")
    for name, facts in manifest.items():
        file = folder / name
        if file.stat().st_size != facts["bytes"]:
            raise ValueError(f"{name} has {file.stat().st_size} bytes instead of {facts['bytes']}")
        if _digest(file) != facts["sha256"]:
            raise ValueError(f"the checksum of {name} differs")


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _latest(root: Path) -> str:
    try:
        return (root / "latest").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
