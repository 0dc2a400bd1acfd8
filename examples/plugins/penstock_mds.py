"""MosaicML's MDS shards, read as they are by their index.json: ``imports=[penstock_mds.py]``."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock import register
from penstock.core.arrays import check_field
from penstock.core.json_text import parse_json
from penstock.core.sample import BadRecord, Record
from penstock.datasets.files.access import OpenFiles, RangeFile
from penstock.datasets.files.data_files import DataFiles, refuse_escape
from penstock.datasets.records.indexed_storage import IndexedStorage, file_mark
from penstock.datasets.records.labels import column_ids, read_class_names
from penstock.datasets.records.table import Table, numbered

_UNPACKED = ("gz", "zstd")
_IMAGES = ("jpeg", "png", "pil")


class _Shard(NamedTuple):
    """A shard listed in index.json: its sample count, and its plain and compressed file."""

    samples: int
    raw: str
    size_bytes: int
    packed: str | None
    compression: str


@register("storage", "mds")
class MdsStorage(IndexedStorage):
    """A folder written by MDSWriter, with full shuffling and exact resume.

    Columns become fields. ``x`` becomes ``image`` if it is an image. ``y`` and ``class``, numbers
    or texts, become ``label``. Any other column keeps its name. Images with encoding ``pil``, and
    arrays, are pixels: use ``dataset/decode=raw``. The storage unpacks shards compressed by zstd or
    gz into this machine's cache. It never unpickles data. The key of a record is its number.

    Args:
        path: The folder with index.json, or a folder with such folders ``train`` and ``val``.
        fields: Columns by field, such as ``{image: photo, label: kind}``, without other columns.
            None: all.
        classes: Class names by id; None: the lines of ``classes.txt`` beside index.json, or else
            the labels found (numbers are already ids).
    """

    name = "mds"
    _files: DataFiles
    _names: tuple[str, ...] | None
    _columns: dict[str, tuple[int, str, str]]

    def __init__(
        self,
        path: str,
        *,
        fields: dict[str, str] | None = None,
        classes: list[str] | None = None,
    ) -> None:
        self.path = os.path.abspath(path)
        self.fields = None if fields is None else dict(fields)
        self.classes = None if classes is None else tuple(classes)

    def mark(self) -> Any:
        """Return the state of index.json and every shard, and the class names of the folder."""
        columns, shards = self._listed()
        self._columns = self._chosen(columns)
        names = tuple(self._file_of(shard) for shard in shards)
        states = [os.stat(os.path.join(self.path, name)) for name in names]
        marks = tuple((state.st_size, state.st_mtime_ns) for state in states)
        self._files = DataFiles(self.path, names, marks)
        self._names = read_class_names(self.path, where=str(self))
        return [file_mark(os.path.join(self.path, "index.json")), self._files.recipe, self._names]

    def _listed(self) -> tuple[dict[str, tuple[int, str]], list[_Shard]]:
        """Return size (0: varies) and encoding of columns by name, and the shards."""
        try:
            listed = json.loads(Path(self.path, "index.json").read_text("utf-8"))["shards"]
            kinds = {f"{each['format']} {each['version']}" for each in listed}
            names = ("column_names", "column_sizes", "column_encodings")
            layouts = [tuple(zip(*map(each.get, names), strict=True)) for each in listed]
            shards = [
                _Shard(each["samples"], each["raw_data"]["basename"], each["raw_data"]["bytes"],
                       (each["zip_data"] or {}).get("basename"), str(each["compression"]))
                for each in listed
            ]  # fmt: skip
        except FileNotFoundError:
            raise ValueError(
                f"{self}: no index.json in there, expected a folder that MDSWriter wrote; set "
                f"dataset.storage.path, or give several such folders one by streaming's merge_index"
            ) from None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            said = f"{type(error).__name__}: {error}"
            raise ValueError(f"{self}: index.json is damaged ({said}); copy it again") from None
        if kinds != {"mds 2"} or len(set(layouts)) != 1:
            raise ValueError(
                f"{self}: index.json lists shards of {' and '.join(sorted(kinds)) or 'nothing'} "
                f"with {len(set(layouts))} sets of columns, expected mds 2 with one; write it again"
            )
        return {name: (size or 0, encoding) for name, size, encoding in layouts[0]}, shards

    def _chosen(self, columns: dict[str, tuple[int, str]]) -> dict[str, tuple[int, str, str]]:
        """Add the field to size and encoding of every column; empty: do not read the column."""
        wanted = self.fields or _named({name: how for name, (_, how) in columns.items()})
        for field, column in wanted.items():
            check_field(field, f"the column {column}", where=str(self))
            if column not in columns:
                raise ValueError(
                    f"{self}: no column {column!r}, the columns are {', '.join(columns)}; set "
                    f"dataset.storage.fields.{field}"
                )
            if (kind := columns[column][1].partition(":")[0]) not in _DECODERS:
                others = ",".join(f"{f}:{c}" for f, c in wanted.items() if c != column)
                raise ValueError(
                    f"{self}: the column {column} is {kind}, which is not read; leave it out: type "
                    f"dataset.storage.fields={{{others}}}"
                )
        fields = {column: field for field, column in wanted.items()}
        return {name: (*how, fields.get(name, "")) for name, how in columns.items()}

    def _file_of(self, shard: _Shard) -> str:
        """Return the file name of a shard, plain or compressed."""
        names = [name for name in (shard.raw, shard.packed) if name]
        for name in names:
            refuse_escape(name, self.path, setting="dataset.storage.path")
        name = next((name for name in names if Path(self.path, name).is_file()), "")
        if not name:
            raise ValueError(f"{self}: {names[-1]} is missing; copy it there")
        if name == shard.packed and (how := shard.compression.partition(":")[0]) not in _UNPACKED:
            raise ValueError(
                f"{self}: {name} is compressed by {how}, expected {' or '.join(_UNPACKED)}; unpack "
                f"it to {shard.raw}"
            )
        return name

    def scan(self) -> Table:
        """Find the offsets and labels of all samples."""
        labels: list[Any] = []
        files, places = self.open(), []
        for number, (name, shard) in enumerate(
            zip(self._files.names, self._listed()[1], strict=True)
        ):
            try:
                offsets = _offsets(files[name], shard)
                for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
                    fields = self._fields(files[name].view(start, stop - start).data, "label")
                    labels += fields.values()
            except ValueError as error:
                raise ValueError(f"{self}: {name}: {error}; copy it again") from error
            numbers = np.full(len(offsets) - 1, number)
            places.append(np.stack([numbers, offsets[:-1], np.diff(offsets)]))
        shards, offset, size_bytes = np.concatenate(places, axis=1)
        columns: dict[str, Any] = {"shard": shards, "offset": offset, "size_bytes": size_bytes}
        names = None
        if labels:
            if not isinstance(labels[0], int | str):
                raise ValueError(
                    f"{self}: label is {labels[0]!r} in the first sample, expected a class id or a "
                    f"name; set dataset.storage.fields.label"
                )
            are_names = isinstance(labels[0], str)
            columns["label"], names = column_ids(
                labels if are_names else np.array(labels),
                names=None if are_names else self._names,
                classes=self.classes or (self._names if are_names else None),
                where=f"{self}: labels",
            )
        count = len(shards)
        return Table(numbered(count), columns, names)

    def open(self) -> OpenFiles:
        """Return the shards; each opens on first use."""
        packed = [name for name in self._files.names if not name.endswith(".mds")]
        return OpenFiles(self._files.unpacking(packed))

    def shards(self) -> NDArray[np.int64]:
        """Return the first record of each shard."""
        return np.flatnonzero(np.diff(self.index.column("shard"), prepend=-1))

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read samples; return a `BadRecord` for a damaged sample."""
        names = ("shard", "offset", "size_bytes")
        places = zip(*(self.index.values(n, indices).tolist() for n in names), strict=True)
        return self.records(indices, (self._record(*place) for place in places))

    def _record(self, shard: int, offset: int, size_bytes: int) -> dict[str, Any] | str:
        name = self._files.names[shard]
        try:
            return self._fields(memoryview(self.opened[name].read(offset, size_bytes)))
        except ValueError as error:
            return f"{name}: {' '.join(str(error).split())}"

    def _fields(self, data: memoryview, only: str | None = None) -> dict[str, Any]:
        """Split a sample into its columns: sizes of variable columns, then the bytes of each."""
        loose = [column for column, (size, *_) in self._columns.items() if not size]
        at = 4 * len(loose)
        if len(data) < at:
            raise ValueError("the sample ends within its sizes")
        sizes = {column: size for column, (size, *_) in self._columns.items()}
        sizes |= zip(loose, struct.unpack_from(f"<{len(loose)}I", data), strict=True)
        if (used := at + sum(sizes.values())) != len(data):
            raise ValueError(f"the sample has {len(data):,} bytes, and columns of {used:,}")
        fields = {}
        for column, (_, encoding, field) in self._columns.items():
            if field and only in (None, field):
                kind, _, form = encoding.partition(":")
                try:
                    fields[field] = _DECODERS[kind](bytes(data[at : at + sizes[column]]), form)
                except (IndexError, TypeError, ValueError, struct.error) as error:
                    said = " ".join(str(error).split())
                    raise ValueError(f"the column {column} is no {encoding} ({said})") from error
            at += sizes[column]
        return fields


