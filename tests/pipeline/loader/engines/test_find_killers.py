"""Which positions are computed alone, in which order, and which of them are held."""

from __future__ import annotations

import numpy as np

from penstock.pipeline.loader.contract import BatchTask
from penstock.pipeline.loader.engines.watched_pool import find_killers


def examined(deaths, positions=(5, 6, 7, 8), known=()):
    """The positions that were computed alone, in order, and those that were found to kill.

    Args:
        deaths: How many processes each position ends.
        positions: Those of the batch.
        known: Those of them that are quarantined already.
    """
    left, alone = dict(deaths), []

    def survives(task):
        assert task.valid.tolist() == [True] and not task.quarantined
        assert task.positions.tolist() == task.indices.tolist()
        (position,) = task.positions.tolist()
        alone.append(position)
        left[position] = left.get(position, 0) - 1
        return left[position] < 0

    at = np.array(positions, np.int64)
    task = BatchTask(0, 0, at, np.ones(at.size, np.bool_), at, quarantined=known)
    return alone, find_killers(task, survives)


def test_a_position_that_ends_two_processes_is_held_and_no_other():
    assert examined({6: 2}) == ([5, 6, 6, 7, 8], (6,))


def test_deaths_of_different_positions_are_not_added_up():
    assert examined({5: 1, 6: 1, 7: 2, 8: 1}) == ([5, 5, 6, 6, 7, 7, 8, 8], (7,))


def test_what_padding_repeats_is_held_once_and_what_is_known_is_passed_over():
    assert examined({6: 2}, positions=(5, 6, 7, 5, 6), known=(7,)) == ([5, 6, 6, 5], (6,))
