"""Contract of a sampler."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from tests.contracts.equality import untouched_global_states


def check_sampler(sampler: Any, *, n: int, shuffles: bool, exactly_once: bool) -> None:
    """Check that a sampler is a pure function of epoch and position into ``0 .. n - 1``.

    Args:
        sampler: The sampler.
        n: Number of records.
        shuffles: Whether epochs differ.
        exactly_once: Whether an epoch is a permutation of the records.
    """
    length = len(sampler)
    with untouched_global_states():
        whole = sampler.indices(0, 0, length)
        assert whole.dtype == np.int64 and whole.shape == (length,)
        assert whole.min() >= 0 and whole.max() < n
        if exactly_once:
            assert np.array_equal(np.sort(whole), np.arange(n))
        for step in (1, 7, length):
            cuts = range(0, min(length, 50 * step), step)
            for start in cuts:
                stop = min(start + step, length)
                assert np.array_equal(sampler.indices(0, start, stop), whole[start:stop])
        assert sampler.indices(0, 3, 3).shape == (0,)
        other = sampler.indices(1, 0, length)
        assert np.array_equal(other, whole) != shuffles
        copy = pickle.loads(pickle.dumps(sampler))
        assert np.array_equal(copy.indices(1, 0, length), other)
        assert np.array_equal(sampler.indices(0, 0, length), whole), "going back to an epoch"
    assert len(pickle.dumps(sampler)) < 4_096, "tables are mapped, not pickled"
