"""Open the source of a stream, or of a part to train, validate or test; generators as sources."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.contracts import SourceCapabilities, capabilities_of
from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.splits import Split, StorageRecipe, is_val
from penstock.datasets.streams.byte_source import ByteSource
from penstock.datasets.streams.lanes import ShardItems

if TYPE_CHECKING:
    from penstock.core.contracts import Source
    from penstock.datasets.streams.lanes import Keep

log = logging.getLogger(__name__)

_CONTRACT = ("reopens", "shards", "open", "load", "fingerprint")
_RESERVED = ("index", "position")


def open_split(
    recipe: StorageRecipe, *, split: Split, val_fraction: float, shards: int
) -> tuple[Source, Keep | None]:
    """Open a part of a source, and return which of its keys belong to that part.

    A folder `path` with parts, see `find_parts`, is split by these. Without a part for validation,
    the hash of a record's key decides whether it trains or validates, and both read the training
    part, or the whole source.

    Args:
        recipe: How the source is made; a function is a generator, see `GeneratorSource`.
        split: ``train``, ``val`` or ``test``.
        val_fraction: Share of the records that validates, where no folders decide it.
        shards: Number of parts of a generator, if it takes ``shard``.

    Returns:
        The source, and None if all of it belongs to the part.

    Raises:
        ValueError: The source cannot be opened, or would be split without keys.
    """
    parts = recipe.parts_with(split)
    if split in parts and (split != "train" or "val" in parts):
        return _opened(recipe, shards, path=parts[split]), None
    changes = {"path": parts["train"]} if "train" in parts else {}
    source = _opened(recipe, shards, **changes)
    kept = KeptByHash(split, val_fraction)
    once = not source.reopens
    if once and split == "val" and 0 < val_fraction < 1:
        log.info("%s: can be read only once and is trained on: nothing validates", source)
    if kept.all or (once and split == "train" and val_fraction < 1):
        return source, None
    if kept.none or once:
        nothing: Any = _NoShards(source)
        return nothing, None
    if isinstance(source, GeneratorSource):
        source.require_keys()
    return source, kept


def _opened(recipe: StorageRecipe, shards: int, **changes: Any) -> Source:
    if not inspect.isclass(recipe.make):
        return GeneratorSource(recipe.make, {**recipe.arguments, **changes}, num_shards=shards)
    source: Any = recipe.open(**changes)
    if isinstance(source, ByteSource):
        source.max_record_bytes = recipe.max_record_bytes
    lacking = [name for name in _CONTRACT if not hasattr(source, name)]
    if lacking:
        raise ValueError(
            f"source {recipe.make.__qualname__} has no {', '.join(lacking)}; a source has "
            f"{', '.join(_CONTRACT)}: see Source in core/contracts.py"
        )
    return source


@dataclass(frozen=True, slots=True)
class KeptByHash:
    """Tell whether a key belongs to a split, by `datasets.records.splits.is_val`."""

    split: Split
    val_fraction: float

    @property
    def all(self) -> bool:
        """Whether every key belongs to the split."""
        return self.val_fraction == (self.split == "val")

    @property
    def none(self) -> bool:
        """Whether no key belongs to the split."""
        return self.val_fraction == (self.split != "val")

    def __call__(self, key: str) -> bool:
        """Return whether the key belongs to the split."""
        raw = key.encode("utf-8", "surrogateescape")
        return next(iter(is_val([raw], self.val_fraction))) == (self.split == "val")


class _NoShards:
    """A part of a source without records, so that nothing is opened."""

    reopens = True

    def __init__(self, source: Source) -> None:
        self._source = source
        known = capabilities_of(source, SourceCapabilities)
        self.capabilities = SourceCapabilities(class_names=known.class_names)

    def __str__(self) -> str:
        return str(self._source)

    def shards(self, epoch: int) -> Sequence[Any]:
        return ()

    def fingerprint(self) -> str:
        return ""


class GeneratorSource:
    """Make a source of a generator function.

    A function that takes ``shard`` and ``num_shards`` is called for each shard, and yields what
    belongs to it: a range of its data, every num_shards-th item, or files of its own. Any other
    function is one shard. A function that takes ``epoch`` gets the epoch.

    It yields records, or dicts of fields. A dict's ``key`` is its key; a dict without one gets
    its shard and number as the key. To be split by `val_fraction`, items of a function that takes
    ``epoch`` or ``shard`` need keys of their own: their numbers depend on these. None is a bad
    item.

    Args:
        function: The generator function.
        arguments: Its arguments in the config.
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
        self._needs_keys = False
        self.capabilities = capabilities_of(function, SourceCapabilities)

    def __str__(self) -> str:
        return f"generator {self._name}"

    def require_keys(self) -> None:
        """Refuse items without a key from now on, if their numbers cannot stand for them.

        Raises:
            ValueError: The first item lacks a key.
        """
        self._needs_keys = bool({"epoch", "shard"} & self._takes)
        for shard in self.shards(0) if self._needs_keys else ():
            with closing(self.open(shard)) as items:
                if next(items, None) is not None:
                    return

    @property
    def _name(self) -> str:
        return f"{self._function.__module__}.{self._function.__qualname__}"

    def shards(self, epoch: int) -> Sequence[tuple[int, int | None]]:
        """List the number of each shard, and the epoch if the function takes it."""
        seen = epoch if "epoch" in self._takes else None
        return [(number, seen) for number in range(self._num_shards)]

    def open(self, shard: tuple[int, int | None]) -> ShardItems:
        """Call the function for a shard."""
        number, epoch = shard
        given = {"shard": number, "num_shards": self._num_shards, "epoch": epoch}
        known = {name: value for name, value in given.items() if name in self._takes}
        items = iter(self._function(**self._arguments, **known))
        close = getattr(items, "close", lambda: None)  # any iterable may be given
        records = _records(items, number, where=str(self), needs_keys=self._needs_keys)
        return ShardItems(records, close=close)

    def load(self, item: Record) -> Record:
        """The item, which is a record."""
        return item

    def fingerprint(self) -> str:
        """Hash of the function's name, its arguments and the number of shards."""
        text = json.dumps([self._name, self._arguments, self._num_shards], default=repr)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _records(
    items: Iterator[Any], shard: int, *, where: str, needs_keys: bool
) -> Iterator[Record | BadRecord]:
    """Make records of what a generator yields; the default key is shard and number."""
    for number in itertools.count():
        name = f"{shard}:{number}"
        try:
            item = next(items)
        except StopIteration:
            return
        except Exception as error:
            error.add_note(f"while {where} made item {name}")
            raise
        if item is None:
            item = BadRecord(-1, name, "the generator gave None")
        elif not isinstance(item, (Record, BadRecord)):
            if not isinstance(item, Mapping):
                raise TypeError(
                    f"{where}: item {name} is {type(item).__name__}, expected a dict of fields, "
                    f"a Record or None"
                )
            fields = dict(item)
            for reserved in _RESERVED:
                if reserved in fields:
                    raise ValueError(
                        f"{where}: item {name} has a field {reserved!r}, which is the "
                        f"framework's own; give it another name"
                    )
            if needs_keys and "key" not in fields:
                raise ValueError(
                    f"{where}: got item {name} without a 'key', and its number depends on the "
                    f"epoch or on dataset.lanes and dataset.readers; expected a 'key' in each "
                    f"item, by which dataset.val_fraction splits them: yield one, or type "
                    f"dataset.val_fraction=0 to validate nothing"
                )
            item = Record(-1, str(fields.pop("key", name)), fields)
        yield item
