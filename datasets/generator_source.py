"""Any generator function of samples as a source."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from datasets.sample import BadRecord, Record

_RESERVED = ("index", "position")


class GeneratorSource:
    """A generator function: as many shards as it can tell apart.

    One that takes ``shard`` and ``num_shards`` is called for each shard, and gives what belongs
    to it: a range of its data, every num_shards-th item, or files of its own. Any other is one
    shard. ``epoch`` is given to one that takes it.

    It yields records, or dicts of fields. A dict's ``key`` names it; without one the key is made
    of shard and number. None is an item that could not be had.

    Args:
        function: The generator function.
        arguments: What the config gives to it.
        num_shards: Number of shards, if it takes them.
    """

    reopens = True

    def __init__(
        self, function: Callable[..., Any], arguments: Mapping[str, Any], *, num_shards: int
    ) -> None:
        self._function = function
        self._arguments = dict(arguments)
        self._takes = set(inspect.signature(function).parameters)
        self._num_shards = num_shards if {"shard", "num_shards"} <= self._takes else 1
        self.class_names = getattr(function, "class_names", None)

    def __str__(self) -> str:
        return f"generator {self._name}"

    @property
    def _name(self) -> str:
        return f"{self._function.__module__}.{self._function.__qualname__}"

    def shards(self, epoch: int) -> Sequence[tuple[int, int | None]]:
        """Number of each shard, and the epoch if that changes what it holds."""
        seen = epoch if "epoch" in self._takes else None
        return [(number, seen) for number in range(self._num_shards)]

    def open(self, shard: tuple[int, int | None]) -> GeneratedRecords:
        """Call the function for a shard."""
        number, epoch = shard
        given = {"shard": number, "num_shards": self._num_shards, "epoch": epoch}
        known = {name: value for name, value in given.items() if name in self._takes}
        items = iter(self._function(**self._arguments, **known))
        return GeneratedRecords(items, shard=number, where=str(self))

    def load(self, item: Record) -> Record:
        """The item, which is a record."""
        return item

    def fingerprint(self) -> str:
        """Hash of the function's name, its arguments and the number of shards."""
        text = json.dumps([self._name, self._arguments, self._num_shards], default=repr)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class GeneratedRecords:
    """What a generator yields, as records.

    Args:
        items: The generator.
        shard: Number of the shard, for keys.
        where: The source, for messages.
    """

    def __init__(self, items: Iterator[Any], *, shard: int, where: str) -> None:
        self._items = items
        self._shard = shard
        self._where = where
        self._number = -1

    def __iter__(self) -> Iterator[Record | BadRecord]:
        return self

    def __next__(self) -> Record | BadRecord:
        item = self._item()
        name = f"{self._shard}:{self._number}"
        if isinstance(item, (Record, BadRecord)):
            return item
        if item is None:
            return BadRecord(-1, name, "the generator gave None")
        if not isinstance(item, Mapping):
            raise TypeError(
                f"{self._where}: item {name} is {type(item).__name__}, expected a dict of fields, "
                f"a Record or None"
            )
        fields = dict(item)
        for reserved in _RESERVED:
            if reserved in fields:
                raise ValueError(
                    f"{self._where}: item {name} has a field {reserved!r}, which is the "
                    f"framework's own; give it another name"
                )
        return Record(-1, str(fields.pop("key", name)), fields)

    def _item(self) -> Any:
        self._number += 1
        try:
            return next(self._items)
        except StopIteration:
            raise
        except Exception as error:
            error.add_note(f"while {self._where} made item {self._shard}:{self._number}")
            raise

    def skip(self, count: int) -> int:
        """Have so many items made and drop them; how many there were."""
        for passed in range(count):
            try:
                self._item()
            except StopIteration:
                return passed
        return count

    def close(self) -> None:
        """Close the generator."""
        close = getattr(self._items, "close", None)
        if close is not None:
            close()
