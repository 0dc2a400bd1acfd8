"""Make any torch sampler, of records or batches, a pure function of seed and epoch."""

from __future__ import annotations

import inspect
import pickle
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Index
from penstock.core.registry import register
from penstock.core.rng import GlobalStates, Stream, philox_words
from penstock.pipeline.epoch_orders import StoredOrderSampler, StoredTable


@register("sampler", "torch")
class TorchSampler(StoredOrderSampler):
    """Draw with any torch sampler, seeded anew every epoch.

    The class receives the arguments that
    its signature names: ``data_source`` (a range of the records), ``labels`` or ``targets`` (int64
    [n], from the index), ``sampler`` (a random one), ``batch_size`` and ``generator``. The global
    random states are seeded too; an unseeded generator of the class gives a different order on each
    machine.

    A sampler that yields lists sets the batches over all ranks, at most ``loader.batch_size``
    records each, and at most as many as its ``len()`` in the first epoch. ``loader.drop_last`` does
    not apply.

    Args:
        target: The sampler's class.
        args: Its arguments.
    """

    def __init__(
        self,
        n: int,
        index: Index | None = None,
        seed: int = 0,
        batch_size: int = 1,
        *,
        target: str,
        args: dict[str, Any] = {},  # noqa: B006 - never changed; a config option needs the mapping
    ) -> None:
        import torch

        kind: Any = target  # the class, which `build_sampler` has resolved
        self._target = kind
        if issubclass(kind, torch.utils.data.DistributedSampler):
            self._refuse("splits the data over ranks, as the loader does; use sampler=random")
        named = inspect.signature(kind).parameters
        self._n, self._seed, self._batch_size, self._args = n, seed, batch_size, args
        self._table = None
        wants_labels = {"labels", "targets"} & named.keys()
        if wants_labels and index is not None and "label" in index.columns:
            self._table = StoredTable(np.asarray(index.column("label"), np.int64), "labels")
        with GlobalStates(0):
            made = self._make(0)
            length = len(made)
            self._gives_batches = np.ndim(next(iter(made), 0)) > 0
        if not length:
            text = f"has length 0 for {n} records"
            self._refuse(f"{text}; lower loader.batch_size, or change sampler.args")
        source = ""
        with suppress(OSError, TypeError):
            source = inspect.getsource(kind)
        num_batches = length if self._gives_batches else None
        if num_batches:
            length = max(n, sum(map(len, self._drawn(0))))
        super().__init__(
            self._table, length, seed, num_batches=num_batches, target=repr(self._target),
            source=source, torch=torch.__version__, n=n, args=pickle.dumps(args).hex(),
            batch_size=batch_size,
        )  # fmt: skip

    def _refuse(self, text: str) -> NoReturn:
        raise ValueError(f"torch sampler: {self._target.__qualname__} {text}")

    def _make(self, epoch: int) -> Any:
        import torch

        signature = inspect.signature(self._target)
        known = {
            "data_source": range(self._n),
            "batch_size": self._batch_size,
            "sampler": torch.utils.data.RandomSampler(range(self._n)),
            "generator": torch.Generator().manual_seed(self._epoch_seed(epoch)),
        }
        if self._table is not None:
            known |= dict.fromkeys(("labels", "targets"), np.array(self._values))
        names = signature.parameters.keys()
        arguments = {name: known[name] for name in names & known.keys()} | self._args
        try:
            signature.bind(**arguments)
        except TypeError as error:
            text = f"takes ({', '.join(names)}): {error}"
            self._refuse(f"{text}; set sampler.args={{name: value}}")
        sampler = self._target(**arguments)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        return sampler

    def _epoch_seed(self, epoch: int) -> int:
        return int(philox_words(self._seed, epoch, 0, 1, Stream.SAMPLER)[0, 0] >> np.uint64(1))

    def _order(self, epoch: int) -> NDArray[np.int64]:
        batches = self._drawn(epoch)
        order = np.concatenate([np.zeros(0, np.int64), *batches])
        cuts = order[:0]
        if self._gives_batches:
            cuts = self._bounds(epoch, [*map(len, batches)])
            # No batch uses the positions behind the last batch; any valid index fills them.
            order = np.resize(order, self._length)
        if order.size != self._length:
            self._refuse(f"has length {self._length} and yielded {order.size} indices")
        outside = (order < 0) | (order >= self._n)
        if outside.any():
            at = int(outside.argmax())
            text = f"yielded index {order[at]} at position {at}"
            self._refuse(f"{text}; the data has {self._n} records")
        return np.concatenate([cuts, order])

    def _bounds(self, epoch: int, sizes: list[int]) -> NDArray[np.int64]:
        """Check the batch sizes; return their cumulative sum, padded with empty batches."""
        most, empty = max(sizes, default=0), self._num_cuts - 1 - len(sizes)
        if empty < 0:
            text = f"has length {self._num_cuts - 1} and yielded {len(sizes)} batches in epoch"
            self._refuse(f"{text} {epoch}; return the most of any epoch from __len__")
        if most > self._batch_size:
            text = f"yielded a batch of {most} records, and loader.batch_size is {self._batch_size}"
            self._refuse(f"{text}; set loader.batch_size={most}")
        if sum(sizes) > self._length:
            text = f"yielded {sum(sizes)} records in epoch {epoch}"
            self._refuse(f"{text}, expected at most {self._length}, as in the first epoch")
        return np.cumsum([0, *sizes, *[0] * empty])

    def _drawn(self, epoch: int) -> list[NDArray[np.int64]]:
        """Run the sampler; return the records of its batches, or all records as one array."""
        with GlobalStates(self._epoch_seed(epoch)):
            sampler = self._make(epoch)
            try:
                if not self._gives_batches:
                    return [np.fromiter(iter(sampler), np.int64)]
                return [np.fromiter(batch, np.int64) for batch in sampler if len(batch)]
            except (TypeError, ValueError) as error:
                text = f"yields no plain record indices ({error})"
                self._refuse(f"{text}; give integers, or lists of integers as batches")
