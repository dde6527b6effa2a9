"""Tables: what comes in a row at a time reads the same as what is computed at once, at every width, over resumes."""

import numpy as np
import pytest

from dashboard.record import rollups
from dashboard.record.parse import MISSING
from dashboard.record.table import Table


def fill(table, keys, values, attempt=0, names=("loss",), piece=None):
    keys, values = np.asarray(keys, np.int64), np.asarray(values, np.float32).reshape(len(keys), len(names))
    size = piece or len(keys)
    for at in range(0, len(keys), size):
        part = slice(at, at + size)
        axes = keys[part, None].astype(float)
        table.extend(np.full(len(axes), attempt), keys[part], axes, names, values[part])


@pytest.mark.parametrize("piece", [1, 37, 5000])
@pytest.mark.parametrize("width", [1, 2, 64, 128, 1024, 2048, 16384, 32768])
def test_roll_ups_agree_with_the_rows(piece, width):
    count = 5000 if piece == 1 else 40_000
    keys = np.arange(1, count + 1)
    values = np.random.default_rng(1).normal(size=count).astype(np.float32)
    values[[7, 900]] = [np.nan, np.inf]
    table = Table(("step",))
    fill(table, keys, values, piece=piece)
    segment = table.segments[0]
    found = table.buckets(segment, 0, count, [0], width)
    wanted = rollups.of_rows(keys, keys[:, None].astype(float), values[:, None], width)
    assert found.start.tolist() == wanted.start.tolist()
    for part in ("low", "high", "last", "count", "nan", "infinite", "axes"):
        np.testing.assert_array_equal(getattr(found, part), getattr(wanted, part), err_msg=part)
    np.testing.assert_allclose(found.total, wanted.total, rtol=1e-9)


def test_a_part_holds_whole_buckets():
    table = Table(("step",))
    fill(table, range(1, 3001), np.arange(3000))
    found = table.buckets(table.segments[0], 100, 200, [0], 64)
    assert found.start.tolist() == [64, 128, 192]
    assert found.count.tolist() == [[64], [64], [64]]


def test_a_resume_begins_a_segment_and_overtakes_the_rest():
    table = Table(("step",))
    fill(table, range(1, 301), np.zeros(300))
    fill(table, range(201, 251), np.ones(50), attempt=1)
    first, second = table.segments
    assert (first.attempt, second.attempt) == (0, 1)
    assert table.overtaken_from(first) == 201
    assert table.overtaken_from(second) is None
    assert [(segment.attempt, low, high) for segment, low, high in table.parts(290, 310)] == [(0, 290, 300), (1, 300, 310)]


def test_both_attempts_may_come_in_one_piece():
    table = Table(("step",))
    keys = np.array([1, 2, 3, 3, 4], np.int64)
    table.extend(np.array([0, 0, 0, 1, 1]), keys, keys[:, None].astype(float), ("loss",), np.zeros((5, 1), np.float32))
    assert [(s.attempt, s.first, s.end) for s in table.segments] == [(0, 0, 3), (1, 3, 5)]


def test_a_column_may_appear_later():
    table = Table(("step",))
    fill(table, range(1, 201), np.zeros(200))
    fill(table, range(201, 301), np.ones((100, 2)), names=("gpu", "loss"))
    assert table.column_names == ("loss", "gpu")
    found = table.buckets(table.segments[0], 0, 300, [0, 1], 64)
    assert found.count[:, 0].sum() == 300
    assert found.count[:, 1].sum() == 100
    assert (found.low[0] == [0, np.inf]).all()
    assert MISSING < -1e38
