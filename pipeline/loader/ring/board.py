"""Where workers lay down what they computed, and the consumer picks it up in order."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from typing import Any, Protocol

from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.ring.usage import Usage
from pipeline.loader.watch import LoaderClosedError


class Crew(Protocol):
    """Workers that compute tasks, known by their tickets, in any order."""

    @property
    def depth(self) -> int:
        """How many tasks, or bundles of tasks, it is given before the first of them is taken."""

    @property
    def rows_together(self) -> int:
        """How many rows of small batches it is best given at once; 0: a batch at a time."""

    @property
    def is_own(self) -> bool:
        """Whether its workers are of this process, and not of one that this is a copy of."""

    @property
    def is_ready(self) -> bool:
        """Whether it computes at once; raises why it never will."""

    @property
    def usage(self) -> Usage:
        """What its threads of this process have spent on computing."""

    def submit(self, tickets: Sequence[int], tasks: Sequence[BatchTask]) -> None:
        """Give tasks, a ticket for each, to the next worker that is idle."""

    def take(self, ticket: int) -> Delivery:
        """Wait for what a ticket gives; raises what its computation raised."""

    def drop(self) -> None:
        """Forget all that was submitted: what is waiting, running or laid down."""

    def close(self) -> None:
        """End the workers."""


class Board:
    """Outcomes by ticket, laid down by any thread and taken by the consumer's.

    It is built on a queue of the interpreter's own. A lock taken in Python code is left locked
    by a Ctrl-C that comes right after it was taken, and whoever needs it next waits for ever.
    """

    def __init__(self) -> None:
        self._laid: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self._outcomes: dict[int, Any] = {}
        self._error: BaseException | None = None

    def put(self, ticket: int, outcome: Any) -> None:
        """Lay down an outcome."""
        self._laid.put((ticket, outcome))

    def fail(self, error: BaseException) -> None:
        """Let every taker raise `error`."""
        self._error = error
        self._laid.put(None)

    def close(self) -> None:
        """Let every taker know that nothing comes any more."""
        self.fail(LoaderClosedError())

    @property
    def error(self) -> BaseException | None:
        """What `fail` was given."""
        return self._error

    def take(self, ticket: int, timeout_s: float) -> Any:
        """The outcome of a ticket, or None if it does not come in time.

        Raises:
            BaseException: What `fail` was given.
        """
        deadline = time.monotonic() + timeout_s
        while ticket not in self._outcomes and self._error is None:
            if not self._collect(deadline - time.monotonic()):
                return None
        if ticket not in self._outcomes and self._error is not None:
            raise self._error
        return self._outcomes.pop(ticket)

    def clear(self) -> list[Any]:
        """Take everything away."""
        while self._collect(0.0):
            pass
        outcomes, self._outcomes = list(self._outcomes.values()), {}
        return outcomes

    def _collect(self, timeout_s: float) -> bool:
        """Sort one outcome in; False if none comes in time."""
        try:
            laid = self._laid.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return False
        if laid is not None:
            ticket, outcome = laid
            self._outcomes[ticket] = outcome
        return True
