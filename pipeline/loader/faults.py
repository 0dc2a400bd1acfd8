"""What happens to a bad sample while its batch is computed: raise, replace or skip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from datasets.sample import BadSample, Sample
from pipeline.rng import KeyedRng, Stream

if TYPE_CHECKING:
    from datasets.protocols import Dataset, Sampler

OnError = Literal["raise", "replace", "skip"]

MAX_ATTEMPTS = 8
"""Replacements tried for one bad sample."""

_BLOCK = 4_096
_BLOCKS = 8


class BadSampleError(ValueError):
    """A sample that cannot be had, where that may not be passed over."""


class Replacer:
    """Finds another record for a position whose own is bad.

    The record is that of another position of the epoch, drawn from (seed, epoch, position,
    attempt), so the same one is found wherever and whenever the batch is computed. It gets
    the augmentation of the position where it is put.

    Args:
        dataset: Where samples come from.
        sampler: Which record stands at a position. If it has an attribute `same`, the name of
            an index column or several, the first half of the attempts take a record of the same
            values.
        seed: The run's seed.
    """

    def __init__(self, dataset: Dataset, sampler: Sampler, seed: int) -> None:
        self._dataset = dataset
        self._sampler = sampler
        self._seed = seed

    def replace(self, bad: BadSample, epoch: int) -> tuple[Sample, int]:
        """A sample for the position of `bad`, and the record it is of.

        Raises:
            BadSampleError: Every attempt met a bad record.
        """
        position = np.array([bad.position], np.int64)
        for index in self._candidates(bad, epoch):
            sample = self._dataset.fetch(np.array([index], np.int64), position, epoch)[0]
            if not isinstance(sample, BadSample):
                return sample, index
        raise BadSampleError(
            f"{bad}; {MAX_ATTEMPTS} records drawn to replace it are bad as well: check the data "
            f"and dataset.decode"
        )

    def _candidates(self, bad: BadSample, epoch: int) -> Iterator[int]:
        """One record per attempt."""
        same = getattr(self._sampler, "same", None)
        columns = (same,) if isinstance(same, str) else tuple(same or ())
        length = len(self._sampler)
        rng = KeyedRng()
        for attempt in range(MAX_ATTEMPTS):
            draws = rng.at(self._seed, epoch, bad.position, Stream.REPLACE, attempt)
            starts = draws.integers(0, length, _BLOCKS)
            found = None
            if columns and attempt < MAX_ATTEMPTS // 2:
                found = self._alike(columns, bad.index, epoch, starts)
            if found is None:
                found = int(self._sampler.indices(epoch, starts[0], starts[0] + 1)[0])
            yield found

    def _alike(
        self, columns: Sequence[str], index: int, epoch: int, starts: NDArray[np.int64]
    ) -> int | None:
        """The first other record of equal `columns`, from drawn positions onwards."""
        values = [self._dataset.index.column(column) for column in columns]
        for start in starts.tolist():
            stop = min(start + _BLOCK, len(self._sampler))
            records = self._sampler.indices(epoch, start, stop)
            equal = [column[records] == column[index] for column in values]
            alike = np.flatnonzero(np.logical_and.reduce(equal) & (records != index))
            if alike.size:
                return int(records[alike[0]])
        return None
