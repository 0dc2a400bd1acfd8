"""TFRecord files of tf.train.Example, by random access: ``imports=[penstock_tfrecord.py]``."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import register
from penstock.core.arrays import check_field
from penstock.core.sample import BadRecord, Record
from penstock.datasets.files.access import OpenFiles, RangeFile, absolute_path
from penstock.datasets.files.data_files import DataFiles, find_data_files
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.records.labels import column_ids, read_class_names
from penstock.datasets.records.table import Table, numbered

_ENDINGS = tuple(f".tfrecord{plural}{gz}" for plural in ("", "s") for gz in ("", ".gz"))
_FIELDS = {"image/encoded": "image", "image_raw": "image", "image/class/label": "label"}
_HEAD = struct.Struct("<QI")  # the length of a record, and its checksum


@register("storage", "tfrecord")
class TfRecordStorage(IndexedStorage):
    """TFRecord files, indexed by one scan, with full shuffling and exact resume.

    Features become fields. ``image/encoded`` becomes ``image``, and ``image/class/label`` becomes
    ``label``. Other features keep their name, with ``_`` for each ``/``. A feature with one value
    in every record is a number or bytes (``text``: a text). Any other feature is an array or a list
    of bytes. The scan verifies the checksums of lengths, and each read verifies the checksum of the
    record. The storage unpacks gzip files into this machine's cache. The key of a record is its
    number.

    Args:
        path: A file, a folder of ``.tfrecord`` or ``.tfrecords`` files, with ``.gz`` or without,
            or a pattern such as ``train-*-of-*``.
        fields: Features by field, such as ``{image: photo, label: kind}``, without other features.
            None: all.
        classes: Class names by id; None: the lines of ``classes.txt`` in the folder, or else the
            labels found (numbers are already ids).
    """

    name = "tfrecord"
    _files: DataFiles
    _names: tuple[str, ...] | None
    _compressed: list[str]
    _many: frozenset[str]

    def __init__(
        self,
        path: str,
        *,
        fields: dict[str, str] | None = None,
        classes: list[str] | None = None,
    ) -> None:
        self.path = absolute_path(path)
        self.fields = None if fields is None else dict(fields)
        self.classes = None if classes is None else tuple(classes)

    def mark(self) -> Any:
        """Return the state of the files, and the class names of the folder."""
        try:
            _masked_crc(b"")
        except ImportError:
            raise ValueError(
                f"{self}: the package google-crc32c is missing; run: pip install google-crc32c"
            ) from None
        self._files = find_data_files(self.path, endings=_ENDINGS, where=str(self))
        self._names = read_class_names(self._files.root, where=str(self))
        return [self._files.recipe, self._names]

    def scan(self) -> Table:
        """Find the offsets and labels of all records, and the fields with one value in each."""
        places: list[tuple[int, int, int]] = []
        labels: list[Any] = []
        counts: dict[str, set[int]] = {}
        packed = [name for name in self._files.names if _is_gzip(self._files.open(name))]
        shards = self._files.unpacking(packed)
        for number, name in enumerate(self._files.names):
            try:
                for offset, record in _records(shards.open(name)):
                    places.append((number, offset, len(record)))
                    for field, values in self._values(record):
                        counts.setdefault(field, set()).add(len(values))
                        if field == "label":
                            labels += list(values[:1])
            except ValueError as error:
                raise ValueError(f"{self}: {name}: {error}; copy it again") from error
        if not places:
            raise ValueError(f"{self}: no record in there; set dataset.storage.path")
        for field in counts.keys() | (self.fields or {}):
            check_field(field, f"the feature {field}", where=str(self))
            if field not in counts:
                there = sorted({name for name, _ in _features(record)})
                raise ValueError(
                    f"{self}: no record has the feature {(self.fields or {})[field]!r}, the "
                    f"features are {', '.join(there)}; set dataset.storage.fields.{field}"
                )
        files, offsets, sizes = np.array(places, np.int64).T
        columns: dict[str, Any] = {"file": files, "offset": offsets, "size_bytes": sizes}
        names = None
        if "label" in counts:
            columns["label"], names = self._class_ids(labels, len(places))
        many = sorted(field for field, found in counts.items() if found != {1})
        metadata = {"compressed": packed, "many": many}
        return Table(numbered(len(places)), columns, names, metadata)

    def _class_ids(
        self, labels: list[Any], count: int
    ) -> tuple[NDArray[np.int32], tuple[str, ...]]:
        """Return class ids, int32 [n], and the class names by id."""
        if len(labels) != count or isinstance(labels[0], np.floating):
            kind = "a float" if len(labels) == count else f"in {len(labels):,} of {count:,} records"
            raise ValueError(
                f"{self}: label is {kind}, expected a class id or a name in each; set "
                f"dataset.storage.fields.label"
            )
        if not isinstance(labels[0], memoryview):
            numbers = np.array(labels)
            known, where = self._names, f"{self}: labels"
            return column_ids(numbers, names=known, classes=self.classes, where=where)
        texts = [bytes(label).decode("utf-8", "backslashreplace") for label in labels]
        return column_ids(texts, classes=self.classes or self._names, where=f"{self}: labels")

    def learn(self, metadata: dict[str, Any]) -> None:
        """Store the names of compressed files and of array fields."""
        self._compressed, self._many = metadata["compressed"], frozenset(metadata["many"])

    def open(self) -> OpenFiles:
        """Return the files; each opens on first use."""
        return OpenFiles(self._files.unpacking(self._compressed))

    def shards(self) -> NDArray[np.int64]:
        """Return the first record of each shard."""
        return np.flatnonzero(np.diff(self.index.column("file"), prepend=-1))

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records; return a `BadRecord` for a damaged record."""
        names = ("file", "offset", "size_bytes")
        places = zip(*(self.index.values(n, indices).tolist() for n in names), strict=True)
        return self.records(indices, (self._record(*place) for place in places))

    def _record(self, file: int, offset: int, size_bytes: int) -> dict[str, Any] | str:
        name = self._files.names[file]
        try:
            data = self.opened[name].read(offset, size_bytes + 4)
            record, (crc,) = data[:-4], struct.unpack("<I", data[-4:])
            if _masked_crc(record) != crc:
                return f"{name}: the bytes of the record are not those that were written"
            return {field: self._plain(field, v) for field, v in self._values(memoryview(record))}
        except ValueError as error:
            return f"{name}: {error}"

    def _values(self, record: memoryview) -> Iterator[tuple[str, Any]]:
        """Yield the selected fields of a record, with all values of each."""
        chosen = {feature: field for field, feature in (self.fields or {}).items()}
        for name, feature in _features(record):
            if self.fields is None:
                yield _FIELDS.get(name) or re.sub(r"\W", "_", name), _values(feature)
            elif name in chosen:
                yield chosen[name], _values(feature)

    def _plain(self, field: str, values: Any) -> Any:
        if isinstance(values, np.ndarray):
            return values if field in self._many else values[0].item()
        texts = [bytes(value).decode() if field == "text" else bytes(value) for value in values]
        return texts if field in self._many else texts[0]


