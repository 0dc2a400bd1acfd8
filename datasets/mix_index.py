"""The metadata of several data sets, one behind the other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.protocols import Index

SOURCE = "source"
"""The column, and the field of a sample, that says which source a record is of."""


class MixIndex:
    """Indexes one behind the other: record i of a source is record ``firsts[source] + i`` here.

    Classes are united by name: those of the first source, then what the next ones add, each in
    their order. Columns are those that every source has, and ``source``.

    Args:
        indexes: By the names of the sources.

    Attributes:
        names: The names of the sources, by number.
        firsts: The first record of each source, and behind them the number of all, int64 [S + 1].
        class_names: Names of the classes by label, or None where there are no labels.
        field_classes: Names of the classes by field; those of ``source`` are the sources' names.
        class_ids: For each source, by field whose ids are others here: the id of each of its
            own, int64 [C]; None where they have no names, and in another source they have.
    """

    def __init__(self, indexes: Mapping[str, Index]) -> None:
        self.names = tuple(indexes)
        self.firsts = np.cumsum([0, *map(len, indexes.values())])
        self._indexes = tuple(indexes.values())
        classes = [_classes(index) for index in self._indexes]
        united: dict[str, tuple[str, ...]] = {}
        for field in sorted({name for known in classes for name in known}):
            united[field] = tuple(dict.fromkeys(n for c in classes for n in c.get(field, ())))
        self.class_ids = tuple(
            {
                f: _ids(known.get(f), names)
                for f, names in united.items()
                if _differ(known, f, names)
            }
            for known in classes
        )
        self.class_names = united.pop("label", None)
        self.field_classes = {**united, SOURCE: self.names}
        self._columns: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        return int(self.firsts[-1])

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns beside the key."""
        first, *rest = (index.columns for index in self._indexes)
        common = (name for name in first if all(name in columns for columns in rest))
        return (*(name for name in common if name != SOURCE), SOURCE)

    def column(self, name: str) -> NDArray[Any]:
        """One column, [len(self)]; KeyError names the columns there are."""
        if name not in self._columns:
            if name not in self.columns:
                known = ", ".join(self.columns)
                raise KeyError(f"index of a mix: no column {name!r}; of all sources: {known}")
            if name == SOURCE:
                column = np.repeat(np.arange(len(self.names)), np.diff(self.firsts))
            else:
                parts = zip(self._indexes, self.class_ids, strict=True)
                column = np.concatenate([united(i.column(name), ids.get(name)) for i, ids in parts])
            self._columns[name] = column
        return self._columns[name]

    def values(self, name: str, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Values of one column at the given indices, [n], without putting the column together."""
        if name in self._columns or name not in self.columns or not indices.size:
            return self.column(name)[indices]
        order, parts = [], []
        for number, rows, own in self.by_source(indices):
            order.append(rows)
            if name == SOURCE:
                parts.append(np.full(rows.size, number))
            else:
                values = _values(self._indexes[number], name, own)
                parts.append(united(values, self.class_ids[number].get(name)))
        joined = np.concatenate(parts)
        found = np.empty_like(joined)
        found[np.concatenate(order)] = joined
        return found

    def keys(self, indices: NDArray[np.int64]) -> list[str]:
        """Keys of the given indices, int64 [n], as they are in their sources."""
        keys = [""] * len(indices)
        for number, rows, own in self.by_source(indices):
            for row, key in zip(rows.tolist(), self._indexes[number].keys(own), strict=True):
                keys[row] = key
        return keys

    def by_source(
        self, indices: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """For each source among the records `indices`, int64 [n]: which rows, and its own indices.

        Yields:
            The source's number, int64 [m] rows of `indices`, and int64 [m] records of the source.
        """
        sources = np.searchsorted(self.firsts[1:], indices, side="right")
        for number in np.unique(sources).tolist():
            rows = np.flatnonzero(sources == number)
            yield number, rows, indices[rows] - self.firsts[number]

    def fingerprint(self) -> str:
        """Hash of the sources' names and data, in their order."""
        digest = hashlib.blake2b(digest_size=16)
        for name, index in zip(self.names, self._indexes, strict=True):
            digest.update(f"{name}\0{index.fingerprint()}\0".encode())
        return digest.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_columns": {}}  # columns are put together again where needed


def united(values: Any, ids: NDArray[np.int64] | None) -> Any:
    """Class ids of a source as those of the mix; what is no class of the source stays as it is.

    Args:
        values: An integer, or an array of them, such as a mask with ids to be ignored.
        ids: The id in the mix of each of the source's, int64 [C]; None: they are the same.
    """
    if ids is None:
        return values
    array = np.asarray(values)
    known = (array >= 0) & (array < len(ids))
    found = np.where(known, ids[np.where(known, array, 0)], array)
    if not array.ndim:
        return int(found)
    fits = ids.max() <= np.iinfo(array.dtype).max
    return found.astype(array.dtype) if fits else found


def _values(index: Any, name: str, indices: NDArray[np.int64]) -> NDArray[Any]:
    """Values of one column; an index in a file reads these rows alone."""
    if hasattr(index, "values"):
        found: NDArray[Any] = index.values(name, indices)
        return found
    return np.asarray(index.column(name))[indices]


def _classes(index: Any) -> dict[str, tuple[str, ...]]:
    """Names of the classes by field, of those that have some."""
    named = {"label": index.class_names, **getattr(index, "field_classes", {})}
    return {field: tuple(names) for field, names in named.items() if names}


def _differ(known: Mapping[str, tuple[str, ...]], field: str, names: tuple[str, ...]) -> bool:
    """Whether ids of a field, as a source has them, are not those of the same names here."""
    return field not in known or names[: len(known[field])] != known[field]


def _ids(names: Sequence[str] | None, all_names: Sequence[str]) -> NDArray[np.int64] | None:
    """Where each name stands among all."""
    if names is None:
        return None
    places = {name: place for place, name in enumerate(all_names)}
    return np.array([places[name] for name in names], np.int64)
