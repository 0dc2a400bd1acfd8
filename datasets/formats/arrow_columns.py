"""Columns of Arrow data as arrays, from which many rows are taken at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.formats.arrow_roles import Roles
from datasets.group_cache import GroupCache
from datasets.row_groups import Group
from datasets.sample import TextColumn

_MOST_TEXTS = 1 << 18  # of a column: what has more is no category, and takes memory as a list


def has_columns(schema: Any, roles: Roles) -> bool:
    """Whether all fields of a table are numbers and texts, and in every record."""
    if roles.images or roles.kinds:
        return False
    return all(_is_text(kind) or kind in _numbers() for kind in _types(schema, roles))


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
        gone: dict[str, NDArray[np.bool_]] = {}
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
                if column.gone is not None:
                    if name not in gone:
                        gone[name] = np.zeros(size, np.bool_)
                    gone[name][group.places] = column.gone[group.rows]
        if any(self._texts[name].too_many for name in names):
            return None
        joined: dict[str, Any] = {}
        for name, its_values in values.items():
            its_gone = gone.get(name)
            if name in texts:
                joined[name] = TextColumn(self._texts[name].array(), its_values)
            elif its_gone is not None and its_gone.any():
                joined[name] = np.ma.MaskedArray(its_values, its_gone)
            else:
                joined[name] = its_values
        return joined

    def _columns(self, group: Group) -> tuple[dict[str, _Column], int]:
        """The columns of a group and what they cost."""
        import pyarrow as pa

        table = pa.Table.from_batches(self._load(group)[0])
        columns = {
            name: _column(table.column(old), self._texts[name])
            for old, name in self._roles.fields.items()
        }
        return columns, sum(column.values.nbytes for column in columns.values())


@dataclass(frozen=True, slots=True)
class _Column:
    """Values [n], of texts their places; and which of them are None, if any number is."""

    values: NDArray[Any]
    is_text: bool
    gone: NDArray[np.bool_] | None = None


class _Texts:
    """The different texts of a column, of all groups that were read; threads share it."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.too_many = False
        self._lock = threading.Lock()
        self._array: NDArray[np.object_] | None = None

    def places(self, texts: Iterable[str]) -> NDArray[np.int32]:
        """Where each of some texts stands among all."""
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


def _column(column: Any, texts: _Texts) -> _Column:
    import pyarrow as pa

    if _is_text(column.type):
        encoded = column.cast(pa.large_string()).combine_chunks().dictionary_encode()
        places = texts.places(encoded.dictionary.to_pylist())
        own = encoded.indices.fill_null(-1).to_numpy()
        return _Column(np.append(places, np.int32(-1))[own], is_text=True)
    gone = None
    if column.null_count:
        gone = column.is_null().to_numpy()
        column = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    return _Column(np.array(column.to_numpy()), is_text=False, gone=gone)


def _types(schema: Any, roles: Roles) -> list[Any]:
    return [schema.field(name).type for name in roles.fields]


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _numbers() -> tuple[Any, ...]:
    """Types whose values are the same as Python's own bool, int and float."""
    import pyarrow as pa

    return (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
            pa.uint32(), pa.float32(), pa.float64())  # fmt: skip
