"""Where a stream comes from: shards, and the reader of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from datasets.sample import BadRecord, Record


class Source(Protocol):
    """Where a stream comes from: shards, each read from its start to its end.

    A source may have ``class_names``, a tuple of strings by label, and ``counts``, the number of
    items by shard, as far as it knows them: whoever resumes passes such shards by unopened.
    """

    @property
    def reopens(self) -> bool:
        """Whether a shard can be opened again: for another epoch, another rank, to resume."""

    def shards(self, epoch: int) -> Sequence[Any]:
        """What `open` takes, hashable, in the source's own order."""

    def open(self, shard: Any) -> ShardReader:
        """Read a shard. Trouble that is no damage of the data raises, here or while reading."""

    def load(self, item: Any) -> Record | BadRecord:
        """The record of an item, in any process."""

    def fingerprint(self) -> str:
        """Hash of what is known of the data without reading it; not of paths or times."""


class ShardReader(Protocol):
    """The items of one shard, in order.

    An item is a `BadRecord`, of which one may also be the last and say what is lost behind it
    (``ends_shard=True``), or something small with a ``key``, of which the source's `load` makes the
    record.
    """

    def __next__(self) -> Any:
        """The next item; StopIteration at the shard's end."""

    def skip(self, count: int) -> int:
        """Pass over so many items; how many there were, fewer only at the shard's end."""

    def close(self) -> None:
        """Let go of files, processes and connections."""
