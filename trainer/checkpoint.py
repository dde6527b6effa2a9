"""Checkpoints: written whole or not at all, refused by name when broken.

A checkpoint is a folder `step-000000100` with the drafter's weights, the optimizer's state, the place in the data, and a manifest of
checksums that is written last. It is made under another name, flushed to disk and renamed; only then does `latest` point to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

MANIFEST = "manifest.json"
FORMAT = 1


class BrokenCheckpointError(ValueError):
    """A checkpoint that is not whole; the message names it and says what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """How far a run is: everything that a resume needs beside the weights."""

    step: int
    next_seq: int
    epoch: int
    position: int
    context_tokens: int
    draft_tokens: int
    samples: int


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    path: Path
    place: Place
    facts: dict[str, Any]
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any]


def write_checkpoint(
    root: Path, place: Place, weights: dict[str, torch.Tensor], optimizer: dict[str, Any], facts: dict[str, Any], keep: int
) -> Path:
    """Write a checkpoint under `root`, point `latest` to it, then remove all but the newest `keep`. Raises `OSError`.

    `facts` go into it as they are (JSON): what it was trained for, so that a wrong one is not resumed from.
    """
    root.mkdir(parents=True, exist_ok=True)
    final = root / f"step-{place.step:09d}"
    partial = root / f"{final.name}.tmp.{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, partial / "drafter.safetensors")
        torch.save(optimizer, partial / "optimizer.pt")
        (partial / "state.json").write_text(json.dumps({"format": FORMAT, "place": asdict(place), "facts": facts}, indent=1))
        _seal(partial)
        if final.exists():  # the same step again, after a resume from before it
            shutil.rmtree(final)
        partial.rename(final)
        _flush(root)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _point_latest(root, final.name)
    for old in list_checkpoints(root)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def list_checkpoints(root: Path) -> list[Path]:
    """The checkpoints under `root`, oldest first, unfinished ones left out."""
    return sorted(path for path in root.glob("step-*") if path.suffix == "" and path.is_dir())


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and verify one checkpoint. Raises `BrokenCheckpointError` when anything is missing, short or changed."""
    try:
        _verify(path)
        state = json.loads((path / "state.json").read_text())
        return Checkpoint(
            path=path,
            place=Place(**state["place"]),
            facts=state["facts"],
            weights=load_file(path / "drafter.safetensors"),
            optimizer=torch.load(path / "optimizer.pt", map_location="cpu", weights_only=True),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenCheckpointError(f"checkpoint {path} is broken: {error}") from error


def newest_checkpoint(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint under `root`, or None, and a sentence for each broken one that was passed over."""
    refused = []
    for path in reversed(list_checkpoints(root)):
        try:
            return read_checkpoint(path), refused
        except BrokenCheckpointError as error:
            refused.append(str(error))
    return None, refused


def folder_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def _seal(folder: Path) -> None:
    """Flush every file to disk and write the manifest last."""
    manifest = {}
    for file in sorted(folder.iterdir()):
        _flush(file)
        manifest[file.name] = {"bytes": file.stat().st_size, "sha256": _digest(file)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    _flush(folder / MANIFEST)
    _flush(folder)


def _verify(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    for name, facts in manifest.items():
        file = folder / name
        if file.stat().st_size != facts["bytes"]:
            raise ValueError(f"{name} has {file.stat().st_size} bytes instead of {facts['bytes']}")
        if _digest(file) != facts["sha256"]:
            raise ValueError(f"the checksum of {name} differs")


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _point_latest(root: Path, name: str) -> None:
    partial = root / f"latest.tmp.{os.getpid()}"
    partial.write_text(name + "\n")
    _flush(partial)
    partial.replace(root / "latest")
    _flush(root)
