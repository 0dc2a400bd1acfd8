"""What a worker process answered, as a delivery of this process."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeline.loader.bundles import rows_of_bundle
from pipeline.loader.contract import Delivery
from pipeline.loader.ring.board import Board
from pipeline.loader.ring.child import Answer
from pipeline.loader.ring.packing import unpack
from pipeline.loader.ring.process import Job
from pipeline.loader.ring.slabs import locked
from pipeline.loader.ring.slots import SlotPool
from pipeline.loader.worker import Failure

if TYPE_CHECKING:
    from pipeline.loader.host_memory import HostMemory


@dataclass(frozen=True, slots=True)
class Finished:
    """A job whose answer lies in its slot."""

    job: Job
    answer: Answer


def give_back(job: Job, slots: SlotPool) -> None:
    """Take a job's slot from it, and let it be used again."""
    slot, job.slot = job.slot, None
    if slot is not None:
        slots.give_back(slot)


class Inbox:
    """What the processes of a crew answered, taken by the consumer in the order of its tasks.

    Args:
        board: Where answers are laid down, as `Finished`, or a `Failure` in place of one.
        slots: Where the batches lie.
        locks: Page-locks what lies elsewhere, for copies to a device.

    Attributes:
        rows_together: How many rows of small batches are best computed at once; 0 as long as
            nobody has told how large they are.
    """

    def __init__(self, board: Board, slots: SlotPool, locks: HostMemory | None) -> None:
        self.rows_together = 0
        self._board = board
        self._slots = slots
        self._locks = locks
        self._untaken: dict[int, Delivery | Failure] = {}

    def take(self, ticket: int, timeout_s: float) -> Delivery | None:
        """The delivery of a ticket, or None if it does not come in time.

        What was computed with it is kept for its own tickets.

        Raises:
            Exception: What the computation raised, or what ended the crew.
        """
        outcome = self._untaken.pop(ticket, None)
        if outcome is None:
            outcome = self._board.take(ticket, timeout_s)
        if isinstance(outcome, Finished):
            self.rows_together = rows_of_bundle(outcome.answer.row_bytes)
            others = [other for other, _ in outcome.job.others]
            outcome, *rest = _received(outcome, self._slots, self._locks)
            self._untaken = dict(zip(others, rest, strict=False))
        if isinstance(outcome, Failure):
            outcome.raise_error()
        return outcome

    def clear(self) -> None:
        """Leave all that was answered aside."""
        self._untaken.clear()
        for outcome in self._board.clear():
            if isinstance(outcome, Finished):
                give_back(outcome.job, self._slots)


def _received(
    finished: Finished, slots: SlotPool, locks: HostMemory | None
) -> list[Delivery | Failure]:
    """What each task of a job gave, up to the first that failed.

    Tensors are views of the slot, which comes back when all of them are gone.
    """
    job, answer = finished.job, finished.answer
    memory = slots.lease(job.slot, answer.size_bytes) if job.slot and answer.size_bytes else None
    if memory is None:
        give_back(job, slots)
    held = tuple((job.task.epoch, position) for position in job.quarantined)
    outcomes: list[Delivery | Failure] = pickle.loads(answer.body)
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, Delivery):
            batch = outcome.batch and unpack(outcome.batch, memory)
            delivery = replace(outcome, batch=batch, quarantined=held)
            outcomes[number] = locked(delivery, locks) if locks else delivery
    return outcomes
