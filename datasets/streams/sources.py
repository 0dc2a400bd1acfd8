"""Open the source of a stream for a split, or make a source from a generator function."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.contracts import Source
from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.splits import Split, StorageRecipe, is_val

if TYPE_CHECKING:
    from penstock.datasets.streams.lanes import Keep

log = logging.getLogger(__name__)


def open_split(
    recipe: StorageRecipe, *, split: Split, val_fraction: float, shards: int
) -> tuple[Source, Keep | None]:
    """Open the source of a split; return it and the test of whether a key belongs to the split.

    A folder with parts, see `find_parts`, is split by these; otherwise the hash of a record's key
    decides. The test is None if all records belong. A generator that takes ``shard`` has `shards`.
    """
    parts = recipe.parts_with(split)
    is_part = split in parts and (split != "train" or "val" in parts)
    place = parts.get(split if is_part else "train")
    changes = {} if place is None else {"path": place}
    source: Any
    if inspect.isclass(recipe.make):
        source = recipe.open(**changes)
    else:
        source = GeneratorSource(recipe.make, {**recipe.arguments, **changes}, num_shards=shards)
    if is_part:
        return source, None
    if not source.reopens and val_fraction < 1:
        if split == "val" and val_fraction:
            log.info("%s: is read once and trains on everything: nothing validates", source)
        val_fraction = 0.0
    kept = KeptByHash(split, val_fraction)
    if kept.all:
        return source, None
    if isinstance(source, GeneratorSource):
        source.is_split = not kept.none
    return source, kept


@dataclass(frozen=True, slots=True)
class KeptByHash:
    """Returns whether a key belongs to a split, by `datasets.records.splits.is_val`."""

    split: Split
    val_fraction: float

    @property
    def all(self) -> bool:
        """Return whether every key belongs to the split."""
        return self.val_fraction == (self.split == "val")

    @property
    def none(self) -> bool:
        """Return whether no key belongs to the split."""
        return self.val_fraction == (self.split != "val")

    def __call__(self, key: str) -> bool:
        """Return whether the key belongs to the split."""
        raw = key.encode("utf-8", "surrogateescape")
        return next(iter(is_val([raw], self.val_fraction))) == (self.split == "val")


class GeneratorSource(Source):
    """The source of a generator function.

    A function that takes ``shard`` and ``num_shards`` is called for each shard and yields the
    shard's items: a range, every num_shards-th item, or separate files. Any other function is
    one shard. A function that takes ``epoch`` gets the epoch.

    It yields records, dicts of fields, or None for a bad item. The key of a dict is its item
    ``key``, or else its shard and number. Where a hash of the keys splits them, items of a function
    that takes ``epoch`` or ``shard`` need a ``key``, because their numbers depend on these.
    """

    is_split = False

    def __init__(
        self, function: Callable[..., Any], arguments: Mapping[str, Any], *, num_shards: int
    ) -> None:
        self._function = function
        self._arguments = dict(arguments)
        self._takes = set(inspect.signature(function).parameters)
        self._num_shards = num_shards if {"shard", "num_shards"} <= self._takes else 1
        self._name = f"{function.__module__}.{function.__qualname__}"

    def __str__(self) -> str:
        return f"generator {self._name}"

    def shards(self, epoch: int) -> Sequence[tuple[int, int | None]]:
        """Return the number of each shard, with the epoch if the function takes it."""
        seen = epoch if "epoch" in self._takes else None
        return [(number, seen) for number in range(self._num_shards)]

    def read(self, shard: tuple[int, int | None], start: int) -> Generator[Record | BadRecord]:
        given = {"shard": shard[0], "num_shards": self._num_shards, "epoch": shard[1]}
        known = {name: value for name, value in given.items() if name in self._takes}
        for number, item in enumerate(self._function(**self._arguments, **known)):
            yield self._record(item, f"{shard[0]}:{number}")

    def _record(self, item: Any, name: str) -> Record | BadRecord:
        if item is None:
            return BadRecord(-1, name, "the generator gave None")
        if isinstance(item, (Record, BadRecord)):
            return item
        if not isinstance(item, Mapping):
            expected = "expected a dict of fields, a Record or None"
            raise TypeError(f"{self}: item {name} is {type(item).__name__}, {expected}")
        fields = dict(item)
        key = fields.pop("key", None)
        if self.is_split and self._takes & {"epoch", "shard"} and key is None:
            raise ValueError(
                f"{self}: got item {name} without a 'key', by which dataset.val_fraction splits; "
                f"expected a 'key' in each: yield one, or type dataset.val_fraction=0"
            )
        return Record(-1, name if key is None else str(key), fields)

    def fingerprint(self) -> str:
        arguments = json.dumps(self._arguments, default=repr)
        return f"{self._name} {arguments} {self._num_shards}"
