"""Bad samples: replace, count, log and list them, and stop when there are too many."""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.files import locked
from penstock.core.rng import KeyedRng, Stream
from penstock.core.sample import BadSample, Sample
from penstock.pipeline.loader.contract import Fault

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
_COLUMNS = (*(field.name for field in fields(Fault)), "split")
_IDENTITY = [_COLUMNS.index(name) for name in ("split", "epoch", "position", "key")]
_ROW_END = b"\r\n"


class BadSampleError(ValueError):
    """A bad sample cannot be replaced or skipped, or too many samples are bad."""


class Replacer:
    """Find another record for a position whose record is bad.

    The record comes from another position of the epoch, drawn from (seed, epoch, position,
    attempt), so every worker finds the same record. It gets the augmentation of the bad position.
    The first half of the attempts take a record with equal values in the index columns `same`.
    """

    def __init__(
        self, dataset: Dataset, sampler: Sampler, seed: int, *, same: Sequence[str] = ()
    ) -> None:
        self._dataset = dataset
        self._sampler = sampler
        self._seed = seed
        self._same = same

    def replace(self, bad: BadSample, epoch: int) -> tuple[Sample, int]:
        """Return a sample and its record for the position of `bad`, or raise BadSampleError."""
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
        length = len(self._sampler)
        rng = KeyedRng()
        for attempt in range(MAX_ATTEMPTS):
            draws = rng.at(self._seed, epoch, bad.position, Stream.REPLACE, attempt)
            starts = draws.integers(0, length, _BLOCKS)
            found = None
            if self._same and attempt < MAX_ATTEMPTS // 2:
                found = self._alike(bad.index, epoch, starts)
            if found is None:
                found = int(self._sampler.indices(epoch, starts[0], starts[0] + 1)[0])
            yield found

    def _alike(self, index: int, epoch: int, starts: NDArray[np.int64]) -> int | None:
        """Return the first other record with equal columns, searching from the drawn positions."""
        values = [self._dataset.index.column(column) for column in self._same]
        for start in starts.tolist():
            stop = min(start + _BLOCK, len(self._sampler))
            records = self._sampler.indices(epoch, start, stop)
            equal = [column[records] == column[index] for column in values]
            alike = np.flatnonzero(np.logical_and.reduce(equal) & (records != index))
            if alike.size:
                return int(records[alike[0]])
        return None


class BadSampleLog:
    """Count, log and list bad samples; raise BadSampleError when there are too many.

    Fewer than 10 bad samples never stop a run. The rate is taken over at least 1,000 samples until
    the epoch ends, then over those seen. With `max_error_rate` 0 the first bad sample stops the
    run.
    """

    def __init__(self, path: Path | None, *, split: str, max_error_rate: float) -> None:
        self.count = 0
        self._path = path
        self._list = BadSampleList(path, split=split) if path else None
        self._max_error_rate = max_error_rate
        self._positions = 0
        self._logged: set[tuple[str, str]] = set()
        self._last: Fault | None = None

    def add(self, faults: tuple[Fault, ...], positions: int) -> None:
        """Add the faults of one batch with `positions` valid positions."""
        self._positions += positions
        if not faults:
            return
        self.count += len(faults)
        self._last = faults[-1]
        for fault in faults:
            self._log(fault)
        if self._list is not None:
            self._list.add(faults)
        self._check(max(self._positions, _FEWEST))

    def end_epoch(self) -> None:
        """Check the rate over all samples seen so far."""
        if self.count:
            self._check(self._positions)

    def _log(self, fault: Fault) -> None:
        name = (fault.storage, fault.key)
        if name in self._logged:
            return
        self._logged.add(name)
        _logger.warning(
            "bad sample: %s: %r at position %d of epoch %d: %s; %s",
            fault.storage, fault.key, fault.position, fault.epoch, fault.cause, fault.action,
        )  # fmt: skip

    def _check(self, positions: int) -> None:
        tolerated = _FEWEST_BAD - 1 if self._max_error_rate else 0
        if self.count <= max(tolerated, self._max_error_rate * positions):
            return
        where = f" (listed in {self._path})" if self._path else ""
        last = self._last
        assert last is not None
        raise BadSampleError(
            f"{self.count} of {self._positions} samples are bad, more than "
            f"loader.max_error_rate={self._max_error_rate:g} allows{where}; the last one: "
            f"{last.storage}: {last.key!r}: {last.cause}; repair the data or raise "
            f"loader.max_error_rate"
        )


class BadSampleList:
    """Append bad samples to a CSV file that several processes share, without repeats.

    A row is one line, and each batch is one write. A missing header or a truncated row, as left by
    a killed process or a full disk, is repaired.
    """

    def __init__(self, path: Path, *, split: str) -> None:
        self._path = path
        self._split = split
        self._listed: set[tuple[str, ...]] | None = None

    def add(self, faults: tuple[Fault, ...]) -> None:
        """Append the faults that the file does not list yet."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self._path), open(self._path, "ab+", buffering=0) as file:
            if self._listed is None:
                self._listed = _read_listed(file)
            rows = self._new_rows(faults, self._listed)
            if rows:
                _write(file, _beginning(file) + rows)

    def _new_rows(self, faults: tuple[Fault, ...], listed: set[tuple[str, ...]]) -> bytes:
        rows = []
        for fault in faults:
            line = replace(fault, cause=" ".join(fault.cause.split()))
            row = tuple(map(str, (*astuple(line), self._split)))
            if (name := _identity(row)) not in listed:
                listed.add(name)
                rows.append(row)
        return _encoded(rows)


def _identity(row: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(row[column] for column in _IDENTITY)


def _encoded(rows: list[tuple[str, ...]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=_ROW_END.decode()).writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


def _beginning(file: IO[bytes]) -> bytes:
    """Return the bytes needed before the next row: a header, an end of line, or none."""
    size = file.seek(0, os.SEEK_END)
    if not size:
        return _encoded([_COLUMNS])
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return b""
    file.seek(0)
    cut = file.read().rpartition(b"\n")[2]
    return b'"' * (cut.count(b'"') % 2) + _ROW_END


def _write(file: IO[bytes], data: bytes) -> None:
    while data:  # repeats only on a full disk
        data = data[file.write(data) :]


def _read_listed(file: IO[bytes]) -> set[tuple[str, ...]]:
    """Return the readable rows. Each line is parsed alone: a truncated row spoils no other."""
    file.seek(0)
    listed = set()
    for line in file.read().decode("utf-8", "surrogateescape").split("\n"):
        with contextlib.suppress(csv.Error):
            row = tuple(next(csv.reader([line]), ()))
            if len(row) == len(_COLUMNS):
                listed.add(_identity(row))
    return listed
