"""Storages over files of arrays of any format: shards of many samples, or a sample each."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Storage, StorageCapabilities
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.datasets.array_shards.shards import (
    Form,
    Shard,
    ShardRows,
    check_shards,
    field_names,
    find_shards,
    open_shard,
)
from penstock.datasets.files.data_files import DataFiles, Scan, find_data_files, told_endings
from penstock.datasets.records.folder_storage import FolderStorage
from penstock.datasets.records.index import IndexContent
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.records.labels import (
    FileLabels,
    LabelIds,
    check_images,
    check_labels,
    class_ids,
    class_names,
)


class LoadColumns(Protocol):
    """How a format opens a file."""

    def __call__(
        self, path: str, *, root: str, where: str, checksums: bool, max_bytes: int
    ) -> Mapping[str | None, Any]:
        """Give the columns of a file by name, as `find_shards` takes them.

        What is compressed may not become absurdly more than `max_bytes`, those of a record.

        Raises:
            ValueError: It is damaged, or holds what is not taken.
            penstock.datasets.files.access.MissingFile: It is gone.
            OSError: Trouble that did not pass.
        """


class ShardStorage(IndexedStorage):
    """Many files of one or more samples each; satisfies `core.contracts.ColumnStorage`.

    The key of a record is what the field ``key`` says, or else the number of its row in all.

    Args:
        name: What the storage is called.
        path: A folder, a file, or a pattern.
        endings: Of the files.
        load: How they are opened; a function of a module.
        classes: Class names by id; None: the lines of ``classes.txt`` beside the files, or else
            the numbers.
        checksums: Compare files with their checksums when they are opened to be read.
        kinds: What ragged fields hold, where their codes do not say it; arrays if not named.
    """

    reading_arguments = ("checksums",)
    _files: DataFiles
    _shards: list[Shard]
    _common: dict[str, Form]

    def __init__(
        self,
        name: str,
        path: str,
        *,
        endings: tuple[str, ...],
        load: LoadColumns,
        classes: list[str] | None,
        checksums: bool,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.path = os.path.abspath(path)
        self.endings = endings
        self.classes = None if classes is None else tuple(classes)
        self.checksums = checksums
        self.kinds = dict(kinds or {})
        self._load = load

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, where all records agree in type and shape; else none."""
        len(self.index)
        return tuple(self._common)

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records; those of a damaged shard are bad records.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: The disk has trouble that did not pass.
        """
        indices = np.asarray(indices, np.int64)
        found = self.opened.read(self.index.rows(indices))
        for fields in found:
            if isinstance(fields, dict):
                fields.pop("key", None)
        return self.records(indices, found)

    @property
    def capabilities(self) -> StorageCapabilities:
        """It gives columns; its shards are files."""
        return StorageCapabilities(columns=self, shards=self._firsts)

    def _firsts(self) -> NDArray[np.int64]:
        len(self.index)
        counts = [shard.count for shard in self._shards]
        return np.unique(np.cumsum([0, *counts[:-1]]))

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, NDArray[Any]] | None:
        """Records as columns; see `core.contracts.ColumnStorage`. None: a shard is damaged.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: The disk has trouble that did not pass.
        """
        rows = self.index.rows(indices)
        forms = {name: form for name, form in self._common.items() if name in fields}
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
        return columns if self.opened.take(rows, list(forms), columns) else None

    def mark(self) -> Any:
        """State of the files, and what lies in text files beside them."""
        self._files = find_data_files(self.path, endings=self.endings, where=str(self))
        return [self._files.recipe, self._class_names(), sorted(field_names(self._beside()))]

    def learn(self, metadata: dict[str, Any]) -> None:
        """Keep what the shards hold."""
        self._shards = [Shard.of(plain) for plain in metadata["shards"]]
        self._common = _common_forms(self._shards)

    def open(self) -> ShardRows:
        """Prepare to open shards, each when it is needed."""
        return self._rows_of(self._shards)

    def scan(self) -> IndexContent:
        """Look at all files."""
        shards = find_shards(self._files, self._looked_at, where=str(self))
        check_shards(shards, field_names(self._beside()), where=str(self))
        rows = self._rows_of(shards)
        counts = [shard.count for shard in shards]
        sizes = [shard.size_bytes // max(shard.count, 1) for shard in shards]
        columns: dict[str, NDArray[Any]] = {"size_bytes": np.repeat(sizes, counts)}
        first = shards[0].forms
        names = None
        if "label" in first:
            labels = [np.asarray(part) for part in self._whole(rows, shards, "label")]
            columns["label"], names = check_labels(
                np.concatenate(labels), self._class_names(), where=str(self)
            )
        if all(_has_sides(shard.forms.get("image")) for shard in shards):
            sides = [self._image_sides(shard) for shard in shards]
            for axis, name in enumerate(("height", "width")):
                columns[name] = np.repeat([side[axis] for side in sides], counts).astype(np.int32)
        named: Any = {"key_pattern": "{}", "count": sum(counts)}
        if "key" in first:
            named = {"keys": self._keys(rows, shards)}
        return {
            **named,
            "columns": columns,
            "class_names": names,
            "metadata": {"shards": [shard.plain() for shard in shards]},
        }

    def _looked_at(self, number: int) -> Mapping[str | None, Any]:
        """The columns of a file whose content is not needed yet."""
        name, root = self._files.names[number], self._files.root
        path = os.path.join(root, name)
        where, most = f"{self}: {name}", self.max_record_bytes
        return self._load(path, root=root, where=where, checksums=False, max_bytes=most)

    def _opened(self, number: int) -> Mapping[str | None, Any]:
        path, root = os.path.join(self._files.root, self._files.names[number]), self._files.root
        checks, most = self.checksums, self.max_record_bytes
        return self._load(path, root=root, where="it", checksums=checks, max_bytes=most)

    def _rows_of(self, shards: list[Shard]) -> ShardRows:
        counts = np.array([shard.count for shard in shards], np.int64)
        return ShardRows(
            counts, lambda n: open_shard(shards[n], self._files, self._opened, self.kinds)
        )

    def _class_names(self) -> tuple[str, ...] | None:
        return class_names(self._beside(), self.classes, where=str(self))

    def _beside(self) -> str:
        """The folder in which class names may lie."""
        return self.path if os.path.isdir(self.path) else os.path.dirname(self.path)

    def _image_sides(self, shard: Shard) -> tuple[int, ...]:
        form = shard.forms["image"]
        assert form is not None
        check_images((shard.count, *form.shape), form.dtype, where=f"{self}: {shard.name}")
        return form.shape[:2]

    def _keys(self, rows: ShardRows, shards: list[Shard]) -> list[str]:
        keys: list[str] = []
        for part, shard in zip(self._whole(rows, shards, "key"), shards, strict=True):
            try:
                keys += [str(part[row]) for row in range(shard.count)]
            except RecordError as error:
                raise ValueError(f"{self}: {shard.name}: key: {error}; write it again") from error
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
            except RecordError as error:
                raise ValueError(f"{self}: {shard.name}: {error}; write it again") from error
        return parts


def _common_forms(shards: list[Shard]) -> dict[str, Form]:
    """Form of every field, if it is the same in all shards and of numbers; else nothing."""
    first = {name: form for name, form in shards[0].forms.items() if name != "key"}
    agreed = all(shard.forms.keys() == shards[0].forms.keys()
                 and all(shard.forms[name] == form for name, form in first.items())
                 for shard in shards)  # fmt: skip
    numeric = {n: f for n, f in first.items() if f and np.dtype(f.dtype).kind in "biufc"}
    return numeric if agreed and len(numeric) == len(first) else {}


def _has_sides(form: Form | None) -> bool:
    return form is not None and np.dtype(form.dtype).kind != "S"


def _size_bytes(form: Form) -> int:
    return math.prod(form.shape) * np.dtype(form.dtype).itemsize


class SampleFiles(FolderStorage):
    """Files of arrays below a folder, a sample each.

    Args:
        name: What the storage is called.
        path: The folder.
        endings: Of the files.
        load: The fields in a file, of its path, the folder's, and the bytes that a record may
            take; ValueError where it is damaged or too large.
        labels: Where their labels come from; with the source ``file`` from the files' own
            ``label``, which is not used otherwise.
        classes: Class names by id; None: those found.
    """

    def __init__(
        self,
        name: str,
        path: str,
        *,
        endings: tuple[str, ...],
        load: Callable[[str, str, int], dict[str, Any]],
        labels: FileLabels,
        classes: list[str] | None,
    ) -> None:
        self.name = name
        self.path = path
        self.endings = endings
        self.classes = None if classes is None else tuple(classes)
        self.rows, self.labels = False, labels
        self._load = load

    def fields(self, path: str) -> dict[str, Any]:
        """Read the fields in a file but the label."""
        return {name: value for name, value in self._all(path).items() if name != "label"}

    def nothing(self, found: Scan) -> str:
        """Say which other files there are."""
        return (
            f"no {' or '.join(self.endings)} file found, among {told_endings(found.others)}; set "
            f"dataset.storage.path"
        )

    def labelled(self, content: IndexContent) -> IndexContent:
        """Add the labels, which may be in the files."""
        if self.labels.source != "file":
            return super().labelled(content)
        ids, names = self._labels_inside(content.get("keys") or ())
        columns = {**content["columns"], "label": ids}
        return {**content, "columns": columns, "class_names": names}

    def _all(self, path: str) -> dict[str, Any]:
        try:
            found = self._load(path, self.path, self.max_record_bytes)
        except ValueError as error:
            raise RecordError(" ".join(str(error).split())) from error
        return {name: _plain(value) for name, value in found.items()}

    def _labels_inside(self, keys: Sequence[str | bytes]) -> LabelIds:
        """Class ids, or the ids of class names, that stand in the files."""
        found = []
        for key in keys:
            name = os.fsdecode(key)
            try:
                label = self._all(os.path.join(self.path, name)).get("label")
            except RecordError as error:
                raise ValueError(f"{self}: {name}: {error}; repair or remove it") from error
            if not isinstance(label, int | str) or isinstance(label, bool):
                raise ValueError(
                    f"{self}: {name}: its label is a {type(label).__name__}, expected a class id "
                    f"or a class name under 'label'; write it so, or set dataset.storage.labels"
                )
            found.append(label)
        if all(isinstance(label, int) for label in found):
            return check_labels(np.array(found), self.classes, where=str(self))
        return class_ids([str(label) for label in found], self.classes, where=str(self))


def open_shards(
    name: str,
    path: str,
    *,
    rows: bool,
    endings: tuple[str, ...],
    load: LoadColumns,
    load_sample: Callable[[str, str, int], dict[str, Any]],
    labels: Callable[..., FileLabels],
    classes: list[str] | None,
    checksums: bool,
    kinds: Mapping[str, str] | None = None,
) -> Storage:
    """Open files of samples along their first axis (`rows`), or of one sample each."""
    if rows:
        return ShardStorage(
            name, path, endings=endings, load=load, classes=classes, checksums=checksums,
            kinds=kinds,
        )  # fmt: skip
    path = os.path.abspath(path)
    found = labels(folder=path, own=True)
    return SampleFiles(name, path, endings=endings, load=load_sample, labels=found, classes=classes)


def _plain(value: Any) -> Any:
    """A value, or the number in an array without axes."""
    return value.item() if isinstance(value, np.ndarray) and not value.ndim else value
