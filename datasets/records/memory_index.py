"""Indexes in memory, and any index as a full one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import FullIndex, Index


class MemoryIndex:
    """Metadata of every record, in memory; satisfies `core.contracts.Index`.

    Args:
        keys: The key of every record.
        columns: Numbers by column name, each [n].
        class_names: Names of the classes by label.
        field_classes: Names of the classes by annotated field, such as ``mask``.
    """

    def __init__(
        self,
        keys: Sequence[str],
        columns: Mapping[str, Any] | None = None,
        class_names: Sequence[str] | None = None,
        field_classes: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self._keys = list(keys)
        self._columns = {name: np.asarray(values) for name, values in (columns or {}).items()}
        self._class_names = None if class_names is None else tuple(class_names)
        self._field_classes = dict(field_classes or {})
        for name, values in self._columns.items():
            if values.shape != (len(self._keys),):
                raise ValueError(
                    f"index: column {name!r} has the shape {values.shape}, expected one value "
                    f"for each of the {len(self._keys)} keys"
                )

    @classmethod
    def of(cls, index: Index) -> MemoryIndex:
        """A copy of any index."""
        keys = index.keys(np.arange(len(index)))
        columns = {name: index.column(name) for name in index.columns}
        field_classes = index.field_classes if isinstance(index, FullIndex) else None
        return cls(keys, columns, index.class_names, field_classes)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns beside the key."""
        return tuple(self._columns)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes by label, or None where there are no labels."""
        return self._class_names

    @property
    def field_classes(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the classes by annotated field."""
        return self._field_classes

    def column(self, name: str) -> NDArray[Any]:
        """One column, [len(self)]; KeyError names the columns there are."""
        if name not in self._columns:
            known = ", ".join(self._columns) or "none"
            raise KeyError(f"index: no column {name!r}; columns: {known}")
        return self._columns[name]

    def keys(self, indices: NDArray[np.int64]) -> list[str]:
        """Keys of the given indices, int64 [n]."""
        return [self._keys[i] for i in np.asarray(indices).tolist()]

    def values(self, name: str, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Values of one column at the given indices, [n]."""
        return self.column(name)[indices]

    def key_column(self, indices: NDArray[np.int64]) -> list[str]:
        """The same as `keys`."""
        return self.keys(indices)

    def take(self, indices: NDArray[Any]) -> MemoryIndex:
        """The index of a selection of rows."""
        columns = {name: values[indices] for name, values in self._columns.items()}
        return MemoryIndex(self.keys(indices), columns, self._class_names, self._field_classes)

    def fingerprint(self) -> str:
        """Hash of keys, sizes and labels."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([self._keys, self._class_names]).encode())
        for name in ("label", "size_bytes"):
            if name in self._columns:
                digest.update(json.dumps([name, self._columns[name].tolist()]).encode())
        return digest.hexdigest()


class PlainIndex:
    """An index with the least that one needs, as a full one; keys may be made when asked for."""

    field_classes: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def __init__(self, index: Index) -> None:
        self._index = index

    def __len__(self) -> int:
        return len(self._index)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns beside the key."""
        return self._index.columns

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes by label."""
        return self._index.class_names

    def column(self, name: str) -> NDArray[Any]:
        """One column, [len(self)]."""
        return self._index.column(name)

    def keys(self, indices: NDArray[np.int64]) -> list[str]:
        """Keys of the given indices, int64 [n]."""
        return self._index.keys(indices)

    def key_column(self, indices: NDArray[np.int64]) -> list[str]:
        """The same as `keys`."""
        return self._index.keys(indices)

    def fingerprint(self) -> str:
        """Hash of what it holds."""
        return self._index.fingerprint()

    def values(self, name: str, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Values of one column at the given indices, [n]."""
        return np.asarray(self.column(name))[indices]


def full_index(index: Index) -> FullIndex:
    """The index itself, if it has all that ours have, or else a view that has."""
    return index if isinstance(index, FullIndex) else PlainIndex(index)
