"""Records of a storage in order, changed on several threads while they are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from datasets.protocols import Storage
from datasets.sample import BadRecord, Record

Recode = Callable[[Record], Record]
"""A record to another one, from any thread; ValueError makes a bad record of it."""

_BATCH_RECORDS = 64
# Results that wait for those before them; each may be a large image.
_AHEAD_PER_THREAD = 4


def recoded(
    source: Storage,
    recode: Recode | None = None,
    *,
    start: int = 0,
    stop: int | None = None,
    threads: int = 1,
) -> Generator[Record | BadRecord, None, None]:
    """Read records of `source`, and change them.

    Args:
        source: The records.
        recode: Changes a record; None: they stay as they are.
        start: The first record.
        stop: The record behind the last; None: all.
        threads: How many change records, ahead of who takes the results.

    Yields:
        The records in order.
    """
    records = _records(source, start, len(source) if stop is None else stop)
    if recode is None:
        yield from records
        return
    if threads == 1:
        for record in records:
            yield _recoded(recode, record)
        return
    waiting: deque[Future[Record | BadRecord]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for record in records:
            waiting.append(pool.submit(_recoded, recode, record))
            if len(waiting) > _AHEAD_PER_THREAD * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _records(source: Storage, start: int, stop: int) -> Iterator[Record | BadRecord]:
    for first in range(start, stop, _BATCH_RECORDS):
        yield from source.read(np.arange(first, min(first + _BATCH_RECORDS, stop)))


def _recoded(recode: Recode, record: Record | BadRecord) -> Record | BadRecord:
    if isinstance(record, BadRecord):
        return record
    try:
        return recode(record)
    except ValueError as error:
        return BadRecord(record.index, record.key, str(error))
