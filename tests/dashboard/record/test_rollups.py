"""Buckets against plain numpy: nothing is lost, and edges stay where they are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.record import rollups
from dashboard.record.parse import MISSING

VALUES = st.one_of(st.floats(-100, 100, width=32), st.sampled_from([np.nan, np.inf, -np.inf, MISSING]))


def rows(values, first=1):
    keys = np.arange(first, first + len(values), dtype=np.int64)
    return keys, keys[:, None].astype(float), np.array(values, np.float32)[:, None]


def check_bucket(buckets, index, part):
    finite = part[np.isfinite(part) & (part != np.float32(MISSING))]
    assert buckets.count[index, 0] == len(finite)
    assert buckets.nan[index, 0] == np.isnan(part).sum()
    assert buckets.infinite[index, 0] == np.isinf(part).sum()
    if len(finite):
        assert buckets.low[index, 0] == finite.min()
        assert buckets.high[index, 0] == finite.max()
        assert buckets.last[index, 0] == finite[-1]
        assert buckets.mean()[index, 0] == pytest.approx(finite.astype(float).mean(), abs=1e-4)
    else:
        assert np.isnan(buckets.last[index, 0])
        assert np.isnan(buckets.mean()[index, 0])


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=200), st.integers(0, 500), st.sampled_from([1, 2, 8, 64]), st.sampled_from([1, 2, 16]))
def test_buckets_agree_with_numpy_at_once_and_merged(values, first, width, times):
    keys, axes, array = rows(values, first)
    for buckets, wide in (
        (rollups.of_rows(keys, axes, array, width), width),
        (rollups.merge(rollups.of_rows(keys, axes, array, width), width * times), width * times),
    ):
        assert buckets.start.tolist() == sorted({key // wide * wide for key in keys.tolist()})
        for index, start in enumerate(buckets.start.tolist()):
            inside = (keys >= start) & (keys < start + wide)
            check_bucket(buckets, index, array[inside, 0])
            assert buckets.axes[index, 0] == keys[inside][-1]


def test_a_spike_of_one_step_is_kept():
    values = np.full(10_000, 2.0)
    values[4321] = 50.0
    buckets = rollups.of_rows(*rows(values), 1024)
    assert buckets.high.max() == 50.0
    assert buckets.low.min() == 2.0


def test_edges_do_not_move_while_a_run_grows():
    values = np.random.default_rng(0).normal(size=5000)
    short, longer = (rollups.of_rows(*rows(values[:size]), 64) for size in (3000, 5000))
    closed = len(short) - 1
    assert (short.start[:closed] == longer.start[:closed]).all()
    assert (short.mean()[:closed] == longer.mean()[:closed]).all()


@pytest.mark.parametrize(("keys", "width"), [(1, 1), (2000, 1), (2001, 2), (4001, 4), (1_000_000, 512)])
def test_width_gives_at_most_2000_buckets_and_no_fewer_than_needed(keys, width):
    assert rollups.width_for(keys, 2000) == width


def test_no_rows_no_buckets():
    empty = rollups.of_rows(np.zeros(0, np.int64), np.zeros((0, 2)), np.zeros((0, 3), np.float32), 64)
    assert len(empty) == len(rollups.merge(empty, 128)) == 0
