"""What a worker process answered, as a delivery of this process."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeline.loader.contract import Delivery
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


def received(finished: Finished, slots: SlotPool, locks: HostMemory | None) -> Delivery:
    """The delivery, its tensors views of the slot, which comes back when they are gone.

    Raises:
        Exception: What the computation raised.
    """
    job, answer = finished.job, finished.answer
    memory = slots.lease(job.slot, answer.size_bytes) if job.slot and answer.size_bytes else None
    if memory is None:
        give_back(job, slots)
    delivery = pickle.loads(answer.body)
    if isinstance(delivery, Failure):
        delivery.raise_error()
    batch = delivery.batch and unpack(delivery.batch, memory)
    held = tuple((job.task.epoch, position) for position in job.quarantined)
    delivery = replace(delivery, batch=batch, quarantined=held)
    return locked(delivery, locks) if locks else delivery
