"""Arrays in memory-mapped files, a sample per row."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import (
    check_field,
    field_name,
    field_place,
    look_at_header,
    same_count,
    taken_rows,
)
from penstock.core.contracts import StorageCapabilities
from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.index import IndexContent
from penstock.datasets.records.indexed_storage import IndexedStorage, file_mark
from penstock.datasets.records.labels import (
    CLASSES_NAME,
    check_images,
    check_labels,
    class_names,
)

KEYS_NAME = "keys.txt"
_ZIP = b"PK\x03\x04"


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """An array in a file, the samples along its first axis.

    Attributes:
        path: The file.
        shape: Shape of the array, the number of samples first.
        dtype: Its type, as NumPy writes it, such as ``|u1`` or ``<f4``.
        offset: Where in the file it begins, in bytes.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def size_bytes(self) -> int:
        """Size of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def map(self) -> NDArray[Any]:
        """The array, read-only, mapped from the file.

        Raises:
            ValueError: The file is shorter than it was when it was looked at.
        """
        mapped = np.memmap(self.path, np.dtype(self.dtype), "r", self.offset, self.shape)
        # Of the base class: each view of an np.memmap costs a microsecond more.
        return mapped.view(np.ndarray)


def find_array_files(
    path: str | Mapping[str, str], raw: Sequence[str], *, where: str
) -> dict[str, str]:
    """Find the file of every field.

    Args:
        path: A folder; one file, which holds the images; or files by field name.
        raw: Fields whose files are no `.npy` files.
        where: What messages call the storage.

    Returns:
        Paths by field name, ``image`` and ``label`` first.

    Raises:
        ValueError: There are none, or two of one field, or a field may not be called so.
    """
    if isinstance(path, Mapping):
        files = {field: os.path.abspath(file) for field, file in path.items()}
    elif os.path.isdir(path):
        files = _in_folder(Path(path), raw, where)
    else:
        files = {"image": os.path.abspath(path)}
    if not files:
        raise ValueError(
            f"{where}: no .npy file in there, expected one for each field, such as images.npy and "
            f"labels.npy; for raw files give the shape of a sample: "
            f"dataset.storage.shapes.image=[32,32,3]"
        )
    for field, file in files.items():
        check_field(field, os.path.basename(file), where=where)
        if not os.path.isfile(file):
            what = "a folder" if os.path.isdir(file) else "nothing there"
            raise ValueError(
                f"{where}: expected an array file at {file}, got {what}; set dataset.storage.path"
            )
    for field in raw:
        if field not in files:
            raise ValueError(
                f"{where}: shapes names the field {field!r}, which has no file; fields: "
                f"{', '.join(files)}"
            )
    return {field: files[field] for field in sorted(files, key=field_place)}


def look_at_npy(path: str, *, where: str) -> ArrayFile:
    """Look at the header of a `.npy` file. Nothing is unpickled.

    Raises:
        ValueError: It is damaged, cut short, or holds what cannot be mapped.
        OSError: It cannot be read.
    """
    name = os.path.basename(path)
    with open(path, "rb") as file:
        if file.read(4) == _ZIP:
            raise ValueError(
                f"{where}: {name} is an archive (.npz), which cannot be mapped; unpack it and "
                f"name one .npy file per field, or use dataset=npy_shards"
            )
        file.seek(0)
        remedy = "give the shape of a sample in a raw file: dataset.storage.shapes"
        size = os.path.getsize(path)
        shape, dtype, offset = look_at_header(file, size, f"{where}: {name}", remedy=remedy)
    return ArrayFile(path, shape, dtype, offset)


def look_at_raw(
    path: str, shape: Sequence[int], dtype: str, offset: int, *, where: str
) -> ArrayFile:
    """Look at a file without a header: it holds as many samples as fit into it.

    Args:
        path: The file.
        shape: Shape of one sample; empty for one number.
        dtype: Type of the numbers.
        offset: Bytes before the first sample.
        where: What messages call the storage.

    Raises:
        ValueError: The type or the shape is none, or the file ends within a sample.
    """
    name, size = os.path.basename(path), os.path.getsize(path)
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind.kind not in "biufc":
        raise ValueError(
            f"{where}: {name}: type {dtype!r}; expected one of numbers, such as uint8, int64, "
            f"float32 or '>u2'"
        )
    sample_bytes = math.prod(shape) * kind.itemsize
    if not all(length > 0 for length in shape) or offset < 0:
        raise ValueError(
            f"{where}: {name}: sample shape {list(shape)} from byte {offset} on; expected lengths "
            f"above 0 and an offset of 0 or more"
        )
    if size < offset or (size - offset) % sample_bytes:
        raise ValueError(
            f"{where}: {name} has {size:,} bytes, expected {offset} and a multiple of "
            f"{sample_bytes:,} ({kind} {list(shape)}); check shapes, dtypes and offsets, or "
            f"copy it again"
        )
    return ArrayFile(path, ((size - offset) // sample_bytes, *shape), kind.str, offset)


def _in_folder(folder: Path, raw: Sequence[str], where: str) -> dict[str, str]:
    files: dict[str, str] = {}
    for file in sorted(folder.iterdir()):
        if file.name.startswith(".") or not file.is_file():
            continue
        field = field_name(file.stem)
        if (file.suffix == ".npy") == (field in raw):
            continue
        if field in files:
            raise ValueError(
                f"{where}: {os.path.basename(files[field])} and {file.name} are both the field "
                f"{field!r}; rename one, or name the files: "
                f"dataset.storage.path={{{field}: {file.name}}}"
            )
        files[field] = str(file.absolute())
    return files


@register("storage", "memmap")
class MemmapStorage(IndexedStorage):
    """Images, labels and any other arrays in `.npy` or raw files, mapped and never loaded.

    Each file is a field: ``images.npy`` is ``image``, uint8 [N, H, W, C]; ``labels.npy`` is
    ``label``, integers [N]; any other is the field of its name. All have the same number of
    rows. The key of a record is its line of ``keys.txt`` in the folder, or else the number of its
    row. Fields with more than one axis are views of the map.

    Args:
        path: A folder of these files; one file, which holds the images; or files by field:
            ``{image: a.npy, label: b.npy}``.
        shapes: For raw files: shape of one sample by field, such as ``{image: [32, 32, 3],
            label: []}``.
        dtypes: Types in raw files by field, such as ``{label: int64}``; uint8 where not named.
        offsets: Bytes before the first sample of raw files, by field.
        classes: Class names by id; None: the lines of ``classes.txt`` in the folder, or else the
            numbers.
    """

    name = "memmap"

    def __init__(
        self,
        path: str | dict[str, str],
        *,
        shapes: dict[str, list[int]] | None = None,
        dtypes: dict[str, str] | None = None,
        offsets: dict[str, int] | None = None,
        classes: list[str] | None = None,
    ) -> None:
        self.path: Any = os.path.abspath(path) if isinstance(path, str) else path
        self.shapes = dict(shapes or {})
        self.dtypes = dict(dtypes or {})
        self.offsets = dict(offsets or {})
        self.classes = None if classes is None else tuple(classes)
        for name, given in (("dtypes", self.dtypes), ("offsets", self.offsets)):
            if extra := sorted(given.keys() - self.shapes.keys()):
                raise ValueError(
                    f"{self}: {name} names {extra[0]!r}, and shapes does not; a raw file needs "
                    f"dataset.storage.shapes.{extra[0]}, a .npy file neither"
                )
        self._files: dict[str, ArrayFile] | None = None

    def __str__(self) -> str:
        path = self.path if isinstance(self.path, str) else ", ".join(self.path.values())
        return f"memmap {path}"

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that every record has."""
        return tuple(self._look())

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Records whose arrays are read-only views of the map.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
        """
        keys = self.index.keys(indices)
        columns: list[Any] = []
        for array in self.opened.values():
            if array.ndim == 1:
                columns.append(array[indices].tolist())
            else:
                columns.append([array[i] for i in indices.tolist()])
        names = self.fields
        return [
            Record(i, key, dict(zip(names, values, strict=True)))
            for i, key, *values in zip(indices.tolist(), keys, *columns, strict=True)
        ]

    @property
    def capabilities(self) -> StorageCapabilities:
        """It gives columns."""
        return StorageCapabilities(columns=self, held_bytes=self.held_bytes)

    def held_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """No memory, int64 [n]: records are views of the map."""
        return np.zeros(len(indices), np.int64)

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Records as columns, each gathered in one call; see `core.contracts.ColumnStorage`.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
        """
        rows = self.index.rows(indices)
        arrays = {name: array for name, array in self.opened.items() if name in fields}
        largest = max(arrays, key=lambda name: arrays[name].nbytes, default=None)
        columns = {}
        for name, array in arrays.items():
            columns[name] = taken_rows(array, rows, allocate if name == largest else None)
        return columns

    def mark(self) -> dict[str, Any]:
        """Size and time of every file that the index is made from, and the names of classes."""
        marks: dict[str, Any] = {field: file_mark(f.path) for field, f in self._look().items()}
        if (keys := self._keys_path()) is not None:
            marks[KEYS_NAME] = file_mark(keys)
        return {**marks, CLASSES_NAME: self._class_names()}

    def open(self) -> dict[str, NDArray[Any]]:
        """Map the arrays."""
        return {name: file.map() for name, file in self._look().items()}

    def _look(self) -> dict[str, ArrayFile]:
        """The files, checked against each other."""
        if self._files is None:
            paths = find_array_files(self.path, list(self.shapes), where=str(self))
            files = {field: self._look_at(field, path) for field, path in paths.items()}
            counts = {field: file.shape[0] for field, file in files.items()}
            if same_count(counts, where=str(self)) == 0:
                raise ValueError(f"{self}: the arrays have no rows, expected one per sample")
            if "image" in files:
                check_images(files["image"].shape, files["image"].dtype, where=str(self))
            self._files = files
        return self._files

    def _look_at(self, field: str, path: str) -> ArrayFile:
        if field not in self.shapes:
            return look_at_npy(path, where=str(self))
        dtype, offset = self.dtypes.get(field, "uint8"), self.offsets.get(field, 0)
        return look_at_raw(path, self.shapes[field], dtype, offset, where=str(self))

    def scan(self) -> IndexContent:
        """Read labels and keys; sizes are those of the arrays."""
        files = self._look()
        count = next(iter(files.values())).shape[0]
        size_bytes = sum(file.size_bytes for file in files.values()) // count
        columns: dict[str, NDArray[Any]] = {"size_bytes": np.full(count, size_bytes)}
        names = None
        if "label" in files:
            labels = files["label"].map()
            columns["label"], names = check_labels(labels, self._class_names(), where=str(self))
        if "image" in files:
            for axis, name in ((1, "height"), (2, "width")):
                columns[name] = np.full(count, files["image"].shape[axis], np.int32)
        keys = self._keys(count)
        named: IndexContent = {"columns": columns, "class_names": names}
        return {**named, "keys": keys} if keys else {**named, "key_pattern": "{}", "count": count}

    def _keys_path(self) -> Path | None:
        path = Path(self.path, KEYS_NAME) if isinstance(self.path, str) else None
        return path if path is not None and path.is_file() else None

    def _keys(self, count: int) -> list[bytes] | None:
        """The lines of the file of keys; None where there is none."""
        path = self._keys_path()
        if path is None:
            return None
        keys = path.read_bytes().removesuffix(b"\n").split(b"\n")
        if len(keys) != count or len(set(keys)) != count:
            raise ValueError(
                f"{self}: {KEYS_NAME} has {len(set(keys)):,} different lines for {count:,} rows, "
                f"expected one for each; correct it, or take it away"
            )
        return keys

    def _class_names(self) -> tuple[str, ...] | None:
        folder = self.path if isinstance(self.path, str) else None
        return class_names(folder, self.classes, where=str(self))
