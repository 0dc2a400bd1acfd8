"""The floor: what the data costs if nothing is done but what cannot be avoided."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from datasets.sample import Record
from pipeline.commands.bench.subject import Round


class Floor:
    """Repeats the unavoidable work on as many threads as there are workers.

    Args:
        text: What is done, as the user is told.
        works: Each does the work of so many samples: pairs of a function and a number.
        threads: How many threads share them.
    """

    def __init__(
        self, text: str, works: Sequence[tuple[Callable[[], Any], int]], threads: int
    ) -> None:
        self.text = f"{text}, {threads} thread{'s' if threads > 1 else ''}"
        self._works = works
        self._threads = threads

    def round(self, seconds: float) -> Round:
        """Do it again and again."""
        start = time.perf_counter()
        deadline = start + seconds

        def repeat(first: int) -> int:
            samples, at = 0, first
            while time.perf_counter() < deadline or not samples:
                work, count = self._works[at % len(self._works)]
                work()
                samples, at = samples + count, at + self._threads
            return samples

        with ThreadPoolExecutor(self._threads, "penstock-floor") as pool:
            samples = sum(pool.map(repeat, range(self._threads)))
        return Round(samples, time.perf_counter() - start)


def floor_of(decoder: Any, records: Sequence[Record], batch: Any, threads: int) -> Floor | None:
    """The floor of a data set.

    Args:
        decoder: One with a method `decode` takes bytes; then whole decoding is the floor.
        records: Some records, held in memory.
        batch: A host batch; where nothing is decoded, copying one is the floor.
        threads: How many threads do it.

    Returns:
        None where there is nothing to compare with.
    """
    decode = getattr(decoder, "decode", None)
    works = [] if decode is None else [_decoding(decode, record) for record in records]
    works = [work for work in works if work is not None]
    if works:
        return Floor("the same files only decoded whole", works, threads)
    tensors = [value for value in batch.values() if hasattr(value, "clone")]
    if decode is not None or not tensors:
        return None

    def copy() -> None:
        for tensor in tensors:
            tensor.clone()

    return Floor("batches of this size only copied", [(copy, len(batch["valid"]))],
                 threads)  # fmt: skip


def _decoding(decode: Any, record: Record) -> Any:
    """The decoding of a record, if it can be decoded."""
    data = record.fields.get("image")
    try:
        data = bytes(data)  # type: ignore[arg-type]
        decode(data)
    except (ValueError, TypeError):
        return None
    return (lambda: decode(data)), 1
