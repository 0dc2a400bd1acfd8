"""Zarr arrays (v2, v3) with a sample per row, read by chunks: ``imports=[penstock_zarr.py]``."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock import register
from penstock.core.arrays import check_field, field_name, field_place
from penstock.core.contracts import Allocate
from penstock.core.sample import BadRecord, Record
from penstock.core.user_errors import is_trouble
from penstock.datasets.files.group_cache import GroupCache
from penstock.datasets.records.indexed_storage import IndexedStorage, file_mark
from penstock.datasets.records.labels import check_images, check_labels, class_names
from penstock.datasets.records.table import Table, numbered

log = logging.getLogger(__name__)
_FILES = ("zarr.json", ".zarray", ".zgroup", ".zmetadata")


class _Array(NamedTuple):
    """The name, shape, type and rows per chunk of an array."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    chunk: int

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize


@register("storage", "zarr")
class ZarrStorage(IndexedStorage):
    """Arrays of a Zarr group, or one array, with samples along the first axis.

    Arrays become fields. ``images`` becomes ``image``, uint8 [N, H, W, C], and ``labels`` becomes
    ``label``, integers [N]. Any other array keeps its name. A batch reads each chunk whole, once
    for all its rows in this chunk. Chunks stay in a cache of `cache_bytes`. With it,
    ``sampler=shard_shuffle`` reads each chunk once per epoch. Pixels are already decoded: use
    ``dataset/decode=raw``. The key of a record is its row.

    Args:
        path: The folder of the group or array, or a folder with groups ``train`` and ``val``.
        fields: Arrays by field, such as ``{image: x, label: y}``, without other arrays. None: all.
        classes: Class names by id; None: the lines of ``classes.txt`` in the folder, or else the
            numbers.
        cache_bytes: Size of the chunk cache of each process.
    """

    name = "zarr"
    reading_arguments = ("cache_bytes",)
    # `mark` notices a rewritten chunk only if the chunk contains labels.
    marks_fields = False
    _arrays: dict[str, _Array]

    def __init__(
        self,
        path: str,
        *,
        fields: dict[str, str] | None = None,
        classes: list[str] | None = None,
        cache_bytes: int = 1 << 28,
    ) -> None:
        self.path = os.path.abspath(path)
        self.chosen = None if fields is None else dict(fields)
        self.classes = None if classes is None else tuple(classes)
        self.cache_bytes = cache_bytes

    def mark(self) -> Any:
        """Return the state of the metadata and labels, and the class names of the folder."""
        self._arrays = self._looked_at()
        folders = {field: Path(self.path, array.name) for field, array in self._arrays.items()}
        files = [
            folder / name for folder in (Path(self.path), *folders.values()) for name in _FILES
        ]
        if "label" in folders:
            files += sorted(folders["label"].rglob("*"))
        marks = [[str(file), *file_mark(file)] for file in files if file.is_file()]
        return [marks, class_names(self.path, self.classes, where=str(self))]

    def _looked_at(self) -> dict[str, _Array]:
        """Return the arrays by field, checked against each other."""
        root = _open(self.path, where=str(self))
        found = dict(root.arrays()) if hasattr(root, "arrays") else {"": root}
        if not found:
            groups = ", ".join(sorted(name for name, _ in root.groups())) or "none"
            raise ValueError(
                f"{self}: no arrays in there, the groups are {groups}; set dataset.storage.path to "
                f"a group with an array for each field"
            )
        wanted = self.chosen or _named(found)
        arrays: dict[str, _Array] = {}
        for field in sorted(wanted, key=field_place):
            name = wanted[field]
            if name not in found:
                raise ValueError(
                    f"{self}: no array {name!r}, the arrays are {', '.join(sorted(found))}; set "
                    f"dataset.storage.fields.{field}"
                )
            check_field(field, f"the array {name}", where=str(self))
            arrays[field] = self._checked(name, found[name])
        if len({array.shape[0] for array in arrays.values()}) != 1 or not min(
            next(iter(arrays.values())).shape[:1]
        ):
            said = ", ".join(f"{field} {list(array.shape)}" for field, array in arrays.items())
            raise ValueError(
                f"{self}: the arrays are {said}, expected a row for each sample in all of them; "
                f"choose those that have: dataset.storage.fields={{image:...,label:...}}"
            )
        if "image" in arrays:
            check_images(arrays["image"].shape, arrays["image"].dtype, where=str(self))
        return arrays

    def _checked(self, name: str, array: Any) -> _Array:
        where = f"{self}: {name or 'the array'}"
        if array.ndim == 0 or (kind := np.dtype(array.dtype)).kind not in "biuf":
            raise ValueError(
                f"{where} is {array.dtype} {list(array.shape)}, expected numbers with an axis of "
                f"samples; leave it out by dataset.storage.fields={{image:...,label:...}}"
            )
        found = _Array(name, array.shape, kind.newbyteorder("=").str, array.chunks[0])
        if (size_bytes := found.chunk * found.row_bytes) > max(self.max_record_bytes, 1 << 28):
            raise ValueError(
                f"{where} has chunks of {size_bytes:,} bytes, of which one row needs a whole one; "
                f"write it with fewer rows to a chunk, or set dataset.max_record_bytes={size_bytes}"
            )
        return found

    def scan(self) -> Table:
        """Read the labels, and take the sizes from the arrays."""
        arrays = self._arrays
        count = arrays[next(iter(arrays))].shape[0]
        row_bytes = sum(array.row_bytes for array in arrays.values())
        columns: dict[str, NDArray[Any]] = {"size_bytes": np.full(count, row_bytes)}
        opened, names = self.open(), None
        for field, array in arrays.items():
            stored = opened.arrays[field]
            if (missing := stored.nchunks - stored.nchunks_initialized) > 0:
                log.warning(
                    "%s: %d of %d chunks of %s are not there; their values are read as %s",
                    self, missing, stored.nchunks, array.name, stored.fill_value,
                )  # fmt: skip
        if "label" in arrays:
            try:
                labels = np.concatenate([opened.block("label", n) for n in opened.chunks("label")])
            except ValueError as error:
                raise ValueError(f"{self}: {error}") from error
            known = class_names(self.path, self.classes, where=str(self))
            columns["label"], names = check_labels(labels, known, where=str(self))
        if "image" in arrays:
            for axis, name in ((1, "height"), (2, "width")):
                columns[name] = np.full(count, arrays["image"].shape[axis], np.int32)
        return Table(numbered(count), columns, names)

    def open(self) -> _Blocks:
        """Open the arrays."""
        root = _open(self.path, where=str(self))
        arrays = {field: root[a.name] if a.name else root for field, a in self._arrays.items()}
        return _Blocks(arrays, self._arrays, self.cache_bytes)

    @property
    def column_fields(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the fields of every record."""
        len(self.index)
        return tuple(self._arrays)

    def shards(self) -> NDArray[np.int64]:
        """Return the first row of each chunk of the largest array."""
        count = len(self.index)
        largest = max(self._arrays.values(), key=lambda array: array.row_bytes)
        return np.arange(0, count, largest.chunk)

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read rows; return a `BadRecord` for each row of a damaged chunk."""
        rows = self.index.rows(np.asarray(indices, np.int64))
        found: list[dict[str, Any] | str] = [{} for _ in rows]
        for field in self.column_fields:
            for chunk, places, inside in self.opened.wanted(field, rows):
                try:
                    block = self.opened.block(field, chunk)
                    values = block.tolist() if block.ndim == 1 else block
                except ValueError as error:
                    block, values = None, str(error)
                for place, row in zip(places.tolist(), inside.tolist(), strict=True):
                    fields = found[place]
                    if block is None:
                        found[place] = values
                    elif isinstance(fields, dict):
                        fields[field] = values[row]
        return self.records(indices, found)

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Allocate | None = None,
    ) -> dict[str, NDArray[Any]] | None:
        """Return rows as columns, or None for a damaged chunk; see `core.contracts.Storage`."""
        rows = self.index.rows(indices)
        arrays = {field: array for field, array in self._arrays.items() if field in fields}
        largest = max(arrays, key=lambda field: arrays[field].row_bytes, default=None)
        columns: dict[str, NDArray[Any]] = {}
        for field, array in arrays.items():
            shape = (rows.size, *array.shape[1:])
            if allocate is not None and field == largest:
                memory = allocate(rows.size * array.row_bytes)
                column = np.frombuffer(memory, array.dtype, math.prod(shape)).reshape(shape)
            else:
                column = np.empty(shape, array.dtype)
            for chunk, places, inside in self.opened.wanted(field, rows):
                try:
                    column[places] = self.opened.block(field, chunk)[inside]
                except ValueError:
                    return None
            columns[field] = column
        return columns


