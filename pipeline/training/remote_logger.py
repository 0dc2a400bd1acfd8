"""Call a logger that writes to a service from a thread, so that training never waits for it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.core.contracts import Logger
from penstock.datasets.files.passwords import masked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)

PATIENCE_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_MOST_WAITING = 10_000


class RemoteLogger(Logger):
    """Hands calls to a logger from a thread of its own, in their order.

    One that fails is tried again until it succeeds, or the run ends. The first failure is a
    warning, and what did not arrive by the end is another.

    Args:
        logger: Writes to a service.
        name: Of the logger in the config.
        patience_s: How long a checkpoint, and the end of the run, wait for the service.
    """

    def __init__(self, logger: Logger, name: str, *, patience_s: float = PATIENCE_S) -> None:
        self._logger, self._name, self._patience_s = logger, name, patience_s
        self.draws = logger.draws
        self._waiting: deque[Callable[[], None]] = deque()
        self._lost = 0
        self._warned = self._fails = self._ends = False
        self._changed = threading.Condition()
        # A daemon: where the service hangs, the program ends all the same.
        self._thread = threading.Thread(target=self._work, name=f"logger {name}", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Open the run, without the thread."""
        self._logger.begin()

    def failed(self) -> None:
        """Have the run marked as failed."""
        self._add(self._logger.failed)

    def picture(self, step: int, name: str, picture: NDArray[np.uint8]) -> None:
        """Have a picture logged."""
        self._add(self._logger.picture, step, name, picture)

    def log(self, step: int, values: dict[str, float]) -> None:
        """Have the values of one step written."""
        self._add(self._logger.log, step, values)

    def state_dict(self) -> dict[str, Any]:
        """The logger's place, once all is written; of a service that fails, as it is."""
        with self._changed:
            self._changed.wait_for(lambda: self._fails or not self._waiting, self._patience_s)
        return self._logger.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the logger go on from a checkpoint."""
        self._logger.load_state_dict(state)

    def close(self) -> None:
        """Write what waits, once more where it failed before, and close."""
        self._add(self._logger.close)
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join(self._patience_s)
        if left := len(self._waiting) + self._lost:
            _log.warning(
                "logger %s: the service did not take the last %d calls; metrics.csv has all "
                "figures, unless logger.csv=null", self._name, left,
            )  # fmt: skip

    def _add(self, call: Callable[..., None], *arguments: Any) -> None:
        with self._changed:
            if len(self._waiting) < _MOST_WAITING:
                self._waiting.append(partial(call, *arguments))
            else:
                self._lost += 1
            self._changed.notify_all()

    def _work(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ends)
                if not self._waiting:
                    return
                call = self._waiting[0]
            self._fails = not self._done(call)
            with self._changed:
                if not self._fails:
                    self._waiting.popleft()
                    pause_s = _FIRST_PAUSE_S
                elif self._ends:
                    return
                self._changed.notify_all()
                if self._fails:
                    self._changed.wait_for(lambda: self._ends, pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _done(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except Exception as error:  # a library may raise anything where a service fails
            if not self._warned:
                self._warned = True
                said = " ".join(masked(f"{type(error).__name__}: {error}").split())
                _log.warning(
                    "logger %s: %s; training goes on, and it is tried again", self._name, said[:300]
                )
            return False
        return True
