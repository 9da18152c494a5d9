from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.tables.dedupe import Deduplicator

KEYS = st.one_of(st.integers(0, 10), st.sampled_from([2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))
RUNS = st.lists(st.lists(KEYS, max_size=60), min_size=1, max_size=4)


def arrays(runs: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([key for run in runs for key in run], np.uint64), np.array([len(run) for run in runs], np.int64)


@settings(max_examples=100, deadline=None)
@given(st.lists(RUNS, min_size=1, max_size=3))
def test_unique_gives_the_distinct_keys_of_each_run(calls: list[list[list[int]]]) -> None:
    deduplicator = Deduplicator()  # its scratch must be clean again after each call
    for runs in calls:
        keys, counts = arrays(runs)
        unique, unique_counts, inverse = deduplicator.unique(keys, counts)
        assert np.array_equal(unique[inverse], keys)
        bounds = np.concatenate(([0], np.cumsum(unique_counts)))
        start = 0
        for t, run in enumerate(runs):
            mine = unique[bounds[t] : bounds[t + 1]].tolist()
            assert len(mine) == len(set(mine))
            assert set(mine) == set(run)
            positions = inverse[start : start + len(run)]
            assert ((positions >= bounds[t]) & (positions < bounds[t + 1])).all()
            start += len(run)


def test_scratch_memory_grows_for_many_keys_after_few() -> None:
    deduplicator, random = Deduplicator(), np.random.default_rng(0)
    for n in (10, 50_000, 3, 200_000):
        keys = random.integers(0, n, n, dtype=np.uint64)
        unique, counts, inverse = deduplicator.unique(keys, np.array([n], np.int64))
        assert counts.tolist() == [len(unique)]
        assert np.array_equal(np.sort(unique), np.unique(keys))
        assert np.array_equal(unique[inverse], keys)
