"""Name the ranks that the others wait for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_log = logging.getLogger(__name__)


class RankWatch:
    """Logs which ranks are late when this rank waits for them.

    Each rank counts its collectives, and a thread publishes the count in the store. Ranks with a
    lower count than this one are late.

    Args:
        store: Key-value store of all ranks.
        rank: This rank.
        size: Number of ranks.
        patience_s: Seconds to wait before a line is logged, once for each wait.
        every_s: Seconds between two looks.
    """

    def __init__(
        self, store: Any, rank: int, size: int, *, patience_s: float = 30.0, every_s: float = 5.0
    ) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._patience_s, self._every_s = patience_s, every_s
        self._count = 0
        self._since_s: float | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-ranks", daemon=True)
        self._thread.start()

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Count a collective, in which this rank may wait for others."""
        self._count += 1
        self._since_s = time.monotonic()
        try:
            yield
        finally:
            self._since_s = None

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join(timeout=self._every_s)  # a store without a server answers late

    def _run(self) -> None:
        published = reported = 0
        while not self._closed.wait(self._every_s):
            count, since_s = self._count, self._since_s
            try:
                if count != published:
                    self._store.set(f"collectives/{self._rank}", str(count))
                    published = count
                if since_s is None or count == reported:
                    continue
                waited_s = time.monotonic() - since_s
                late = self._late(count) if waited_s > self._patience_s else []
            except RuntimeError:  # the store ended with rank 0
                return
            if late:
                reported = count
                _log.warning(
                    "rank %d has waited %.0f s for rank %s; look at the log of that rank, or at "
                    "its data", self._rank, waited_s, ", ".join(map(str, late)),
                )  # fmt: skip

    def _late(self, count: int) -> list[int]:
        """Return the other ranks that have begun fewer collectives."""
        late = []
        for rank in range(self._size):
            key = f"collectives/{rank}"
            if rank != self._rank and (
                not self._store.check([key]) or int(self._store.get(key)) < count
            ):
                late.append(rank)
        return late
