"""Make any torch sampler, of records or batches, a pure function of seed and epoch."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Index, SamplerCapabilities
from penstock.core.machine_cache import signature_of
from penstock.core.registry import register
from penstock.core.rng import GlobalStates, Stream, philox_words
from penstock.pipeline.epoch_orders import StoredOrderSampler, digest_of


@register("sampler", "torch")
class TorchSampler(StoredOrderSampler):
    """Draw with any torch sampler, seeded anew every epoch.

    Computes one epoch's order at a time, once per machine. The class receives the arguments that
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
        self._target = _sampler_class(target)
        self._n = n
        self._seed = seed
        self._args = dict(args)
        named = inspect.signature(self._target).parameters
        self._batch_size = batch_size
        for name, value in (("data_source", range(n)), ("batch_size", batch_size)):
            if name in named:
                self._args.setdefault(name, value)
        self._takes_sampler = "sampler" in set(named) - set(self._args)
        self._index = index if index is not None and "label" in index.columns else None
        self._label_names = ({"labels", "targets"} & set(named)) - set(self._args)
        self._takes_generator = "generator" in named
        with GlobalStates(0):
            made = self._make(0)
            length = len(made)
            self._gives_batches = np.ndim(next(iter(made), 0)) > 0
        if not length:
            raise ValueError(
                f"torch sampler: {self._target.__qualname__} has length 0 for {n} records; lower "
                f"loader.batch_size, or change sampler.args"
            )
        if self._gives_batches:
            self.capabilities = SamplerCapabilities(cuts=self.batch_cuts)
            records = sum(batch.size for batch in self._drawn(0))
            super().__init__(self._sign(), max(n, records), length)
        else:
            super().__init__(self._sign(), length)

    def _sign(self) -> str:
        import torch

        try:
            source = inspect.getsource(self._target)
        except (OSError, TypeError):
            source = ""
        args = {name: _hashable(value) for name, value in self._args.items()}
        if self._index is not None and self._label_names:
            args["labels"] = _hashable(self._index.column("label"))
        name = f"{self._target.__module__}.{self._target.__qualname__}"
        return signature_of(
            sampler=name, source=source, torch=torch.__version__, seed=self._seed, n=self._n,
            args=args, most=self._batch_size if self._gives_batches else None,
        )  # fmt: skip

    def _make(self, epoch: int) -> Any:
        import torch

        arguments = dict(self._args)
        if self._index is not None:
            labels = np.asarray(self._index.column("label"), np.int64)
            arguments |= dict.fromkeys(self._label_names, labels)
        if self._takes_generator:
            arguments["generator"] = torch.Generator()
            arguments["generator"].manual_seed(self._epoch_seed(epoch))
        if self._takes_sampler:
            arguments["sampler"] = torch.utils.data.RandomSampler(range(self._n))
        try:
            inspect.signature(self._target).bind(**arguments)
        except TypeError as error:
            takes = ", ".join(inspect.signature(self._target).parameters)
            raise ValueError(
                f"torch sampler: {self._target.__qualname__} takes ({takes}): {error}; set "
                f"sampler.args={{name: value}}"
            ) from None
        sampler = self._target(**arguments)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        return sampler

    def _epoch_seed(self, epoch: int) -> int:
        word = philox_words(self._seed, epoch, 0, 1, Stream.SAMPLER)[0, 0]
        return int(word >> np.uint64(1))

    def _order(self, epoch: int) -> NDArray[np.int64]:
        name, batches = self._target.__qualname__, self._drawn(epoch)
        order = np.concatenate([np.zeros(0, np.int64), *batches])
        cuts = np.zeros(0, np.int64)
        if self._gives_batches:
            cuts = self._cuts(epoch, [batch.size for batch in batches])
            # No batch uses the positions behind the last batch; any valid index fills them.
            order = np.resize(order, self._length)
        if order.size != self._length:
            raise ValueError(
                f"torch sampler: {name} has length {self._length} and yielded {order.size} indices"
            )
        outside = (order < 0) | (order >= self._n)
        if outside.any():
            raise ValueError(
                f"torch sampler: {name} yielded index {order[outside.argmax()]} at position "
                f"{int(outside.argmax())}; the data has {self._n} records"
            )
        return np.concatenate([cuts, order])

    def _cuts(self, epoch: int, sizes: list[int]) -> NDArray[np.int64]:
        """Check the batch sizes; return their cumulative sum, padded with empty batches."""
        name, most, empty = self._target.__qualname__, max(sizes, default=0), self._num_cuts - 1
        if len(sizes) > empty:
            raise ValueError(
                f"torch sampler: {name} has length {empty} and yielded {len(sizes)} "
                f"batches in epoch {epoch}; let its __len__ return the most of any epoch"
            )
        if most > self._batch_size:
            raise ValueError(
                f"torch sampler: {name} yielded a batch of {most} records, and loader.batch_size "
                f"is {self._batch_size}, the most of any batch; set loader.batch_size={most}"
            )
        if sum(sizes) > self._length:
            raise ValueError(
                f"torch sampler: {name} yielded {sum(sizes)} records in epoch {epoch}, more than "
                f"{self._length}, the maximum of the first epoch and the data; let it yield fewer"
            )
        return np.cumsum([0, *sizes, *[0] * (empty - len(sizes))])

    def _drawn(self, epoch: int) -> list[NDArray[np.int64]]:
        """Run the sampler; return the records of its batches, or all records as one array."""
        with GlobalStates(self._epoch_seed(epoch)):
            sampler = self._make(epoch)
            try:
                if not self._gives_batches:
                    return [np.fromiter(iter(sampler), np.int64)]
                return [np.fromiter(batch, np.int64) for batch in sampler if len(batch)]
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"torch sampler: {self._target.__qualname__} does not yield record indices "
                    f"({error}); yield integers, or lists of integers as batches"
                ) from error


def _sampler_class(target: Any) -> type:
    from torch.utils import data

    if isinstance(target, str):
        # For use from Python; configs hold the class already.
        module, _, name = target.rpartition(".")
        known = getattr(data, name, None) if module == "torch.utils.data" else None
        if known is None:
            raise ValueError(f"torch sampler: no class {target!r} in torch.utils.data")
        target = known
    if not inspect.isclass(target):
        raise ValueError(f"torch sampler: target is {target!r}; give a sampler class")
    if issubclass(target, data.DistributedSampler):
        raise ValueError(
            f"torch sampler: {target.__qualname__} splits the data over ranks, and so does the "
            f"loader: every rank would see a part of its part; use sampler=random"
        )
    return target


def _hashable(value: Any) -> Any:
    """Return a JSON-serialisable stand-in for an argument, with hashes for arrays."""
    if isinstance(value, (range, str, int, float, bool, type(None))):
        return repr(value)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return repr(value)
    if array.dtype == object:
        return repr(value)
    return [str(array.dtype), array.shape, digest_of(array)]
