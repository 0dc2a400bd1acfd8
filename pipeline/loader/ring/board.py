"""Where workers lay down what they computed, and the consumer picks it up in order."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.ring.usage import Usage


class Crew(Protocol):
    """Workers that compute tasks, known by their tickets, in any order."""

    @property
    def depth(self) -> int:
        """How many tasks it is given before the first of them is taken."""

    @property
    def is_ready(self) -> bool:
        """Whether it computes at once; raises why it never will."""

    @property
    def usage(self) -> Usage:
        """What its threads of this process have spent on computing."""

    def submit(self, ticket: int, task: BatchTask) -> None:
        """Give a task to the next worker that is idle."""

    def take(self, ticket: int) -> Delivery:
        """Wait for what a ticket gives; raises what its computation raised."""

    def drop(self) -> None:
        """Forget all that was submitted: what is waiting, running or laid down."""

    def close(self) -> None:
        """End the workers."""


class Board:
    """Outcomes by ticket; safe between threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._outcomes: dict[int, Any] = {}
        self._error: BaseException | None = None

    def put(self, ticket: int, outcome: Any) -> None:
        """Lay down an outcome."""
        with self._changed:
            self._outcomes[ticket] = outcome
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Let every taker raise `error`."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    @property
    def error(self) -> BaseException | None:
        """What `fail` was given."""
        return self._error

    def take(self, ticket: int, timeout_s: float) -> Any:
        """The outcome of a ticket, or None if it does not come in time.

        Raises:
            BaseException: What `fail` was given.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: ticket in self._outcomes or self._error is not None, timeout_s
            )
            if ticket not in self._outcomes and self._error is not None:
                raise self._error
            return self._outcomes.pop(ticket, None)

    def clear(self) -> list[Any]:
        """Take everything away."""
        with self._changed:
            outcomes, self._outcomes = list(self._outcomes.values()), {}
        return outcomes
