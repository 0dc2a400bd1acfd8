"""Which position killed a worker: found by computing them one by one in a process of their own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.loader.contract import BatchTask
from pipeline.loader.ring.process import Job

_DEATHS = 2
"""A position that ends so many processes of its own is quarantined."""


@dataclass(slots=True)
class _Patient:
    """A job whose process died, and how far its examination is."""

    job: Job
    rows: deque[int]
    held: set[int] = field(default_factory=set)
    deaths: int = 0


class Clinic:
    """The jobs that were at hand when a process died, examined one after the other.

    First each position alone, without keeping what it gives; then the whole batch, without the
    positions that were quarantined.
    """

    def __init__(self) -> None:
        self._patients: deque[_Patient] = deque()

    def __bool__(self) -> bool:
        return bool(self._patients)

    @property
    def first_ticket(self) -> int:
        """The ticket of the job that is being examined."""
        return self._patients[0].job.ticket

    def admit(self, job: Job) -> None:
        """Add a job."""
        known = set(job.task.quarantined)
        rows = [row for row, at in enumerate(job.task.positions.tolist()) if at not in known]
        self._patients.append(_Patient(job, deque(rows)))

    def drop(self) -> list[Job]:
        """Forget all jobs, and say which they were."""
        jobs = [patient.job for patient in self._patients]
        self._patients.clear()
        return jobs

    def next_order(self) -> tuple[Job, bool]:
        """What to compute next, and whether only surviving matters."""
        patient = self._patients[0]
        job = patient.job
        if patient.rows:
            task = _one_row(job.task, patient.rows[0])
            return replace(job, task=task), True
        held = tuple(sorted(patient.held))
        task = replace(job.task, quarantined=tuple(sorted({*job.task.quarantined, *held})))
        return replace(job, task=task, quarantined=held), False

    def survived(self) -> bool:
        """The process survived its order; True if that was the whole batch."""
        patient = self._patients[0]
        patient.deaths = 0
        if patient.rows:
            patient.rows.popleft()
            return False
        self._patients.popleft()
        return True

    def died(self) -> Job | None:
        """The process died of its order; the job, if nothing is left to try with it."""
        patient = self._patients[0]
        patient.deaths += 1
        if patient.deaths < _DEATHS:
            return None
        patient.deaths = 0
        if not patient.rows:
            self._patients.popleft()
            return patient.job
        position = int(patient.job.task.positions[patient.rows[0]])
        patient.held.add(position)
        positions = patient.job.task.positions
        # Padding repeats positions: what is held once is held everywhere.
        patient.rows = deque(row for row in patient.rows if positions[row] != position)
        return None


def _one_row(task: BatchTask, row: int) -> BatchTask:
    rows = slice(row, row + 1)
    return replace(
        task,
        positions=task.positions[rows],
        valid=np.ones(1, np.bool_),
        indices=task.indices[rows],
        items=task.items and task.items[rows],
        quarantined=(),
        solo=True,
    )
