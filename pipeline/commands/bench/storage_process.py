"""A process that opens a storage as a worker does, and measures what reading from it costs."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datasets.protocols import Storage
from datasets.sample import BadRecord
from pipeline.blame import is_explained
from pipeline.loader.starting import interrupts_held, process_context
from pipeline.loader.watch import ending_of

BATCH = 64


class MeasureError(RuntimeError):
    """A storage could not be measured; one line."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a process does.

    Attributes:
        storage: What opens it, pickled, so that the process imports what it needs by itself.
        imports: Modules of the user's, loaded before that.
        cache: The folder of its cached indexes.
        what: ``first`` reads all records once; ``round`` measures rates.
        seconds: Of a round, half of it in order and half at random.
        seed: Of the random order.
    """

    storage: bytes
    imports: Sequence[str]
    cache: str
    what: Literal["first", "round"]
    seconds: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """What one process found.

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


@dataclass(frozen=True, slots=True)
class OpenSome:
    """Opens some records of a storage.

    Attributes:
        make: Opens the storage.
        rows: int64 [n], which of its records.
    """

    make: Callable[[], Storage]
    rows: NDArray[np.int64]

    def __call__(self) -> Storage:
        """Open it."""
        from datasets.subset import Subset

        return Subset(self.make(), self.rows)


def opener(make: Callable[[], Storage]) -> bytes:
    """What a process unpickles and calls to open a storage."""
    return pickle.dumps(make)


def measure(job: Job) -> Measured:
    """Do a job in a process of its own.

    Raises:
        MeasureError: The storage cannot be opened or read, or the process died.
    """
    context = process_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, job), daemon=True)
    with ours:
        try:
            with interrupts_held():
                process.start()
            theirs.close()
            connection.wait([ours, process.sentinel])
            try:
                answer = ours.recv()
            except EOFError:
                process.join()
                how = ending_of(process.exitcode or 0)
                raise MeasureError(f"its process ended ({how})") from None
        finally:
            if process.pid is not None:
                process.kill()
                process.join()
    if isinstance(answer, str):
        raise MeasureError(answer)
    assert isinstance(answer, Measured)
    return answer


def _serve(theirs: Any, job: Job) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["XDG_CACHE_HOME"] = job.cache
    try:
        answer: Measured | str = _do(job)
    except Exception as error:
        said = str(error).strip().splitlines() or [""]
        known = isinstance(error, (ValueError, OSError)) and is_explained(error)
        answer = said[-1] if known else f"{type(error).__name__}: {said[-1]}"
    try:
        theirs.send(answer)
    except BrokenPipeError:  # nobody asks any more
        return


def _do(job: Job) -> Measured:
    if job.imports:
        from pipeline.config.discovery import load_imports

        load_imports(job.imports)
    before = own_bytes()
    start = time.perf_counter()
    storage: Storage = pickle.loads(job.storage)()
    count = len(storage)
    read_batch(storage, np.zeros(1, np.int64))
    open_s = time.perf_counter() - start
    rows = np.arange(count)
    if job.what == "first":
        bad = sum(read_batch(storage, rows[at : at + BATCH]) for at in range(0, count, BATCH))
        after = own_bytes()
        own = None if before is None or after is None else max(0, after - before)
        return Measured(open_s, own_bytes=own, bad=bad)
    shuffled = np.random.default_rng(job.seed).permutation(count)
    sequential, sequential_us = rate(storage, rows, job.seconds / 2)
    random, random_us = rate(storage, shuffled, job.seconds / 2)
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


def own_bytes(process: Path = Path("/proc/self")) -> int | None:
    """Memory that a process has for itself alone, which nothing could take from it: no file's.

    Returns:
        Bytes; None where the system does not say (it is no Linux).
    """
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith(("Private_Dirty:", "SwapPss:"))]
    return sum(int(parts[1]) for parts in found) * 1024
