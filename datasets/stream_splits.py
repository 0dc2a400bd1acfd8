"""Training and validation part of a stream: two places where they exist, else a hash of the key."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from datasets.generator_source import GeneratorSource
from datasets.splits import StorageRecipe, find_parts, is_val

if TYPE_CHECKING:
    from datasets.protocols import ShardReader, Source
    from datasets.sample import BadRecord, Record
    from datasets.shard_records import Keep

log = logging.getLogger(__name__)

_CONTRACT = ("reopens", "shards", "open", "load", "fingerprint")


@dataclass(frozen=True, slots=True)
class KeptByHash:
    """Whether a key belongs to a split, as `datasets.splits.is_val` says."""

    split: Literal["train", "val"]
    val_fraction: float

    def __call__(self, key: str) -> bool:
        """Whether it does."""
        raw = key.encode("utf-8", "surrogateescape")
        return next(iter(is_val([raw], self.val_fraction))) == (self.split == "val")


class Nothing:
    """The validation part of a source that is read once: none.

    Args:
        source: The source.
    """

    reopens = True

    def __init__(self, source: Source) -> None:
        self._source = source
        self.class_names = getattr(source, "class_names", None)

    def __str__(self) -> str:
        return str(self._source)

    def shards(self, epoch: int) -> Sequence[Any]:
        """None."""
        return ()

    def open(self, shard: Any) -> ShardReader:
        """Never called."""
        raise AssertionError(shard)

    def load(self, item: Any) -> Record | BadRecord:
        """Never called."""
        raise AssertionError(item)

    def fingerprint(self) -> str:
        """That of nothing."""
        return ""


def open_split(
    recipe: StorageRecipe, *, split: Literal["train", "val"], val_fraction: float, lanes: int
) -> tuple[Source, Keep | None]:
    """Open a part of a source, and say which of its keys belong to that part.

    Where `path` is a folder that holds both ``train`` and ``val``, see
    `datasets.splits.find_parts`, these are the parts. Otherwise the hash of its key says for
    each record which part it is in, and both are read from the whole.

    Args:
        recipe: How the source is made; a function is a generator, see `GeneratorSource`.
        split: ``train`` or ``val``.
        val_fraction: Share of the records that validate, where no folders decide it.
        lanes: Shards that are read side by side.

    Returns:
        The source, and None where all of it belongs to the part.

    Raises:
        ValueError: The source cannot be opened.
    """
    parts = find_parts(recipe.arguments.get("path"))
    if parts is not None:
        return _opened(recipe, lanes, path=parts[split]), None
    source = _opened(recipe, lanes)
    if not source.reopens:
        if split == "train":
            return source, None
        log.info("%s: is read once, to train on: nothing validates", source)
        return Nothing(source), None
    if val_fraction == 0 and split == "train":
        return source, None
    return source, KeptByHash(split, val_fraction)


def _opened(recipe: StorageRecipe, lanes: int, **changes: Any) -> Source:
    arguments = {**recipe.arguments, **changes}
    if not inspect.isclass(recipe.make):
        return GeneratorSource(recipe.make, arguments, num_shards=lanes)
    source: Any = recipe.make(**arguments)
    lacking = [name for name in _CONTRACT if not hasattr(source, name)]
    if lacking:
        raise ValueError(
            f"source {recipe.make.__qualname__} has no {', '.join(lacking)}; a source has "
            f"{', '.join(_CONTRACT)}: see Source in datasets/protocols/source.py"
        )
    return source
