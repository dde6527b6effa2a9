import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

import trainer.prepare.output
from trainer.data.conversations import load_conversations, load_held_out
from trainer.prepare.output import collect, split, write_prepared
from trainer.prepare.turns import Conversation


def conversations(count: int) -> Iterator[Conversation]:
    for number in range(count):
        messages = [{"role": "user", "content": str(number)}, {"role": "assistant", "content": "Ja"}]
        row: dict[str, Any] = {"messages": messages, "category": "", "finished": number % 2 == 0}
        yield Conversation(row=row, turns=1 + number % 3, answer_tokens=10, exact=number != 0)


def numbers(data: datasets.Dataset) -> list[int]:
    return [int(row["messages"][0]["content"]) for row in data]


def test_rows_are_collected_in_order_chunk_by_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer.prepare.output, "CHUNK", 4)
    data, counts = collect(conversations(10), tmp_path / "rows.arrow")
    assert data is not None
    assert numbers(data) == list(range(10))
    assert [file["filename"] for file in data.cache_files] == [str(tmp_path / "rows.arrow")], "and not in memory"
    assert len(data.data.to_batches()) == 3
    assert counts == {"conversations": 10, "answers": 19, "answer_tokens": 100, "unfinished": 5, "exact": 9}


def test_of_nothing_there_is_no_dataset(tmp_path: Path) -> None:
    data, counts = collect(conversations(0), tmp_path / "rows.arrow")
    assert data is None
    assert set(counts.values()) == {0}


def test_the_seed_draws_what_is_held_out(tmp_path: Path) -> None:
    data, _ = collect(conversations(20), tmp_path / "rows.arrow")
    one, same, other = (split(data, 0.25, seed) for seed in (1, 1, 2))
    assert sorted([*numbers(one["train"]), *numbers(one["held_out"])]) == list(range(20))
    assert (len(one["held_out"]), numbers(one["train"])) == (5, sorted(numbers(one["train"])))
    assert numbers(one["held_out"]) == numbers(same["held_out"]) != numbers(other["held_out"])


@pytest.mark.parametrize(("count", "ratio", "held"), [(20, 0.0, 0), (1, 0.9, 0), (2, 0.9, 1), (5, 0.05, 0)])
def test_something_is_always_left_to_train_on(tmp_path: Path, count: int, ratio: float, held: int) -> None:
    data, _ = collect(conversations(count), tmp_path / "rows.arrow")
    parts = split(data, ratio, 0)
    assert len(parts["train"]) == count - held
    assert ("held_out" in parts) == (held > 0)


def test_a_folder_is_written_that_training_reads(tmp_path: Path) -> None:
    data, _ = collect(conversations(8), tmp_path / "rows.arrow")
    told = {"target": "tiny", "said": "ü"}
    sizes = write_prepared(tmp_path / "new" / "out", data, told, held_out_ratio=0.25, seed=0)
    assert sizes == {"train": 6, "held_out": 2}
    folder = str(tmp_path / "new" / "out")
    held_out = load_held_out(folder)
    assert held_out is not None
    assert (len(load_conversations(folder)), len(held_out)) == (6, 2)
    assert load_conversations(folder).column_names == ["messages", "category", "finished"]
    assert json.loads((tmp_path / "new" / "out" / "provenance.json").read_text(encoding="utf-8")) == told
