"""Bad samples as the consumer sees them: counted, logged once, listed, and too many."""

from __future__ import annotations

import csv
import logging
from dataclasses import astuple, fields
from pathlib import Path

from pipeline.loader.contract import Fault
from pipeline.loader.faults import BadSampleError

_logger = logging.getLogger(__name__)

_FEWEST = 1_000
_FEWEST_BAD = 10
"""The rate is taken over at least so many samples, so that an early bad one stops nothing."""


class BadSampleLog:
    """Counts, logs and lists bad samples, and says when there are too many.

    Fewer than 10 bad samples stop nothing, and while the first 1,000 samples come in, the rest
    of the 1,000 count as good; at the end of an epoch the rate is that of what was really seen.
    With a `max_error_rate` of 0 the first bad sample stops the run.

    Args:
        path: The ``bad_samples.csv`` to append to, or None. Rows that stand there already
            (a batch that is computed again after resuming) are not added again.
        max_error_rate: Share of bad samples above which `BadSampleError` is raised.
    """

    def __init__(self, path: Path | None, *, max_error_rate: float) -> None:
        self.count = 0
        self._path = path
        self._max_error_rate = max_error_rate
        self._positions = 0
        self._logged: set[tuple[str, str]] = set()
        self._listed: set[tuple[str, str]] | None = None
        self._last: Fault | None = None

    def add(self, faults: tuple[Fault, ...], positions: int) -> None:
        """Take the faults of one batch and the number of samples asked for in it.

        Raises:
            BadSampleError: Too many samples are bad.
        """
        self._positions += positions
        if not faults:
            return
        self.count += len(faults)
        self._last = faults[-1]
        for fault in faults:
            self._log(fault)
        self._append(faults)
        self._check(max(self._positions, _FEWEST))

    def end_epoch(self) -> None:
        """Check the rate over all that was seen.

        Raises:
            BadSampleError: Too many samples are bad.
        """
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

    def _append(self, faults: tuple[Fault, ...]) -> None:
        if self._path is None:
            return
        if self._listed is None:
            self._listed = self._read_listed(self._path)
        is_new = not self._path.exists()
        with open(self._path, "a", newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = csv.writer(file)
            if is_new:
                rows.writerow(field.name for field in fields(Fault))
            for fault in faults:
                name = (str(fault.epoch), str(fault.position))
                if name not in self._listed:
                    self._listed.add(name)
                    rows.writerow(astuple(fault))

    @staticmethod
    def _read_listed(path: Path) -> set[tuple[str, str]]:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            return set()
        with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = csv.DictReader(file)
            return {(row["epoch"], row["position"]) for row in rows}

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
