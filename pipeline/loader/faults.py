"""Bad samples: replace, count, log and list them, and stop when there are too many."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.files import locked
from penstock.core.rng import KeyedRng, Stream
from penstock.core.sample import BadSample, Sample
from penstock.pipeline.loader.contract import BatchTask, Fault

if TYPE_CHECKING:
    from penstock.core.contracts import Dataset, Sampler

_logger = logging.getLogger(__name__)

OnError = Literal["raise", "replace", "skip"]

MAX_ATTEMPTS = 8
"""Replacements tried for one bad sample."""
_BLOCK = 4_096
_BLOCKS = 8
_FEWEST = 1_000
_FEWEST_BAD = 10
"""Rates are taken over at least `_FEWEST` samples, so that one early bad sample stops nothing."""


class BadSampleError(ValueError):
    """A bad sample cannot be replaced or skipped, or too many samples are bad."""


@dataclass(frozen=True, slots=True)
class Replacer:
    """Find another record for a position whose record is bad.

    The record comes from another position of the epoch, drawn from (seed, epoch, position,
    attempt), so every worker finds the same record. It gets the augmentation of the bad position.
    The first half of the attempts take a record with equal values in the index columns `same`.
    """

    dataset: Dataset
    sampler: Sampler
    seed: int
    same: Sequence[str] = ()

    def replace(self, bad: BadSample, task: BatchTask) -> tuple[Sample, int]:
        """Return a sample and its record for the position of `bad`, or raise BadSampleError."""
        position = np.array([bad.position], np.int64)
        for index in self._candidates(bad, task.epoch):
            if index == bad.index or index in task.banned:
                continue
            sample = self.dataset.fetch(np.array([index], np.int64), position, task.epoch)[0]
            if not isinstance(sample, BadSample):
                return sample, index
        raise BadSampleError(
            f"{bad}; {MAX_ATTEMPTS} records drawn to replace it are bad as well: check the data "
            f"and dataset.decode"
        )

    def _candidates(self, bad: BadSample, epoch: int) -> Iterator[int]:
        length = len(self.sampler)
        rng = KeyedRng()
        for attempt in range(MAX_ATTEMPTS):
            draws = rng.at(self.seed, epoch, bad.position, Stream.REPLACE, attempt)
            starts = draws.integers(0, length, _BLOCKS)
            alike = None
            if self.same and attempt < MAX_ATTEMPTS // 2:
                alike = self._alike(bad.index, epoch, starts)
            any_one = int(self.sampler.indices(epoch, starts[0], starts[0] + 1)[0])
            yield any_one if alike is None else alike

    def _alike(self, index: int, epoch: int, starts: NDArray[np.int64]) -> int | None:
        """Return the first other record with equal columns, searching from the drawn positions."""
        values = [self.dataset.index.column(column) for column in self.same]
        for start in starts.tolist():
            stop = min(start + _BLOCK, len(self.sampler))
            records = self.sampler.indices(epoch, start, stop)
            equal = [column[records] == column[index] for column in values]
            alike = np.flatnonzero(np.logical_and.reduce(equal) & (records != index))
            if alike.size:
                return int(records[alike[0]])
        return None


class BadSampleLog:
    """Count, log and list bad samples; raise BadSampleError when there are too many.

    Fewer than 10 bad samples never stop a run. The rate is taken over at least 1,000 samples until
    the epoch ends, then over those seen. With `max_error_rate` 0 the first bad sample stops the
    run. The list is a CSV file that several processes share; a resumed run lists a sample again.
    """

    def __init__(self, path: Path | None, *, split: str, max_error_rate: float) -> None:
        self.count = 0
        self._path = path
        self._split = split
        self._max_error_rate = max_error_rate
        self._positions = 0
        self._logged: set[tuple[str, str]] = set()
        self._last: Fault

    def add(self, faults: tuple[Fault, ...], positions: int) -> None:
        """Add the faults of one batch with `positions` valid positions."""
        self._positions += positions
        if not faults:
            return
        self.count += len(faults)
        for fault in faults:
            self._log(fault)
        if self._path is not None:
            self._list(self._path, faults)
        self._last = faults[-1]
        self._check(max(self._positions, _FEWEST))

    def end_epoch(self) -> None:
        """Check the rate over all samples seen so far."""
        self._check(self._positions)

    def _log(self, fault: Fault) -> None:
        name = (fault.storage, fault.key)
        if name not in self._logged:
            self._logged.add(name)
            where = f"position {fault.position} of epoch {fault.epoch}"
            said = f"{fault.storage}: {fault.key!r} at {where}: {fault.cause}; {fault.action}"
            _logger.warning("bad sample: %s", said)

    def _list(self, path: Path, faults: tuple[Fault, ...]) -> None:
        """Append one line a fault, and the header before the first."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path), path.open("a", encoding="utf-8", errors="replace", newline="") as file:
            writer = csv.writer(file)
            if not file.tell():
                writer.writerow([*(field.name for field in fields(Fault)), "split"])
            for fault in faults:
                line = replace(fault, cause=" ".join(fault.cause.split()))
                writer.writerow([*astuple(line), self._split])

    def _check(self, positions: int) -> None:
        tolerated = _FEWEST_BAD - 1 if self._max_error_rate else 0
        if self.count <= max(tolerated, self._max_error_rate * positions):
            return
        where = f" (listed in {self._path})" if self._path else ""
        last = self._last
        raise BadSampleError(
            f"{self.count} of {self._positions} samples are bad{where}: repair the data, or raise "
            f"loader.max_error_rate={self._max_error_rate:g} to allow as many; "
            f"the last one: {last.storage}: {last.key!r}: {last.cause}"
        )
