"""All records of a storage in order, changed on all cores while they are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from datasets.protocols import Storage
from datasets.sample import BadRecord, Record
from pipeline.cores import usable_cores

Recode = Callable[[Record], Record]
"""A record to another one, from any thread; ValueError makes a bad record of it."""

_BATCH_RECORDS = 64
# Results that wait for those before them; each may be a large image.
_AHEAD_PER_CORE = 4


def recoded(
    source: Storage, recode: Recode | None = None
) -> Generator[Record | BadRecord, None, None]:
    """Read all records of `source`, and change them.

    Args:
        source: The records.
        recode: Changes a record, on all cores, ahead of who takes the results; None: they
            stay as they are.

    Yields:
        The records in order.
    """
    if recode is None:
        yield from _records(source)
        return
    cores = usable_cores()
    waiting: deque[Future[Record | BadRecord]] = deque()
    pool = ThreadPoolExecutor(cores)
    try:
        for record in _records(source):
            waiting.append(pool.submit(_recoded, recode, record))
            if len(waiting) > _AHEAD_PER_CORE * cores:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _records(source: Storage) -> Iterator[Record | BadRecord]:
    for start in range(0, len(source), _BATCH_RECORDS):
        yield from source.read(np.arange(start, min(start + _BATCH_RECORDS, len(source))))


def _recoded(recode: Recode, record: Record | BadRecord) -> Record | BadRecord:
    if isinstance(record, BadRecord):
        return record
    try:
        return recode(record)
    except ValueError as error:
        return BadRecord(record.index, record.key, str(error))