def _named(encodings: dict[str, str]) -> dict[str, str]:
    """Return the default columns by field."""
    ours = {"y": "label", "class": "label", "target": "label"}
    if encodings.get("x", "").partition(":")[0] in _IMAGES:
        ours["x"] = "image"
    named = {ours.get(column, column): column for column in encodings}
    return named if len(named) == len(encodings) else {column: column for column in encodings}


def _offsets(file: RangeFile, shard: _Shard) -> NDArray[np.int64]:
    """Return the start of each sample of a shard, and the end of the last, int64 [n + 1]."""
    file.view(0, shard.size_bytes)
    found = np.frombuffer(file.read(0, 4 * (shard.samples + 2)), "<u4").astype(np.int64)
    ends = found[0] == shard.samples and found[-1] == shard.size_bytes
    if not ends or (np.diff(found[1:]) < 0).any():
        raise ValueError(f"it is not the shard of {shard.samples:,} samples that index.json lists")
    return found[1:]


def _number(kind: str, data: bytes, _form: str) -> Any:
    (number,) = np.frombuffer(data, np.dtype(kind).newbyteorder("<"))
    return number.item()


def _array(data: bytes, form: str) -> NDArray[Any]:
    """Read an array; the data begins with the type and shape if `form` omits them."""
    dtype, _, shape = form.partition(":")
    at = 0 if dtype else 1
    kind = np.dtype(dtype or f"{'uif'[data[0] & 3]}{data[0] >> 3}").newbyteorder("<")
    sides = [int(side) for side in shape.split(",") if side]
    if not sides:
        axes, width = data[at] >> 2, 1 << (data[at] & 3)
        sides = np.frombuffer(data, f"<u{width}", axes, at + 1).tolist()
        at += 1 + axes * width
    return np.frombuffer(data, kind, offset=at).reshape(sides)


def _pixels(data: bytes, _form: str) -> NDArray[np.uint8]:
    """Read pixels stored by PIL: uint8 [H, W, 3], RGB."""
    from PIL import Image

    width, height, length = struct.unpack_from("<3I", data)
    raw = data[12 + length :]
    if width * height > 8 * len(raw):  # before allocating: a pixel has at least one bit
        raise ValueError(f"{len(raw):,} bytes for {width} x {height} pixels")
    mode = data[12 : 12 + length].decode()
    return np.array(Image.frombytes(mode, (width, height), raw).convert("RGB"))


_NUMBERS = [f"{kind}{n}" for kind in ("int", "uint") for n in (8, 16, 32, 64)]
_DECODERS: dict[str, Callable[[bytes, str], Any]] = {
    **{kind: partial(_number, kind) for kind in (*_NUMBERS, "float16", "float32", "float64")},
    **dict.fromkeys(("bytes", "jpeg", "png"), lambda data, _: data),
    "int": partial(_number, "int64"),
    "str": lambda data, _: data.decode(),
    "str_int": lambda data, _: int(data),
    "str_float": lambda data, _: float(data),
    "json": lambda data, _: parse_json(data),
    "ndarray": _array,
    "pil": _pixels,
}
