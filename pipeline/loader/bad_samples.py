"""Bad samples as the consumer sees them: counted, logged once, listed, and too many."""

from __future__ import annotations

import logging
from pathlib import Path

from pipeline.loader.bad_sample_list import BadSampleList
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
        split: Whose samples these are, ``train`` or ``val``.
        max_error_rate: Share of bad samples above which `BadSampleError` is raised.
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
        if self._list is not None:
            self._list.add(faults)
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
