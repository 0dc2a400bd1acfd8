"""Arrays in memory-mapped files, a sample per row."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.annotations.label_arrays import check_images, check_labels, class_names
from datasets.array_rows import taken_rows
from datasets.formats.array_files import ArrayFile, find_array_files, look_at_npy, look_at_raw
from datasets.index import Index, write_index
from datasets.index_cache import cached_index
from datasets.protocols import Gather
from datasets.sample import BadRecord, Record
from pipeline.registry import register

KEYS_NAME = "keys.txt"


@register("storage", "memmap")
class MemmapStorage:
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

    gathers = True

    def __init__(
        self,
        path: str | dict[str, str],
        *,
        shapes: dict[str, list[int]] | None = None,
        dtypes: dict[str, str] | None = None,
        offsets: dict[str, int] | None = None,
        classes: list[str] | None = None,
    ) -> None:
        if isinstance(path, str):
            path = os.path.abspath(path)
        self.path = path
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
        self._index: Index | None = None
        self._arrays: dict[str, NDArray[Any]] | None = None

    def __str__(self) -> str:
        path = self.path if isinstance(self.path, str) else ", ".join(self.path.values())
        return f"memmap {path}"

    def __len__(self) -> int:
        return len(self.index)

    @property
    def index(self) -> Index:
        """Label, height, width and size_bytes of every record, as far as there are any."""
        if self._index is None:
            files = self._look()
            recipe = {name: value for name, value in vars(self).items() if name[0] != "_"}
            self._index = cached_index(
                {"storage": "memmap", **recipe, "classes": self._class_names()},
                build=self._build,
                is_current=lambda index: index.metadata["marks"] == self._marks(files),
            )
        return self._index

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that every record has."""
        return tuple(self._look())

    def fingerprint(self) -> str:
        """Hash of keys, sizes and labels."""
        return self.index.fingerprint()

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Records whose arrays are read-only views of the map.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
        """
        keys = self.index.keys(indices)
        columns: list[Any] = []
        for array in self._map().values():
            if array.ndim == 1:
                columns.append(array[indices].tolist())
            else:
                columns.append([array[i] for i in indices.tolist()])
        names = self.fields
        return [
            Record(i, key, dict(zip(names, values, strict=True)))
            for i, key, *values in zip(indices.tolist(), keys, *columns, strict=True)
        ]

    def held_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """No memory, int64 [n]: records are views of the map."""
        return np.zeros(len(indices), np.int64)

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
        gather: Mapping[str, Gather] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Records as columns, each gathered in one call; see `datasets.protocols.ColumnStorage`.

        `gather` is as in `datasets.protocols.GatheringStorage`.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
        """
        rows = self.index.rows(indices)
        arrays = {name: array for name, array in self._map().items() if name in fields}
        largest = max(arrays, key=lambda name: arrays[name].nbytes, default=None)
        columns = {}
        for name, array in arrays.items():
            take = taken_rows if gather is None else gather.get(name, taken_rows)
            columns[name] = take(array, rows, allocate if name == largest else None)
        return columns

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_index": self.index, "_arrays": None}

    def _map(self) -> dict[str, NDArray[Any]]:
        arrays = self._arrays
        if arrays is None:
            arrays = self._arrays = {name: file.map() for name, file in self._look().items()}
        return arrays

    def _look(self) -> dict[str, ArrayFile]:
        """The files, checked against each other."""
        if self._files is None:
            paths = find_array_files(self.path, list(self.shapes), where=str(self))
            files = {field: self._look_at(field, path) for field, path in paths.items()}
            first = next(iter(files))
            for field, file in files.items():
                if file.shape[0] != files[first].shape[0]:
                    raise ValueError(
                        f"{self}: {first} has {files[first].shape[0]:,} rows and {field} has "
                        f"{file.shape[0]:,}, expected the same number"
                    )
            if files[first].shape[0] == 0:
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

    def _build(self, path: Path) -> None:
        """Write the index."""
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
        write_index(
            path,
            keys=keys,
            key_pattern="{}" if keys is None else None,
            count=count if keys is None else None,
            columns=columns,
            class_names=names,
            metadata={"marks": self._marks(files)},
        )

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

    def _marks(self, files: dict[str, ArrayFile]) -> dict[str, list[int]]:
        """Size and time of every file that the index is made from."""
        marks = {field: file.mark() for field, file in files.items()}
        keys = self._keys_path()
        if keys is not None:
            found = os.stat(keys)
            marks[KEYS_NAME] = [found.st_size, found.st_mtime_ns]
        return marks

    def _class_names(self) -> tuple[str, ...] | None:
        folder = self.path if isinstance(self.path, str) else None
        return class_names(folder, self.classes, where=str(self))
