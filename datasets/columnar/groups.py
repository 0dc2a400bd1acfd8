"""Find the rows of a data set: the file, the group of rows in it, the row of the group.

A group is what a file's format reads as one: a row group, a record batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import TextColumn
from penstock.datasets.columnar.roles import Roles, is_text
from penstock.datasets.files.group_cache import GroupCache

_MOST_TEXTS = 1 << 18  # of a column; one with more takes its memory as a list


@dataclass(frozen=True, slots=True)
class Group:
    """A group of rows and those of its rows that are wanted.

    Attributes:
        number: The group among those of all files.
        file: The file, by number.
        part: The group in its file.
        count: How many rows it has.
        rows: Wanted rows, int64 [n], ascending.
        places: Where in the request each of them stands, int64 [n].
    """

    number: int
    file: int
    part: int
    count: int
    rows: NDArray[np.int64]
    places: NDArray[np.int64]


class RowGroups:
    """The groups of all files, one behind the other.

    Args:
        counts: Rows of every group, file by file.
    """

    def __init__(self, counts: Sequence[Sequence[int]]) -> None:
        flat = [count for file in counts for count in file]
        self._ends = np.cumsum(np.array(flat, np.int64))
        self._file_ends = np.cumsum(np.array([len(file) for file in counts], np.int64))

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first row of each group that has any, int64 [n]."""
        return np.unique(np.append(0, self._ends[:-1]))

    def __len__(self) -> int:
        """Number of rows."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def wanted(self, indices: NDArray[np.int64]) -> Iterator[Group]:
        """The groups that hold the rows `indices`, int64 [n], each once, in file order."""
        order = np.argsort(indices, kind="stable")
        rows = indices[order]
        groups = np.searchsorted(self._ends, rows, side="right")
        cuts = np.flatnonzero(np.diff(groups)) + 1
        for part in np.split(np.arange(len(rows)), cuts) if len(rows) else ():
            number = int(groups[part[0]])
            start = int(self._ends[number - 1]) if number else 0
            file = int(np.searchsorted(self._file_ends, number, side="right"))
            yield Group(
                number=number,
                file=file,
                part=number - (int(self._file_ends[file - 1]) if file else 0),
                count=int(self._ends[number]) - start,
                rows=rows[part] - start,
                places=order[part],
            )


def has_columns(schema: Any, roles: Roles) -> bool:
    """Whether all fields of a table are numbers and texts, and in every record."""
    if roles.images or roles.kinds or roles.paths:
        return False
    return all(is_text(kind) or kind in _numbers() for kind in _types(schema, roles))


class ArrowColumns:
    """The columns of a table's groups, those used last; threads share it.

    Args:
        load: Gives the record batches of a group, validated, and their size in bytes.
        roles: What the columns of a table that `has_columns` become.
        limit_bytes: How much is kept.
    """

    def __init__(
        self,
        load: Callable[[Group], tuple[Sequence[Any], int]],
        roles: Roles,
        limit_bytes: int,
    ) -> None:
        self._load = load
        self._roles = roles
        self._groups = GroupCache(limit_bytes)
        self._texts = {name: _Texts() for name in roles.fields.values()}

    def take(
        self, groups: Iterable[Group], size: int, fields: Collection[str]
    ) -> dict[str, Any] | None:
        """The wanted rows of groups, `size` of them, in their places; by field.

        None where there are too many different texts.
        """
        names = [name for name in self._roles.fields.values() if name in fields]
        values: dict[str, NDArray[Any]] = {}
        texts: set[str] = set()
        for group in groups:
            columns = self._groups.get(group.number, partial(self._columns, group))
            for name in names:
                column = columns[name]
                if name not in values:
                    values[name] = np.empty(size, column.values.dtype)
                values[name][group.places] = column.values[group.rows]
                if column.is_text:
                    texts.add(name)
        if any(self._texts[name].too_many for name in names):
            return None
        return {
            name: TextColumn(self._texts[name].array(), found) if name in texts else found
            for name, found in values.items()
        }

    def _columns(self, group: Group) -> tuple[dict[str, _Column], int]:
        """The columns of a group and what they cost."""
        import pyarrow as pa

        table = pa.Table.from_batches(self._load(group)[0])
        columns = {
            name: _column(table.column(old), self._texts[name], as_float=old in self._roles.floats)
            for old, name in self._roles.fields.items()
        }
        return columns, sum(column.values.nbytes for column in columns.values())


@dataclass(frozen=True, slots=True)
class _Column:
    """Values [n]: numbers with NaN for nulls, or the places of texts."""

    values: NDArray[Any]
    is_text: bool


class _Texts:
    """The different texts of a column, of all groups that were read; threads share it."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.too_many = False
        self._lock = threading.Lock()
        self._array: NDArray[np.object_] | None = None

    def places(self, texts: Iterable[str]) -> NDArray[np.int32]:
        """Number some texts among all."""
        with self._lock:
            places = [self.known.setdefault(text, len(self.known)) for text in texts]
            self.too_many = len(self.known) > _MOST_TEXTS
            return np.array(places, np.int32)

    def array(self) -> NDArray[np.object_]:
        """All texts, and None: the same array until there are more."""
        with self._lock:
            if self._array is None or len(self._array) <= len(self.known):
                self._array = np.array([*self.known, None], object)
            return self._array


def _column(column: Any, texts: _Texts, *, as_float: bool) -> _Column:
    import pyarrow as pa

    if is_text(column.type):
        encoded = column.cast(pa.large_string()).combine_chunks().dictionary_encode()
        places = texts.places(encoded.dictionary.to_pylist())
        own = encoded.indices.fill_null(-1).to_numpy()
        return _Column(np.append(places, np.int32(-1))[own], is_text=True)
    if as_float:
        column = column.cast(pa.float64(), safe=False)
    return _Column(np.array(column.to_numpy()), is_text=False)


def _types(schema: Any, roles: Roles) -> list[Any]:
    return [schema.field(name).type for name in roles.fields]


def _numbers() -> tuple[Any, ...]:
    """Types whose values are the same as Python's own bool, int and float."""
    import pyarrow as pa

    return (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
            pa.uint32(), pa.float32(), pa.float64())  # fmt: skip
