"""Stream the rows of a database, in ranges of their keys."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Gt

from penstock.core.contracts import Source
from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record
from penstock.datasets.storages.sql.storage import TIMEOUT_S, Row, SqlStorage
from penstock.datasets.storages.sql.table import FieldType

_PAGE_ROWS = 64


class RowItem(NamedTuple):
    """A row before conversion; see `SqlStorage.made`."""

    key: str
    place: int
    row: Row


@register("source", "sql")
class SqlSource(Source):
    """Rows of a database in the order of their keys, a shard for every `shard_rows` rows.

    The rows are listed once, as for ``dataset=sql``. So the number of shards is known, and
    positions stay the same while the table changes.

    Args:
        url: As for ``dataset=sql``, like all other options except `shard_rows`.
        table: A table or view.
        query: One SELECT in place of `table`.
        image_column: The images, or the paths of their files.
        label_column: The labels.
        key_column: The keys.
        version_column: A column that grows with every change.
        columns: The other columns to read.
        types: ``array`` or ``json``, by column.
        root: The folder of the images.
        follow_symlinks: Follow links of images to outside of `root`.
        classes: Class names by id.
        timeout_s: Maximum seconds of a statement.
        shard_rows: Rows of a shard; the order of an epoch depends on it.
    """

    def __init__(
        self,
        url: str,
        *,
        table: str | None = None,
        query: str | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
        key_column: str | None = None,
        version_column: str | None = None,
        columns: list[str] | None = None,
        types: dict[str, FieldType] | None = None,
        root: str | None = None,
        follow_symlinks: bool = False,
        classes: list[str] | None = None,
        timeout_s: Annotated[float, Gt(0)] = TIMEOUT_S,
        shard_rows: Annotated[int, Ge(1)] = 10_000,
    ) -> None:
        given = {name: v for name, v in locals().items() if name not in ("self", "shard_rows")}
        try:
            self._storage = SqlStorage(**given)
            len(self._storage)  # lists the rows
        except ValueError as error:
            raise ValueError(str(error).replace("dataset.storage.", "dataset.source.")) from error
        self._shard_rows = shard_rows
        self.class_names = self._storage.index.class_names

    def __str__(self) -> str:
        return str(self._storage)

    def shards(self, epoch: int) -> Sequence[tuple[int, int]]:
        """Return the ranges of rows: start and stop."""
        count, step = len(self._storage), self._shard_rows
        return [(start, min(start + step, count)) for start in range(0, count, step)]

    def count(self, shard: tuple[int, int]) -> int:
        """Return the number of rows of a shard."""
        return shard[1] - shard[0]

    def read(self, shard: tuple[int, int], start: int) -> Generator[RowItem]:
        """Read the rows of a shard, a page at a time."""
        index, stop = self._storage.index, shard[1]
        for first in range(shard[0] + start, stop, _PAGE_ROWS):
            places = np.arange(first, min(first + _PAGE_ROWS, stop))
            raw = index.raw_keys(places)
            rows = self._storage.rows(raw)
            for place, key, one in zip(places.tolist(), index.keys(places), raw, strict=True):
                yield RowItem(key, place, rows.get(one))

    def load(self, item: RowItem) -> Record | BadRecord:
        """Make the record of a row; a damaged, missing or changed row is a bad record."""
        self._storage.max_record_bytes = self.max_record_bytes
        [record] = self._storage.made(np.array([item.place]), [item.row])
        return record

    def fingerprint(self) -> str:
        """Return a hash of keys, labels and sizes, with the rows of a shard."""
        return f"{self._storage.fingerprint()} {self._shard_rows}"
