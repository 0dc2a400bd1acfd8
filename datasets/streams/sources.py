"""Open the source of a stream for a split, or make a source from a generator function."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.contracts import Source
from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.splits import Split, StorageRecipe, is_val

if TYPE_CHECKING:
    from penstock.datasets.streams.lanes import Keep

log = logging.getLogger(__name__)

_RESERVED = ("index", "position")


def open_split(
    recipe: StorageRecipe, *, split: Split, val_fraction: float, shards: int
) -> tuple[Source, Keep | None]:
    """Open the source of a split; return it and the test of whether a key belongs to the split.

    A folder with parts, see `find_parts`, is split by these. Without a validation part, the hash of
    a record's key decides whether the record is for training or validation.

    Args:
        recipe: Recipe of the source; a function is a generator, see `GeneratorSource`.
        split: ``train``, ``val`` or ``test``.
        val_fraction: Share of the records for validation, where no folders decide it.
        shards: The number of shards of a generator that takes ``shard``.

    Returns:
        The source, and None if all its records belong to the split.

    Raises:
        ValueError: The source cannot be opened, or its items lack the keys to split them by.
    """
    parts = recipe.parts_with(split)
    if split in parts and (split != "train" or "val" in parts):
        return _opened(recipe, shards, path=parts[split]), None
    changes = {"path": parts["train"]} if "train" in parts else {}
    source = _opened(recipe, shards, **changes)
    kept = KeptByHash(split, val_fraction)
    once = not source.reopens
    if once and split == "val" and 0 < val_fraction < 1:
        log.info("%s: is read once and trains on everything: nothing validates", source)
    if kept.all or (once and split == "train" and val_fraction < 1):
        return source, None
    if kept.none or once:
        return source, KeptByHash(split, float(split != "val"))
    if isinstance(source, GeneratorSource):
        source.require_keys()
    return source, kept


def _opened(recipe: StorageRecipe, shards: int, **changes: Any) -> Source:
    if not inspect.isclass(recipe.make):
        return GeneratorSource(recipe.make, {**recipe.arguments, **changes}, num_shards=shards)
    source: Any = recipe.open(**changes)
    if not isinstance(source, Source):
        raise ValueError(
            f"source {recipe.make.__qualname__} is no Source; derive it from "
            f"penstock.core.contracts.Source"
        )
    return source


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
    ``key``, or else its shard and number. To split by `val_fraction`, items of a function that
    takes ``epoch`` or ``shard`` need a ``key``, because their numbers depend on these.

    Args:
        num_shards: The number of shards, if the function takes it.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: Mapping[str, Any], *, num_shards: int
    ) -> None:
        self._function = function
        self._arguments = dict(arguments)
        self._takes = set(inspect.signature(function).parameters)
        self._num_shards = num_shards if {"shard", "num_shards"} <= self._takes else 1
        self._needs_keys = False

    def __str__(self) -> str:
        return f"generator {self._name}"

    def require_keys(self) -> None:
        """Refuse items without a key from now on, if their numbers cannot identify them.

        Raises:
            ValueError: The first item lacks a key.
        """
        self._needs_keys = bool({"epoch", "shard"} & self._takes)
        for shard in self.shards(0) if self._needs_keys else ():
            with closing(self.read(shard, 0)) as items:
                if next(items, None) is not None:
                    return

    @property
    def _name(self) -> str:
        return f"{self._function.__module__}.{self._function.__qualname__}"

    def shards(self, epoch: int) -> Sequence[tuple[int, int | None]]:
        """Return the number of each shard, with the epoch if the function takes it."""
        seen = epoch if "epoch" in self._takes else None
        return [(number, seen) for number in range(self._num_shards)]

    def read(self, shard: tuple[int, int | None], start: int) -> Generator[Record | BadRecord]:
        """Call the function for a shard, and make records of its items."""
        given = {"shard": shard[0], "num_shards": self._num_shards, "epoch": shard[1]}
        known = {name: value for name, value in given.items() if name in self._takes}
        items = iter(self._function(**self._arguments, **known))
        try:
            for number in itertools.count():
                name = f"{shard[0]}:{number}"
                try:
                    item = next(items)
                except StopIteration:
                    return
                except Exception as error:
                    error.add_note(f"while {self} made item {name}")
                    raise
                yield self._record(item, name)
        finally:
            if inspect.isgenerator(items):  # the function may return any iterable
                items.close()

    def _record(self, item: Any, name: str) -> Record | BadRecord:
        if item is None:
            return BadRecord(-1, name, "the generator gave None")
        if isinstance(item, (Record, BadRecord)):
            return item
        if not isinstance(item, Mapping):
            raise TypeError(
                f"{self}: item {name} is {type(item).__name__}, expected a dict of fields, a "
                f"Record or None"
            )
        fields = dict(item)
        for reserved in _RESERVED:
            if reserved in fields:
                raise ValueError(
                    f"{self}: item {name} has a field {reserved!r}, which the framework sets; "
                    f"give it another name"
                )
        if self._needs_keys and "key" not in fields:
            raise ValueError(
                f"{self}: got item {name} without a 'key', and its number depends on the epoch or "
                f"on dataset.lanes and dataset.readers; expected a 'key' in each item, by which "
                f"dataset.val_fraction splits them: yield one, or type dataset.val_fraction=0 to "
                f"validate nothing"
            )
        return Record(-1, str(fields.pop("key", name)), fields)

    def fingerprint(self) -> str:
        """Hash the function's name, its arguments and the number of shards."""
        text = json.dumps([self._name, self._arguments, self._num_shards], default=repr)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