def _masked_crc(data: bytes | memoryview) -> int:
    """Return the checksum of TFRecord: a CRC-32C, rotated, plus a constant."""
    from google_crc32c import value

    crc = value(bytes(data))
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _is_gzip(file: RangeFile) -> bool:
    return file.read_upto(0, 3) == b"\x1f\x8b\x08"


def _records(file: RangeFile) -> Iterator[tuple[int, memoryview]]:
    """Yield the offset and bytes of each record, in file order."""
    size_bytes = os.stat(file.path).st_size
    data, at = file.view(0, size_bytes).data, 0
    while at < size_bytes:
        if size_bytes - at < _HEAD.size + 4:
            raise ValueError(f"it is cut short within a record, at byte {at:,}")
        length, crc = _HEAD.unpack_from(data, at)
        if _masked_crc(data[at : at + 8]) != crc:
            raise ValueError(f"it is no TFRecord, plain or by gzip, or damaged at byte {at:,}")
        if (missing := at + _HEAD.size + length + 4 - size_bytes) > 0:
            raise ValueError(f"it is cut short: {missing:,} bytes are missing")
        at += _HEAD.size
        yield at, data[at : at + length]
        at += length + 4


# The part of Protocol Buffers that tf.train.Example uses: features, each a name and a list of
# bytes (1), floats (2) or integers (3). https://protobuf.dev/programming-guides/encoding


def _features(record: memoryview) -> Iterator[tuple[str, memoryview]]:
    for number, features in _message(record):
        if number != 1 or not isinstance(features, memoryview):
            raise ValueError("a record is not a tf.train.Example")
        for _, entry in _message(features):
            parts = dict(_message(_bytes(entry)))
            yield bytes(_bytes(parts.get(1, _NONE))).decode(), _bytes(parts.get(2, _NONE))


def _values(feature: memoryview) -> Any:
    """Return all values of a feature: a list of bytes, float32 [n] or int64 [n]."""
    for kind, values in _message(feature):
        parts = [value for _, value in _message(_bytes(values))]
        if kind == 1:
            return [_bytes(part) for part in parts]
        if kind == 2:
            return np.frombuffer(b"".join(map(_bytes, parts)), "<f4")
        loose = [part for part in parts if isinstance(part, int)]
        packed = [_varints(part) for part in parts if isinstance(part, memoryview)]
        return np.concatenate([np.array(loose, np.uint64).view(np.int64), *packed])
    return []


def _message(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of each field of a message; a value is an integer or bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, len(data)), at)
        if at + size > len(data):
            raise ValueError("a record is damaged, or not a tf.train.Example")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at < len(data):
            byte, at = data[at], at + 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value & (1 << 64) - 1, at
    raise ValueError("a record is damaged, or not a tf.train.Example")


def _varints(data: memoryview) -> NDArray[np.int64]:
    """Decode consecutive integers, int64 [n]: 7 bits per byte, the last byte below 128."""
    array = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(array < 128)
    starts = np.append(0, ends[:-1] + 1)
    sizes = ends + 1 - starts[: len(ends)]
    if len(array) and (not len(ends) or ends[-1] + 1 != len(array) or sizes.max() > 10):
        raise ValueError("a record is damaged, or not a tf.train.Example")
    values = np.zeros(len(ends), np.uint64)
    for place in range(sizes.max(initial=0)):
        there = sizes > place
        bits = (array[starts[: len(ends)][there] + place] & 127).astype(np.uint64)
        values[there] |= bits << np.uint64(7 * place)
    return values.view(np.int64)


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a record is not a tf.train.Example")
    return value


_NONE = memoryview(b"")
