"""Contract of a transform of a sample."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np

from penstock.core.contracts import Transform
from penstock.core.rng import KeyedRng
from penstock.core.sample import Sample
from tests.contracts.equality import assert_same, seed_globals, untouched_global_states


def apply_at(transform: Transform, sample: Sample, position: int) -> Sample:
    return transform(sample, KeyedRng().at(seed=7, epoch=3, position=position))


def apply_all(transform: Transform, samples: list[Sample], positions: list[int]) -> list[Sample]:
    """Apply a transform with one generator for all positions, as a worker does."""
    rng = KeyedRng()
    return [transform(copy.deepcopy(samples[p % len(samples)]), rng.at(7, 3, p)) for p in positions]


def check_transform(
    transform: Transform,
    samples: list[Sample],
    *,
    positions: int = 24,
    draws: bool = True,
    start_method: str | None = None,
) -> list[Sample]:
    """Check that a transform is a function of (sample, rng) alone.

    Args:
        transform: The transform.
        samples: Samples to put through it.
        positions: How many positions to try.
        draws: Whether two positions give the same sample different pixels.
        start_method: Start method of another process to compare with.

    Returns:
        The samples at positions 0, 1, ...
    """
    order = list(range(positions))
    seed_globals(1)
    with untouched_global_states():
        expected = apply_all(transform, samples, order)
    seed_globals(2)
    assert_same(apply_all(transform, samples, order), expected, "with other global seeds")
    backwards = apply_all(transform, samples, order[::-1])
    assert_same(backwards[::-1], expected, "in another order")
    alone = [apply_at(transform, samples[p % len(samples)], p) for p in order]
    assert_same(alone, expected, "each with a generator of its own")
    again: Any = pickle.loads(pickle.dumps(transform))
    assert_same(apply_all(again, samples, order), expected, "pickled")
    _check_threads(transform, samples, expected)
    _check_input_is_left_alone(transform, samples)
    if draws:
        first = [apply_at(transform, samples[0], p) for p in order]
        assert len({pickle.dumps(s["image"]) for s in first}) > 1, "every position draws the same"
    if start_method:
        context = multiprocessing.get_context(start_method)
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            there = pool.submit(apply_all, transform, samples, order).result()
        assert_same(there, expected, f"in a process started by {start_method}")
    return expected


def _check_threads(transform: Transform, samples: list[Sample], expected: list[Sample]) -> None:
    barrier = threading.Barrier(4)

    def work(shift: int) -> list[Sample]:
        barrier.wait()
        order = [(p + shift) % len(expected) for p in range(len(expected))]
        done = dict(zip(order, apply_all(transform, samples, order), strict=True))
        return [done[p] for p in range(len(expected))]

    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(work, range(4)):
            assert_same(result, expected, "in threads")


def _check_input_is_left_alone(transform: Transform, samples: list[Sample]) -> None:
    for position, sample in enumerate(samples):
        before = copy.deepcopy(sample)
        frozen = copy.deepcopy(sample)
        for value in frozen.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
        apply_at(transform, frozen, position)
        assert_same(frozen, before, "the transform changed its input")
