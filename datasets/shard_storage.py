"""A storage over shards, whatever their format: index, records and whole columns."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from datasets.annotations.label_arrays import check_images, check_labels, class_names
from datasets.data_files import DataFiles, find_data_files
from datasets.file_reader import MissingFile
from datasets.index import Index, write_index
from datasets.index_cache import cached_index
from datasets.indexed_storage import IndexedStorage
from datasets.sample import BadRecord, Record
from datasets.shard_rows import DamagedShard, OpenShard, ShardRows
from datasets.shards import Form, Shard, check_shards, field_names


class ShardFormat(Protocol):
    """How files of a kind are looked at and opened. Plain attributes: what decides the index."""

    endings: tuple[str, ...]

    def look(self, files: DataFiles, *, where: str) -> list[Shard]:
        """The shards that the files make up; ValueError for what cannot be one."""

    def open(self, shard: Shard, files: DataFiles) -> OpenShard:
        """A shard's arrays; `DamagedShard` or MissingFile where they cannot be had."""


class ShardStorage(IndexedStorage):
    """Many files of one or more samples each; satisfies `datasets.protocols.ColumnStorage`.

    The key of a record is what the field ``key`` says, or else the number of its row in all.

    Args:
        name: What the storage is called.
        path: A folder, a file, or a pattern.
        form: How the files are read.
        classes: Class names by id; None: the lines of ``classes.txt`` beside the files, or else
            the numbers.
    """

    def __init__(
        self, name: str, path: str, *, form: ShardFormat, classes: list[str] | None
    ) -> None:
        self.name = name
        self.path = os.path.abspath(path)
        self._form = form
        self.classes = None if classes is None else tuple(classes)
        self._index: Index | None = None
        self._files: DataFiles | None = None
        self._shards: list[Shard] = []
        self._common: dict[str, Form] | None = None
        self._rows: ShardRows | None = None

    @property
    def index(self) -> Index:
        """Key, label, height, width and size_bytes of every record, as far as there are any."""
        if self._index is None:
            files = find_data_files(self.path, endings=self._form.endings, where=str(self))
            self._files = files
            names = class_names(self._beside(), self.classes, where=str(self))
            optional = field_names(self._beside())
            self._index = cached_index(
                {
                    **self._recipe(),
                    **vars(self._form),
                    "classes": names,
                    "optional": sorted(optional),
                },
                build=lambda path: self._build(path, files, names, optional),
                is_current=lambda index: index.metadata["files"] == files.recipe,
            )
            self._shards = [Shard.of(plain) for plain in self._index.metadata["shards"]]
        return self._index

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, where all records agree in type and shape; else none."""
        return tuple(self._forms())

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records; those of a damaged shard are bad records.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: The disk has trouble that did not pass.
        """
        keys = self.index.keys(indices)
        rows = self.index.rows(indices)
        return [
            BadRecord(i, key, found) if isinstance(found, str) else Record(i, key, found)
            for i, key, found in zip(rows.tolist(), keys, self._read_rows(rows), strict=True)
        ]

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, NDArray[Any]] | None:
        """Records as columns; see `datasets.protocols.ColumnStorage`. None: a shard is damaged.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: The disk has trouble that did not pass.
        """
        rows = self.index.rows(indices)
        forms = {name: form for name, form in self._forms().items() if name in fields}
        sizes = {name: _size_bytes(form) * rows.size for name, form in forms.items()}
        largest = max(sizes, key=sizes.__getitem__, default=None)
        columns: dict[str, NDArray[Any]] = {}
        for name, form in forms.items():
            shape = (rows.size, *form.shape)
            if allocate is not None and name == largest:
                memory = allocate(sizes[name])
                columns[name] = np.frombuffer(memory, form.dtype, math.prod(shape)).reshape(shape)
            else:
                columns[name] = np.empty(shape, form.dtype)
        return columns if self._opened().take(rows, list(forms), columns) else None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_index": self.index, "_rows": None}

    def _read_rows(self, rows: NDArray[np.int64]) -> list[dict[str, Any] | str]:
        found = self._opened().read(rows)
        for fields in found:
            if isinstance(fields, dict):
                fields.pop("key", None)
        return found

    def _opened(self) -> ShardRows:
        rows = self._rows
        if rows is None:
            len(self.index)
            assert self._files is not None
            rows = self._rows = self._shard_rows(self._shards, self._files)
        return rows

    def _shard_rows(self, shards: list[Shard], files: DataFiles) -> ShardRows:
        counts = np.array([shard.count for shard in shards], np.int64)
        return ShardRows(counts, lambda number: self._form.open(shards[number], files))

    def _forms(self) -> dict[str, Form]:
        """Form of every field, if it is the same in all shards; else nothing."""
        if self._common is None:
            len(self.index)
            first = {name: form for name, form in self._shards[0].forms.items() if name != "key"}
            agreed = all(
                shard.forms.keys() == self._shards[0].forms.keys()
                and all(shard.forms[name] == form for name, form in first.items())
                for shard in self._shards
            )
            numeric = {n: f for n, f in first.items() if f and np.dtype(f.dtype).kind in "biufc"}
            self._common = numeric if agreed and len(numeric) == len(first) else {}
        return self._common

    def _beside(self) -> str:
        """The folder in which class names may lie."""
        return self.path if os.path.isdir(self.path) else os.path.dirname(self.path)

    def _build(
        self,
        path: Path,
        files: DataFiles,
        names: tuple[str, ...] | None,
        optional: frozenset[str],
    ) -> None:
        """Look at all files and write the index."""
        shards = self._form.look(files, where=str(self))
        check_shards(shards, optional, where=str(self))
        rows = self._shard_rows(shards, files)
        counts = [shard.count for shard in shards]
        sizes = [shard.size_bytes // max(shard.count, 1) for shard in shards]
        columns: dict[str, NDArray[Any]] = {"size_bytes": np.repeat(sizes, counts)}
        first = shards[0].forms
        if "label" in first:
            labels = [np.asarray(part) for part in self._whole(rows, shards, "label")]
            columns["label"], names = check_labels(np.concatenate(labels), names, where=str(self))
        else:
            names = None
        if all(_has_sides(shard.forms.get("image")) for shard in shards):
            sides = [self._image_sides(shard) for shard in shards]
            for axis, name in enumerate(("height", "width")):
                columns[name] = np.repeat([side[axis] for side in sides], counts).astype(np.int32)
        generated: dict[str, Any] = {"key_pattern": "{}", "count": sum(counts)}
        write_index(
            path,
            **({"keys": self._keys(rows, shards)} if "key" in first else generated),
            columns=columns,
            class_names=names,
            metadata={"files": files.recipe, "shards": [shard.plain() for shard in shards]},
        )

    def _image_sides(self, shard: Shard) -> tuple[int, ...]:
        form = shard.forms["image"]
        assert form is not None
        check_images((shard.count, *form.shape), form.dtype, where=f"{self}: {shard.name}")
        return form.shape[:2]

    def _keys(self, rows: ShardRows, shards: list[Shard]) -> list[str]:
        keys = [
            str(part[row])
            for part, shard in zip(self._whole(rows, shards, "key"), shards, strict=True)
            for row in range(shard.count)
        ]
        if len(set(keys)) < len(keys):
            seen: set[str] = set()
            twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ValueError(f"{self}: the key {twice!r} stands twice; give every record its own")
        return keys

    def _whole(self, rows: ShardRows, shards: list[Shard], field: str) -> list[Any]:
        parts = []
        for number, shard in enumerate(shards):
            try:
                parts.append(rows.whole(number, field))
            except (DamagedShard, MissingFile) as error:
                raise ValueError(f"{self}: {shard.name}: {error}; write it again") from error
        return parts


def _has_sides(form: Form | None) -> bool:
    return form is not None and np.dtype(form.dtype).kind != "S"


def _size_bytes(form: Form) -> int:
    return math.prod(form.shape) * np.dtype(form.dtype).itemsize
