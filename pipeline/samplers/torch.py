"""Make any torch sampler a pure function of seed and epoch."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Index
from penstock.core.machine_cache import signature_of
from penstock.core.registry import register
from penstock.core.rng import GlobalStates, Stream, philox_words
from penstock.pipeline.epoch_orders import StoredOrderSampler, digest_of


@register("sampler", "torch")
class TorchSampler(StoredOrderSampler):
    """Any torch sampler, seeded anew every epoch.

    One epoch's order is computed at a time, once per machine, and memory-mapped. The class is
    given what its signature names: ``data_source`` (a range of the records), ``labels`` or
    ``targets`` (int64 [n], from the index) and ``generator``. A sampler that draws from
    torch's, NumPy's or Python's global state instead finds these seeded.

    Args:
        n: Number of records.
        index: Metadata of the records.
        seed: The run's seed.
        target: The sampler's class.
        args: Its arguments.

    Raises:
        ValueError: The class splits over ranks itself, or yields anything but record indices.
    """

    def __init__(
        self,
        n: int,
        index: Index | None = None,
        seed: int = 0,
        *,
        target: str,
        args: dict[str, Any] = {},  # noqa: B006 - never changed; a config option needs the mapping
    ) -> None:
        self._target = _sampler_class(target)
        self._n = n
        self._seed = seed
        self._args = dict(args)
        named = inspect.signature(self._target).parameters
        if "data_source" in named:
            self._args.setdefault("data_source", range(n))
        self._index = index if index is not None and "label" in index.columns else None
        self._label_names = ({"labels", "targets"} & set(named)) - set(self._args)
        self._takes_generator = "generator" in named
        with GlobalStates(0):
            length = len(self._make(0))
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
            args=args,
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
        name = self._target.__qualname__
        with GlobalStates(self._epoch_seed(epoch)):
            sampler = self._make(epoch)
            try:
                order = np.fromiter(iter(sampler), np.int64)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"torch sampler: {name} yields no plain record indices ({error}); "
                    f"batches are made by loader.batch_size, so give a sampler of samples"
                ) from error
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
        return order


def _sampler_class(target: Any) -> type:
    from torch.utils import data

    if isinstance(target, str):
        # Configs are resolved before they get here; this is for use from Python.
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
    if issubclass(target, data.BatchSampler):
        raise ValueError(
            f"torch sampler: {target.__qualname__} makes batches, and so does the loader; give "
            f"the sampler inside it and set loader.batch_size"
        )
    return target


def _hashable(value: Any) -> Any:
    """A JSON-able stand-in for an argument: arrays become hashes of what they hold."""
    if isinstance(value, (range, str, int, float, bool, type(None))):
        return repr(value)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return repr(value)
    if array.dtype == object:
        return repr(value)
    return [str(array.dtype), array.shape, digest_of(array)]
