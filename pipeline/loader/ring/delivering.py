"""Deliveries in the order of their tasks, whichever crew each task was given to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count

from pipeline.loader.bundles import BundleSize, can_join
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
    ahead: deque[tuple[Crew, list[int]]] = deque()
    size = BundleSize()
    _submit(source, ahead, crew_of_next, size)
    while ahead:
        crew, tickets = ahead.popleft()
        for ticket in tickets:
            taken = [crew.take(ticket)]
            if ticket == tickets[0]:
                _submit(source, ahead, crew_of_next, size)
            yield crew, taken.pop()  # kept nowhere here: this may stand still for an evaluation
    if source.error is not None:
        raise source.error


def _submit(
    source: _UntilError,
    ahead: deque[tuple[Crew, list[int]]],
    crew_of_next: Callable[[], Crew],
    size: BundleSize,
) -> None:
    """Give tasks out until as many are ahead as the crew of the next one computes.

    Tasks that go out together count as one.
    """
    while len(ahead) < (crew := crew_of_next()).depth:
        tasks = source.bundle(crew.rows_together, size)
        if not tasks:
            return
        tickets = [next(_tickets) for _ in tasks]
        crew.submit(tickets, tasks)
        ahead.append((crew, tickets))


class _UntilError:
    """Tasks until they end or raise, so that what came before an error is delivered first."""

    def __init__(self, tasks: Iterator[BatchTask]) -> None:
        self._tasks = tasks
        self._next: BatchTask | None = None
        self.error: Exception | None = None

    def bundle(self, most_rows: int, size: BundleSize) -> list[BatchTask]:
        """The next tasks, to be computed as one; none at the end.

        Args:
            most_rows: Rows that they may have together; the first one may have more.
            size: Says how many there may be, where there can be several.
        """
        first = self._take()
        if first is None:
            return []
        bundle, rows = [first], first.positions.size
        if 2 * rows > most_rows:
            return bundle
        for _ in range(size.next() - 1):
            task = self._take()
            if task is None:
                break
            rows += task.positions.size
            if rows > most_rows or not can_join(first, task):
                self._next = task
                break
            bundle.append(task)
        return bundle

    def _take(self) -> BatchTask | None:
        task, self._next = self._next, None
        if task is not None or self.error is not None:
            return task
        try:
            return next(self._tasks, None)
        except Exception as error:
            self.error = error
            return None
