"""Read arrays in memory-mapped files, a sample per row."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import check_field, field_name, field_place, look_at_header
from penstock.core.registry import register
from penstock.datasets.array_shards.shards import Columns, Shard
from penstock.datasets.array_shards.storage import ArrayForm, ArrayStorage
from penstock.datasets.files.access import retried
from penstock.datasets.files.data_files import DataFiles
from penstock.datasets.records.indexed_storage import file_mark
from penstock.datasets.storages.npy_shards import map_file

KEYS_NAME = "keys.txt"
_ZIP = b"PK\x03\x04"


class MemmapForm(ArrayForm):
    """`.npy` files, and raw files of given shapes; see `MemmapStorage`.

    Args:
        shapes: Shape of one sample by raw file.
        dtypes: Types of raw files other than uint8.
        offsets: Bytes before the first sample, if any.
    """

    name = "memmap"
    endings = (".npy",)

    def __init__(
        self, shapes: dict[str, list[int]], dtypes: dict[str, str], offsets: dict[str, int]
    ) -> None:
        self.shapes, self.dtypes, self.offsets = shapes, dtypes, offsets

    def columns(self, path: str, root: str, where: str, *, checked: bool) -> Columns:
        """Map the array of a file."""
        size = retried(lambda: os.stat(path).st_size, path=path, root=root)
        look = self._raw if path in self.shapes else _npy
        shape, dtype, offset = look(path, size, where)
        count = math.prod(shape)
        if not count:
            return {None: np.empty(shape, dtype)}
        memory = retried(partial(map_file, path), path=path, root=root)
        return {None: np.frombuffer(memory, dtype, count, offset).reshape(shape)}

    def _raw(self, path: str, size: int, where: str) -> tuple[tuple[int, ...], str, int]:
        """Return shape, type and offset of a raw file, which holds as many samples as fit."""
        shape, offset = self.shapes[path], self.offsets.get(path, 0)
        dtype = self.dtypes.get(path, "uint8")
        try:
            kind = np.dtype(dtype)
        except TypeError:
            kind = np.dtype(object)
        if kind.kind not in "biufc":
            raise ValueError(
                f"{where}: type {dtype!r}; expected one of numbers, such as uint8, int64, float32 "
                f"or '>u2'"
            )
        if not all(length > 0 for length in shape) or offset < 0:
            raise ValueError(
                f"{where}: sample shape {list(shape)} from byte {offset} on; expected lengths "
                f"above 0 and an offset of 0 or more"
            )
        sample_bytes = math.prod(shape) * kind.itemsize
        if size < offset or (size - offset) % sample_bytes:
            raise ValueError(
                f"{where} has {size:,} bytes, expected {offset} and a multiple of "
                f"{sample_bytes:,} ({kind} {list(shape)}); check shapes, dtypes and offsets, or "
                f"copy it again"
            )
        return ((size - offset) // sample_bytes, *shape), kind.str, offset


def _npy(path: str, size: int, where: str) -> tuple[tuple[int, ...], str, int]:
    with open(path, "rb") as file:
        if file.read(4) == _ZIP:
            raise ValueError(
                f"{where} is an archive (.npz), which cannot be mapped; unpack it and name one "
                f".npy file per field, or use dataset=npy_shards"
            )
        file.seek(0)
        remedy = "give the shape of a sample in a raw file: dataset.storage.shapes"
        return look_at_header(file, size, where, remedy=remedy)


def find_array_files(
    path: str | Mapping[str, str], raw: Collection[str], *, where: str
) -> dict[str, str]:
    """Find the file of each field.

    Args:
        path: A folder; one file, which holds the images; or files by field name.
        raw: Fields of raw files.
        where: The storage, for messages.

    Returns:
        Paths by field name, ``image`` and ``label`` first.

    Raises:
        ValueError: No files are found, a field has two files, or its name is reserved.
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
                f"{where}: shapes names the field {field!r}, which lacks a file; fields: "
                f"{', '.join(files)}"
            )
    return {field: files[field] for field in sorted(files, key=field_place)}


