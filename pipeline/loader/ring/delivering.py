"""Deliveries in the order of their tasks, whichever crew each task was given to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count

from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.ring.board import Crew

_tickets = count()  # never the same again, so that nothing is mistaken for what was dropped


def deliver(
    tasks: Iterator[BatchTask], crew_of_next: Callable[[], Crew]
) -> Iterator[tuple[Crew, Delivery]]:
    """Let crews compute tasks, and hand their deliveries over in order.

    Args:
        tasks: What to compute; what they raise is raised after all that came before.
        crew_of_next: Who computes the next task. Crews may change at any task: what was given
            to the one before is taken from it when its turn comes.

    Yields:
        Each delivery, and the crew that computed it.

    Raises:
        Exception: What the crews or the tasks raise.
    """
    source = _UntilError(tasks)
    ahead: deque[tuple[Crew, int]] = deque()
    _submit(source, ahead, crew_of_next)
    while ahead:
        crew, ticket = ahead.popleft()
        taken = [crew.take(ticket)]
        _submit(source, ahead, crew_of_next)
        yield crew, taken.pop()  # kept nowhere here: this may stand still for an evaluation
    if source.error is not None:
        raise source.error


def _submit(
    source: _UntilError, ahead: deque[tuple[Crew, int]], crew_of_next: Callable[[], Crew]
) -> None:
    """Give tasks out until as many are ahead as the crew of the next one computes."""
    while len(ahead) < (crew := crew_of_next()).depth:
        task = next(source, None)
        if task is None:
            return
        ticket = next(_tickets)
        crew.submit(ticket, task)
        ahead.append((crew, ticket))


class _UntilError:
    """Tasks until they end or raise, so that what came before an error is delivered first."""

    def __init__(self, tasks: Iterator[BatchTask]) -> None:
        self._tasks = tasks
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[BatchTask]:
        return self

    def __next__(self) -> BatchTask:
        if self.error is not None:
            raise StopIteration
        try:
            return next(self._tasks)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise StopIteration from None
