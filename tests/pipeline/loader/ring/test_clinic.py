"""Who is examined, in which order, and that what is quarantined alone ends its process."""

from __future__ import annotations

import numpy as np

from pipeline.loader.contract import BatchTask
from pipeline.loader.ring.clinic import Clinic
from pipeline.loader.ring.process import Job


def examined(deaths, positions=(5, 6, 7, 8), known=()):
    """The positions that were computed alone, in order, and the job that is left of the batch.

    Args:
        deaths: How many processes each position ends.
        positions: Those of the batch.
        known: Those of them that are quarantined already.
    """
    left = dict(deaths)
    at = np.array(positions, np.int64)
    clinic = Clinic()
    clinic.admit(Job(3, BatchTask(0, 0, at, np.ones(at.size, np.bool_), at, quarantined=known)))
    alone = []
    while True:
        job, probe = clinic.next_order()
        if not probe:
            return alone, job
        task = job.task
        assert task.solo and task.valid.tolist() == [True] and not task.quarantined
        assert task.positions.tolist() == task.indices.tolist()
        (position,) = task.positions.tolist()
        alone.append(position)
        if left.get(position, 0):
            left[position] -= 1
            assert clinic.died() is None
        else:
            assert not clinic.survived()


def test_a_position_that_ends_two_processes_is_held_and_no_other():
    alone, job = examined({6: 2})
    assert alone == [5, 6, 6, 7, 8]
    assert job.quarantined == job.task.quarantined == (6,)


def test_deaths_of_different_positions_are_not_added_up():
    alone, job = examined({5: 1, 6: 1, 7: 2, 8: 1})
    assert alone == [5, 5, 6, 6, 7, 7, 8, 8]
    assert job.quarantined == (7,)


def test_what_padding_repeats_is_held_once_and_what_is_known_stays_held():
    alone, job = examined({6: 2}, positions=(5, 6, 7, 5, 6), known=(7,))
    assert alone == [5, 6, 6, 5]
    assert job.quarantined == (6,) and job.task.quarantined == (6, 7)
