"""An index held in memory: for small data sets and for storages with no file to map."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from datasets import protocols


class MemoryIndex:
    """Metadata of every record, in memory; satisfies `datasets.protocols.Index`.

    Args:
        keys: The key of every record.
        columns: Numbers by column name, each [n].
        class_names: Names of the classes by label.
    """

    def __init__(
        self,
        keys: Sequence[str],
        columns: Mapping[str, Any] | None = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self._keys = list(keys)
        self._columns = {name: np.asarray(values) for name, values in (columns or {}).items()}
        self._class_names = None if class_names is None else tuple(class_names)
        for name, values in self._columns.items():
            if values.shape != (len(self._keys),):
                raise ValueError(
                    f"index: column {name!r} has the shape {values.shape}, expected one value "
                    f"for each of the {len(self._keys)} keys"
                )

    @classmethod
    def of(cls, index: protocols.Index) -> MemoryIndex:
        """A copy of any index."""
        keys = index.keys(np.arange(len(index)))
        columns = {name: index.column(name) for name in index.columns}
        return cls(keys, columns, index.class_names)

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

    def column(self, name: str) -> NDArray[Any]:
        """One column, [len(self)]; KeyError names the columns there are."""
        if name not in self._columns:
            known = ", ".join(self._columns) or "none"
            raise KeyError(f"index: no column {name!r}; columns: {known}")
        return self._columns[name]

    def keys(self, indices: NDArray[np.int64]) -> list[str]:
        """Keys of the given indices, int64 [n]."""
        return [self._keys[i] for i in np.asarray(indices).tolist()]

    def take(self, indices: NDArray[Any]) -> MemoryIndex:
        """The index of a selection of rows."""
        columns = {name: values[indices] for name, values in self._columns.items()}
        return MemoryIndex(self.keys(indices), columns, self._class_names)

    def fingerprint(self) -> str:
        """Hash of keys, sizes and labels."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([self._keys, self._class_names]).encode())
        for name in ("label", "size_bytes"):
            if name in self._columns:
                digest.update(json.dumps([name, self._columns[name].tolist()]).encode())
        return digest.hexdigest()
