"""Measure what reading from a storage costs, in a process that opens it as a worker does."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Storage
from penstock.core.sample import BadRecord
from penstock.core.user_errors import is_explained
from penstock.pipeline.commands.bench.memory import own_bytes

BATCH = 64


class MeasureError(RuntimeError):
    """A storage could not be measured; one line."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures that one process found.

    Attributes:
        open_s: Seconds from importing the storage to its first record.
        sequential: Records a second, in order.
        random: Records a second, in batches of 64 at random.
        sequential_us: Processor time of all threads for a record read in order, microseconds.
        random_us: The same at random.
        own_bytes: By how much opening and reading all records has made the process's own memory
            grow, without pages of mapped files; None where the system does not say.
        bad: Records that cannot be read.
    """

    open_s: float
    sequential: float = 0.0
    random: float = 0.0
    sequential_us: float = 0.0
    random_us: float = 0.0
    own_bytes: int | None = None
    bad: int = 0


def open_some(make: Callable[[], Storage], rows: NDArray[np.int64]) -> Storage:
    """Open the records `rows`, int64 [n], of the storage that `make` opens."""
    from penstock.datasets.records.views import Subset

    return Subset(make(), rows)


def measure(
    storage: bytes,
    imports: Sequence[str],
    cache: str,
    *,
    seconds: float | None = None,
    seed: int = 0,
) -> Measured:
    """Measure a storage in a process of its own.

    Args:
        storage: What opens it, pickled, so that the process imports what it needs by itself.
        imports: Modules of the user's, loaded before that.
        cache: The folder of its cached indexes.
        seconds: Of measuring rates, half of them in order and half at random; None: all records
            are read once.
        seed: Of the random order.

    Raises:
        MeasureError: The storage cannot be opened or read, or the process died.
    """
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            answer = pool.submit(_answer, storage, imports, cache, seconds, seed).result()
    except BrokenProcessPool:
        raise MeasureError("its process ended") from None
    if isinstance(answer, str):
        raise MeasureError(answer)
    assert isinstance(answer, Measured)
    return answer


def _answer(
    storage: bytes, imports: Sequence[str], cache: str, seconds: float | None, seed: int
) -> Measured | str:
    """Measure in this process; what goes wrong as one line."""
    os.environ["XDG_CACHE_HOME"] = cache
    try:
        if imports:
            from penstock.pipeline.config.components import load_imports

            load_imports(imports)
        return _measured(storage, seconds, seed)
    except Exception as error:
        said = str(error).strip().splitlines() or [""]
        known = isinstance(error, (ValueError, OSError)) and is_explained(error)
        return said[-1] if known else f"{type(error).__name__}: {said[-1]}"


def _measured(recipe: bytes, seconds: float | None, seed: int) -> Measured:
    before = own_bytes()
    start = time.perf_counter()
    storage: Storage = pickle.loads(recipe)()
    count = len(storage)
    read_batch(storage, np.zeros(1, np.int64))
    open_s = time.perf_counter() - start
    rows = np.arange(count)
    if seconds is None:
        bad = sum(read_batch(storage, rows[at : at + BATCH]) for at in range(0, count, BATCH))
        after = own_bytes()
        own = None if before is None or after is None else max(0, after - before)
        return Measured(open_s, own_bytes=own, bad=bad)
    shuffled = np.random.default_rng(seed).permutation(count)
    sequential, sequential_us = rate(storage, rows, seconds / 2)
    random, random_us = rate(storage, shuffled, seconds / 2)
    return Measured(open_s, sequential, random, sequential_us, random_us)


def rate(storage: Storage, rows: NDArray[np.int64], seconds: float) -> tuple[float, float]:
    """Read batches of `rows`, again and again, after two that warm up.

    Args:
        storage: What is read.
        rows: int64 [n], in the order in which they are read.
        seconds: For how long.

    Returns:
        Records a second, and microseconds of processor time for each.
    """
    batches = [rows[at : at + BATCH] for at in range(0, len(rows), BATCH)]
    for batch in batches[:2]:
        read_batch(storage, batch)
    done, number = 0, 0
    start, processor = time.perf_counter(), time.process_time()
    while True:
        batch = batches[number % len(batches)]
        read_batch(storage, batch)
        done, number = done + len(batch), number + 1
        if (passed := time.perf_counter() - start) >= seconds:
            return done / passed, (time.process_time() - processor) / done * 1e6


def read_batch(storage: Storage, rows: NDArray[np.int64]) -> int:
    """Read records, and copy once what is only a view of a mapped file, as a batch would.

    Returns:
        How many of them cannot be read.
    """
    bad = 0
    for record in storage.read(rows):
        if isinstance(record, BadRecord):
            bad += 1
            continue
        for value in record.fields.values():
            if isinstance(value, np.ndarray) and not value.flags.owndata:
                value.copy()
            elif isinstance(value, memoryview):
                bytes(value)
    return bad
