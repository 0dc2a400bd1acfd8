"""The first batch computed by all threads together: none has another one to wait for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")
_Outcome = tuple[int, Any, BaseException | None]


class Sharing:
    """Work in pieces, which those threads do that have come to help.

    One thread owns it: it calls `spread`, if there is something to be spread, and `end`.
    """

    def __init__(self) -> None:
        self._pieces: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._function: Callable[[Any], Any] | None = None
        self._settled = threading.Event()

    def spread(self, function: Callable[[Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
        """`function` of every piece, in order, computed by this thread and those that help.

        Raises:
            BaseException: What the function raised, that of the first piece if several did.
        """
        assert not self._settled.is_set(), "work is spread once"
        self._function = function
        for item in enumerate(pieces):
            self._pieces.put(item)
        self._settled.set()
        self._compute(function)
        outcomes = sorted((self._outcomes.get() for _ in pieces), key=lambda outcome: outcome[0])
        self._function = None  # it holds what it works on, and those that help hold this
        for _, _, error in outcomes:
            if error is not None:
                raise error
        return [result for _, result, _ in outcomes]

    def help(self) -> None:
        """Compute pieces until none is left."""
        self._settled.wait()
        function = self._function
        if function is not None:
            self._compute(function)

    def end(self) -> None:
        """Let those go that came to help, also where nothing was spread."""
        self._settled.set()

    def _compute(self, function: Callable[[Any], Any]) -> None:
        while True:
            try:
                number, piece = self._pieces.get_nowait()
            except queue.Empty:
                return
            try:
                self._outcomes.put((number, function(piece), None))
            except BaseException as error:  # whatever it is, the owner waits for the outcome
                self._outcomes.put((number, None, error))
