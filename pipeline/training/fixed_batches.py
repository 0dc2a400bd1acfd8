"""The first batches of epoch 0, again and again: to see whether a model can learn them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from datasets.sample import Batch


class FixedBatches:
    """Yields the same batches every epoch, and has a state like a loader.

    Args:
        loader: Where they come from; read once, when first iterated, and kept in memory.
        count: How many batches.
    """

    def __init__(self, loader: Any, count: int) -> None:
        self.loader = loader
        self.batch_size = loader.batch_size
        self._count = count
        self._batches: list[Batch] | None = None
        self._epoch = 0
        self._next = 0

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The classes of the data."""
        return self.loader.class_names

    def classes_of(self, field: str) -> tuple[str, ...] | None:
        """Names of the classes whose ids a field holds."""
        return self.loader.classes_of(field)

    @property
    def table(self) -> Any:
        """What is known of the columns of a table; None for other data."""
        return self.loader.table

    @property
    def stats(self) -> Any:
        """The loader's counts."""
        return self.loader.stats

    def __len__(self) -> int:
        if self._batches is not None:
            return len(self._batches)
        try:
            return min(self._count, len(self.loader))
        except TypeError:  # a stream
            return self._count

    def __iter__(self) -> Iterator[Batch]:
        if self._batches is None:
            self.loader.set_epoch(0)
            self._batches = list(islice(iter(self.loader), self._count))
        for number in range(self._next, len(self._batches)):
            self._next = number + 1
            yield self._batches[number]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; the one that a loaded state stands in keeps its position."""
        if epoch != self._epoch:
            self._epoch, self._next = epoch, 0

    def again(self) -> FixedBatches:
        """The same batches with a position of their own, for validation."""
        return _Again(self)

    def state_dict(self) -> dict[str, Any]:
        """Epoch and next batch."""
        return {"version": 1, "fixed": self._count, "epoch": self._epoch, "next_batch": self._next}

    def load_state_dict(self, state: dict[str, Any], *, anyway: bool = False) -> None:
        """Go on at a state that `state_dict` gave."""
        del anyway
        if state.get("fixed") != self._count:
            raise ValueError(
                f"checkpoint: trainer.overfit_batches was {state.get('fixed')}, "
                f"now {self._count}; give the same, or start anew"
            )
        self._epoch, self._next = state["epoch"], state["next_batch"]


class _Again(FixedBatches):
    """Another view of fixed batches, which always starts at the first."""

    def __init__(self, source: FixedBatches) -> None:
        super().__init__(source.loader, source._count)
        self._source = source

    def __iter__(self) -> Iterator[Batch]:
        if self._source._batches is None:
            self._source.loader.set_epoch(0)
            self._source._batches = list(islice(iter(self.loader), self._count))
        return iter(self._source._batches)
