"""Finished conversations in, a saved dataset with its splits and its provenance out."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from trainer.dialogues import Conversation
from trainer.folders import whole_folder
from trainer.provenance import NAME

# Conversations that are Python objects at the same time, on their way into Arrow.
CHUNK = 1_000


def collect(conversations: Iterator[Conversation]) -> tuple[datasets.Dataset | None, dict[str, int]]:
    """Their rows, None where there is none, and what is counted of them."""
    counts = Counter(conversations=0, answers=0, answer_tokens=0, unfinished=0, exact=0)
    chunks = []
    while chunk := list(itertools.islice(conversations, CHUNK)):
        for one in chunk:
            counts.update(conversations=1, answers=one.turns, answer_tokens=one.answer_tokens)
            counts.update(unfinished=not one.row["finished"], exact=one.exact)
        chunks.append(datasets.Dataset.from_list([one.row for one in chunk]))
    return datasets.concatenate_datasets(chunks) if chunks else None, dict(counts)


def write_prepared(
    output: Path, data: datasets.Dataset, provenance: Mapping[str, Any], *, held_out_ratio: float, seed: int
) -> None:
    """Make the folder `output`, whole or not at all. Raises `OSError`."""
    datasets.disable_progress_bars()
    with whole_folder(output) as folder:
        split(data, held_out_ratio, seed).save_to_disk(str(folder))
        (folder / NAME).write_text(json.dumps(provenance, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def split(data: datasets.Dataset, held_out_ratio: float, seed: int) -> datasets.DatasetDict:
    """The splits `train` and `held_out`, drawn by the seed; without a second one where there is nothing to put into it."""
    held = min(round(len(data) * held_out_ratio), len(data) - 1)
    order = np.random.default_rng([seed, len(data)]).permutation(len(data))
    shares = {"train": sorted(order[held:]), "held_out": sorted(order[:held])}
    return datasets.DatasetDict({name: data.select(share) for name, share in shares.items() if share})
