"""Runs of an engine that go on over the ends of epochs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import count

from pipeline.loader.contract import BatchTask, Delivery, Engine
from pipeline.loader.feed import Quarantine


class EpochRuns:
    """Deliveries of one epoch after another, without a gap where one ends and the next begins.

    With `across`, the engine is given the tasks of the next epoch behind those of this one. So
    no worker idles while the last batches are awaited, and the next epoch's first ones are
    computed while this one is evaluated. They lie in wait, as many as the engine computes ahead;
    where something else is asked for than the next epoch, they are dropped.

    Args:
        engine: Computes the tasks.
        tasks: Those of an epoch, called with ``epoch``, ``start`` and ``quarantine``.
        num_batches: Batches in an epoch; None: nobody knows before they end.
        across: Whether to go on over an epoch's end; not where `num_batches` is None.
    """

    def __init__(
        self,
        engine: Engine,
        tasks: Callable[..., Iterator[BatchTask]],
        *,
        num_batches: int | None,
        across: bool,
    ) -> None:
        self._engine = engine
        self._tasks = tasks
        self._num_batches = num_batches
        self._across = across
        self._kept: tuple[int, Iterator[Delivery]] | None = None

    def deliveries(self, epoch: int, start: int, quarantine: Quarantine) -> Generator[Delivery]:
        """Deliveries of an epoch from batch `start` to its end; closed early, they are dropped."""
        kept, self._kept = self._kept, None
        if kept is not None and start == 0 and kept[0] == epoch:
            run = kept[1]
        else:
            _close(kept)
            ends = not self._across or self._num_batches is None or start >= self._num_batches
            epochs = [epoch] if ends else count(epoch)
            run = self._engine.run(_tasks_of(self._tasks, epochs, start, quarantine))
        whole = False
        try:
            while (delivery := next(run, None)) is not None:
                whole = self._across and delivery.number + 1 == self._num_batches
                yield delivery
                del delivery  # the consumer alone decides how long a batch lives
                if whole:
                    return
        finally:
            if whole:
                self._kept = epoch + 1, run
            else:
                _close((epoch, run))

    def drop(self) -> None:
        """Forget what was computed for an epoch to come."""
        kept, self._kept = self._kept, None
        _close(kept)


def _tasks_of(
    tasks: Callable[..., Iterator[BatchTask]],
    epochs: Iterable[int],
    start: int,
    quarantine: Quarantine,
) -> Iterator[BatchTask]:
    """Tasks of epochs in a row, of the first one from batch `start`.

    It holds nothing of the `EpochRuns` that hold it: that cycle would keep the threads of a
    forgotten loader until garbage is collected.
    """
    for epoch in epochs:
        yield from tasks(epoch=epoch, start=start, quarantine=quarantine)
        start = 0


def _close(kept: tuple[int, Iterator[Delivery]] | None) -> None:
    if kept is not None:
        kept[1].close()  # type: ignore[attr-defined]
