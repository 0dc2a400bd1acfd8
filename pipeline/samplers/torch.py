"""Make any torch sampler, of records or batches, a pure function of seed and epoch."""

from __future__ import annotations

import inspect
import pickle
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.rng import GlobalStates, Stream, philox_words
from penstock.pipeline.epoch_orders import StoredOrderSampler


@register("sampler", "torch")
class TorchSampler(StoredOrderSampler):
    """Draw with any torch sampler, seeded anew every epoch.

    The class receives the arguments that its signature names: ``data_source`` (a range of the
    records), ``sampler`` (a random one), ``batch_size`` and ``generator``. The global random states
    are seeded too. A sampler that yields lists sets the batches over all ranks, at most as many as
    its ``len()`` in the first epoch.

    Args:
        target: The sampler's class.
        args: Its arguments.
    """

    def __init__(
        self,
        n: int,
        seed: int = 0,
        batch_size: int = 1,
        *,
        target: str,
        args: dict[str, Any] = {},  # noqa: B006 - never changed; a config option needs the mapping
    ) -> None:
        import torch

        kind: Any = target  # the class, which `build_sampler` has resolved
        self._target, self._n, self._batch_size, self._args = kind, n, batch_size, args
        self._seed = seed
        self._parameters = tuple(inspect.signature(kind).parameters)
        if issubclass(kind, torch.utils.data.DistributedSampler):
            self._refuse("splits the data over ranks, as the loader does; use sampler=random")
        with GlobalStates(0):
            made = self._make(0)
            length, num_batches = len(made), None
            self._gives_batches = np.ndim(next(iter(made), 0)) > 0
        if not length:
            self._refuse(f"has length 0 for {n} records; lower loader.batch_size, or change args")
        if self._gives_batches:
            num_batches, length = length, max(n, sum(map(len, self._drawn(0))))
        source = ""
        with suppress(OSError, TypeError):
            source = inspect.getsource(kind)
        decisive = [repr(kind), source, torch.__version__, n, pickle.dumps(args).hex(), batch_size]
        super().__init__(None, length, seed, num_batches=num_batches, decisive=decisive)

    def _refuse(self, text: str) -> NoReturn:
        raise ValueError(f"torch sampler: {self._target.__qualname__} {text}")

    def _make(self, epoch: int) -> Any:
        import torch

        known: dict[str, Any] = {
            "data_source": range(self._n),
            "batch_size": self._batch_size,
            "sampler": torch.utils.data.RandomSampler(range(self._n)),
            "generator": torch.Generator().manual_seed(self._epoch_seed(epoch)),
        }
        arguments = {name: known[name] for name in self._parameters if name in known} | self._args
        try:
            sampler = self._target(**arguments)
        except TypeError as error:
            self._refuse(f"takes ({', '.join(self._parameters)}): {error}; change sampler.args")
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        return sampler

    def _epoch_seed(self, epoch: int) -> int:
        return int(philox_words(self._seed, epoch, 0, 1, Stream.SAMPLER)[0, 0] >> np.uint64(1))

    def _drawn(self, epoch: int) -> list[NDArray[np.int64]]:
        """Run the sampler; return the records of its batches, or all records as one array."""
        with GlobalStates(self._epoch_seed(epoch)):
            sampler = self._make(epoch)
            parts = sampler if self._gives_batches else [sampler]
            drawn = [np.fromiter(part, np.int64) for part in parts]
            return [batch for batch in drawn if batch.size]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        drawn = self._drawn(epoch)
        order, sizes = np.concatenate([np.zeros(0, np.int64), *drawn]), [*map(len, drawn)]
        if order.size and not 0 <= order.min() <= order.max() < self._n:
            text = f"yielded indices {order.min()} to {order.max()}"
            self._refuse(f"{text}; the data has {self._n} records")
        if not self._gives_batches:
            if order.size != self._length:
                self._refuse(f"has length {self._length} and yielded {order.size} indices")
            return order
        most, largest = self._num_cuts - 1, max(sizes, default=0)
        if largest > self._batch_size:
            self._refuse(f"yielded a batch of {largest} records; set loader.batch_size={largest}")
        if len(sizes) > most or order.size > self._length:
            text = f"yielded {len(sizes)} batches of {order.size} records in epoch {epoch}"
            self._refuse(f"{text}, expected at most {most} of {self._length}, as in the first")
        cuts = np.cumsum([0, *sizes, *[0] * (most - len(sizes))])
        # No batch uses the positions behind the last batch; any valid index fills them.
        return np.concatenate([cuts, np.resize(order, self._length)])