def _in_folder(folder: Path, raw: Collection[str], where: str) -> dict[str, str]:
    files: dict[str, str] = {}
    for file in sorted(folder.iterdir()):
        field = field_name(file.stem)
        if file.name[0] == "." or not file.is_file() or (file.suffix == ".npy") == (field in raw):
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
class MemmapStorage(ArrayStorage):
    """Images, labels and any other arrays in `.npy` or raw files, mapped and never loaded.

    Each file is a field: ``images.npy`` is ``image``, uint8 [N, H, W, C]; ``labels.npy`` is
    ``label``, integers [N]; other files name their fields. All have the same number of
    rows. The key of a record is its line of ``keys.txt`` in the folder, or else its row number.
    Fields with more than one axis are views of the map.

    Args:
        path: A folder of these files; one file, which holds the images; or files by field:
            ``{image: a.npy, label: b.npy}``.
        shapes: For raw files: shape of one sample by field, such as ``{image: [32, 32, 3], label:
            []}``.
        dtypes: Types in raw files by field, such as ``{label: int64}``; the default is uint8.
        offsets: Bytes before the first sample of raw files, by field.
        classes: Class names by id; None: the lines of ``classes.txt`` in the folder, or else the
            numbers.
    """

    large_row_bytes = 0
    checks_sizes = False  # a check would take a third of the time of a small batch

    def __init__(
        self,
        path: str | dict[str, str],
        *,
        shapes: dict[str, list[int]] | None = None,
        dtypes: dict[str, str] | None = None,
        offsets: dict[str, int] | None = None,
        classes: list[str] | None = None,
    ) -> None:
        self.shapes = dict(shapes or {})
        self.dtypes = dict(dtypes or {})
        self.offsets = dict(offsets or {})
        form = MemmapForm({}, {}, {})
        super().__init__(
            form, os.path.abspath(path) if isinstance(path, str) else path, classes=classes
        )
        for name, given in (("dtypes", self.dtypes), ("offsets", self.offsets)):
            if extra := sorted(given.keys() - self.shapes.keys()):
                raise ValueError(
                    f"{self}: {name} names {extra[0]!r}, and shapes does not; a raw file needs "
                    f"dataset.storage.shapes.{extra[0]}, a .npy file neither"
                )

    def __str__(self) -> str:
        path = self.path if isinstance(self.path, str) else ", ".join(self.path.values())
        return f"memmap {path}"

    def shards(self) -> NDArray[np.int64]:
        """Return 0: the rows are in one shard."""
        return np.zeros(1, np.int64)

    def held_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return 0 for each record, int64 [n]: records are views of the map."""
        return np.zeros(len(indices), np.int64)

    def mark(self) -> Any:
        """Return the state of the files, the keys beside them, and the class names."""
        keys = self._keys_path()
        return [super().mark(), None if keys is None else file_mark(keys)]

    def _find(self) -> DataFiles:
        paths = find_array_files(self.path, self.shapes, where=str(self))
        self._form = MemmapForm(
            {paths[field]: shape for field, shape in self.shapes.items()},
            {paths[field]: dtype for field, dtype in self.dtypes.items()},
            {paths[field]: offset for field, offset in self.offsets.items()},
        )
        self._fields_of_files = list(paths)
        root = os.path.commonpath([os.path.dirname(path) for path in paths.values()])
        names = tuple(os.path.relpath(path, root) for path in paths.values())
        marks = [file_mark(path) for path in paths.values()]
        return DataFiles(root, names, tuple((size, mtime_ns) for size, mtime_ns in marks))

    def _keys_path(self) -> Path | None:
        path = Path(self.path, KEYS_NAME) if isinstance(self.path, str) else None
        return path if path is not None and path.is_file() else None

    def _keys(self, shards: list[Shard]) -> list[bytes] | None:
        """Read the lines of the file of keys; None without one."""
        path, count = self._keys_path(), shards[0].count
        if path is None:
            return None
        keys = path.read_bytes().removesuffix(b"\n").split(b"\n")
        if len(keys) != count or len(set(keys)) != count:
            raise ValueError(
                f"{self}: {KEYS_NAME} has {len(set(keys)):,} different lines for {count:,} rows, "
                f"expected one for each; correct it, or take it away"
            )
        return keys

    def _beside(self) -> str | None:
        return self.path if isinstance(self.path, str) else None
