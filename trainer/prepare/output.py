"""Writes finished conversations as a saved dataset with its splits and its provenance."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets.arrow_writer import ArrowWriter

from trainer.files import make_folder
from trainer.prepare.turns import Conversation
from trainer.target.provenance import NAME

# Conversations held in memory before they are written.
CHUNK = 1_000
TEXT = datasets.Value("string")
FEATURES = datasets.Features({"messages": [{"role": TEXT, "content": TEXT}], "category": TEXT, "finished": datasets.Value("bool")})


def collect(conversations: Iterable[Conversation], file: Path) -> tuple[datasets.Dataset | None, dict[str, int]]:
    """The conversations as a dataset (None if there are none) and counts over them. The rows stay in `file`, not in memory.

    Raises `OSError`.
    """
    counts = Counter(conversations=0, answers=0, answer_tokens=0, unfinished=0, exact=0)
    with ArrowWriter(path=str(file), features=FEATURES, writer_batch_size=CHUNK) as writer:
        for one in conversations:
            counts.update(conversations=1, answers=one.turns, answer_tokens=one.answer_tokens)
            counts.update(unfinished=not one.row["finished"], exact=one.exact)
            writer.write(one.row)
        writer.finalize()
    return datasets.Dataset.from_file(str(file)) if counts["conversations"] else None, dict(counts)


def write_prepared(
    output: Path, data: datasets.Dataset, provenance: Mapping[str, Any], *, held_out_ratio: float, seed: int
) -> dict[str, int]:
    """Make the folder `output`, whole or not at all. Returns how many conversations each split has. Raises `OSError`."""
    datasets.disable_progress_bars()
    splits = split(data, held_out_ratio, seed)
    with make_folder(output) as folder:
        splits.save_to_disk(str(folder))
        (folder / NAME).write_text(json.dumps(provenance, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return {name: len(rows) for name, rows in splits.items()}


def split(data: datasets.Dataset, held_out_ratio: float, seed: int) -> datasets.DatasetDict:
    """The splits `train` and `held_out`, drawn by the seed; without the second where nothing would be in it."""
    held = min(round(len(data) * held_out_ratio), len(data) - 1)
    order = np.random.default_rng([seed, len(data)]).permutation(len(data))
    shares = {"train": sorted(order[held:]), "held_out": sorted(order[:held])}
    return datasets.DatasetDict({name: data.select(share) for name, share in shares.items() if share})