class _Blocks:
    """A cache of the most recently used chunks, decoded and shared by threads."""

    def __init__(self, arrays: dict[str, Any], forms: dict[str, _Array], limit_bytes: int) -> None:
        self.arrays, self._forms = arrays, forms
        self._cache = GroupCache(limit_bytes)

    def chunks(self, field: str) -> range:
        """Return the numbers of the chunks of rows."""
        return range(math.ceil(self._forms[field].shape[0] / self._forms[field].chunk))

    def wanted(
        self, field: str, rows: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield chunks of rows, int64 [n]: number, places in the request, rows in the chunk."""
        numbers, inside = np.divmod(rows, self._forms[field].chunk)
        order = np.argsort(numbers, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            if places.size:
                yield int(numbers[places[0]]), places, inside[places]

    def block(self, field: str, number: int) -> NDArray[Any]:
        """Read a chunk of rows; raise ValueError if it is damaged."""

        def load() -> tuple[NDArray[Any], int]:
            form = self._forms[field]
            try:
                rows = slice(number * form.chunk, (number + 1) * form.chunk)
                block = np.ascontiguousarray(self.arrays[field][rows], form.dtype)
            except Exception as error:  # each codec raises its own exceptions
                if is_trouble(error):
                    raise
                said = f"{type(error).__name__}: {' '.join(str(error).split())}"
                raise ValueError(f"{form.name}: chunk {number} is damaged ({said})") from error
            block.setflags(write=False)
            return block, block.nbytes

        block: NDArray[Any] = self._cache.get((field, number), load)
        return block


def _open(path: str, *, where: str) -> Any:
    remedy = f"{where}: the package zarr is missing, or older than 3; run: pip install 'zarr>=3'"
    try:
        import zarr
    except ImportError:
        raise ValueError(remedy) from None
    if zarr.__version__.startswith("2."):  # version 2 unpickles data that claims to be pickled
        raise ValueError(remedy)
    try:
        return zarr.open(path, mode="r")
    except Exception as error:  # the exception depends on the damage
        if is_trouble(error):
            raise
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(
            f"{where}: no Zarr group or array in there ({said}); set dataset.storage.path"
        ) from error


def _named(found: dict[str, Any]) -> dict[str, str]:
    """Return the default arrays by field."""
    if list(found) == [""]:
        return {"image" if found[""].ndim == 4 else "array": ""}
    return {field_name(name): name for name in found}
