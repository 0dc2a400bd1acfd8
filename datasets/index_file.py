"""The index on disk: an Arrow file of one record batch, and where each column lies in it."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.arrow_batch import ByteStrings, read_batch, write_batch

_METADATA = b"penstock"
_ARROW_NAMES = {"float16": "halffloat", "float32": "float", "float64": "double"}
"""Arrow's names of types that NumPy names otherwise, by these."""
_DTYPES = {arrow: name for name, arrow in _ARROW_NAMES.items()}
CHUNK_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array lies in the file."""

    offset: int
    dtype: str
    count: int

    def view(self, memory: mmap.mmap) -> NDArray[Any]:
        """The array [count], read-only, without a copy."""
        return np.frombuffer(memory, self.dtype, self.count, self.offset)


@dataclass(frozen=True, slots=True)
class Layout:
    """All that another process needs to map the index."""

    path: str
    size_bytes: int
    count: int
    columns: dict[str, Place]
    key_offsets: Place | None
    key_text: Place | None
    key_pattern: str | None
    key_start: int
    class_names: tuple[str, ...] | None
    fingerprint: str
    checksums: dict[str, int]

    def places(self) -> dict[str, Place]:
        """Every array in the file by name."""
        keys = {"key offsets": self.key_offsets, "key text": self.key_text}
        return {name: place for name, place in keys.items() if place} | self.columns


def read_layout(path: str) -> tuple[Layout, dict[str, Any]]:
    """Where everything lies in an index file, and the metadata written with it.

    Raises:
        ValueError: What the file says of itself does not fit together.
    """
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with memory:
        batch, size = read_batch(memory), len(memory)
    header = _read_header(batch.metadata)
    count: int = header["count"]
    if header["schema"] and batch.num_rows != count:
        raise ValueError("its number of rows is wrong")
    buffers = iter(batch.buffers)

    def place(dtype: str, items: int) -> Place:
        offset, size_bytes = next(buffers, (0, 0))
        needed = items * np.dtype(dtype).itemsize
        if needed > size_bytes or not 0 <= offset <= offset + needed <= size:
            raise ValueError("a column lies outside the file")
        return Place(offset if items else 0, dtype, items)

    key_offsets = key_text = None
    columns: dict[str, Place] = {}
    for name, kind in header["schema"]:
        next(buffers, None)  # which values are missing: none are
        if name == "key":
            key_offsets = place("<i8" if kind == "large_binary" else "<i4", count + 1)
            key_text = place("|u1", header["key_bytes"])
        else:
            columns[name] = place(np.dtype(_DTYPES.get(kind, kind)).str, count)
    names = header["class_names"]
    layout = Layout(
        path=os.path.abspath(path),
        size_bytes=size,
        count=count,
        columns=columns,
        key_offsets=key_offsets,
        key_text=key_text,
        key_pattern=header["key_pattern"],
        key_start=header["key_start"],
        class_names=None if names is None else tuple(names),
        fingerprint=header["fingerprint"],
        checksums=header["checksums"],
    )
    return layout, header["metadata"]


def _read_header(metadata: dict[bytes, bytes] | None) -> dict[str, Any]:
    checksum, _, text = (metadata or {})[_METADATA].partition(b" ")
    if int(checksum) != zlib.crc32(text):
        raise ValueError("its header is damaged")
    header: dict[str, Any] = json.loads(text)
    return header


def write_index(
    path: str | Path,
    *,
    keys: Sequence[str | bytes] | None = None,
    key_pattern: str | None = None,
    key_start: int = 0,
    count: int | None = None,
    columns: Mapping[str, NDArray[Any]],
    class_names: Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    content: str = "",
) -> None:
    """Write an index file; it appears under its name only when it is whole.

    Args:
        path: The file to write.
        keys: The key of every record; bytes may be anything, text is written as UTF-8.
        key_pattern: In place of `keys`: a format such as ``img_{:07d}.jpg``; no key is stored.
        key_start: The number of the first generated key.
        count: The number of generated keys.
        columns: Numbers by column name, each [n]; `label` and `size_bytes` are part of the
            fingerprint, other columns are not.
        class_names: Names of the classes by label.
        metadata: What JSON can hold.
        content: What tells this data from other where keys, sizes and labels do not: part of the
            fingerprint.
    """
    assert (keys is None) == (key_pattern is not None) == (count is not None)
    arrays: dict[str, NDArray[Any] | ByteStrings] = {}
    schema: list[tuple[str, str]] = []
    checksums: dict[str, int] = {}
    offsets = text = None
    if keys is not None:
        count = len(keys)
        key = arrays["key"] = _key_column(keys)
        offsets, text = key.offsets, key.text
        schema.append(("key", "large_binary" if offsets.dtype == np.int64 else "binary"))
        checksums = {"key offsets": zlib.crc32(offsets.data), "key text": zlib.crc32(text)}
    assert count is not None
    for name, values in columns.items():
        assert values.shape == (count,), (name, values.shape, count)
        # Arrow packs booleans into bits, which NumPy cannot map.
        dtype = np.dtype(np.uint8) if values.dtype == bool else values.dtype.newbyteorder("<")
        array = arrays[name] = np.ascontiguousarray(values, dtype)
        schema.append((name, _ARROW_NAMES.get(dtype.name, dtype.name)))
        checksums[name] = zlib.crc32(array.data) if count else 0
    names = None if class_names is None else tuple(class_names)
    header = {
        "count": count,
        "key_bytes": len(text or b""),
        "key_pattern": key_pattern,
        "key_start": key_start,
        "class_names": names,
        "fingerprint": fingerprint(
            count, offsets, text, (key_pattern, key_start), columns, names, content
        ),
        "metadata": dict(metadata or {}),
        "schema": schema,
        "checksums": checksums,
    }
    header_text = json.dumps(header).encode()
    header_line = b"%d %s" % (zlib.crc32(header_text), header_text)
    written = {_METADATA: header_line}
    write_whole(path, lambda file: write_batch(file, arrays, num_rows=count, metadata=written))


def _key_column(keys: Sequence[str | bytes]) -> ByteStrings:
    raw = [key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key for key in keys]
    text = b"".join(raw)
    offsets = np.zeros(len(raw) + 1, np.int64 if len(text) >= 1 << 31 else np.int32)
    offsets[1:] = np.cumsum(np.fromiter(map(len, raw), np.int64, len(raw)))
    return ByteStrings(offsets, text)


def write_whole(path: str | Path, write: Callable[[Any], None]) -> None:
    """Write a file that appears under its name only when it is whole and on the disk."""
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def fingerprint(
    count: int,
    key_offsets: NDArray[Any] | None,
    key_text: bytes | None,
    generated: tuple[str | None, int],
    columns: Mapping[str, NDArray[Any]],
    class_names: tuple[str, ...] | None,
    content: str = "",
) -> str:
    """Hash of keys, sizes and labels, whatever integer types they are stored in."""
    digest = hashlib.blake2b(content.encode(), digest_size=16)
    digest.update(json.dumps([count, generated, class_names]).encode())
    if key_text is not None:
        digest.update(key_text)
    for name, values in (
        ("key_offsets", key_offsets),
        ("label", columns.get("label")),
        ("size_bytes", columns.get("size_bytes")),
    ):
        if values is not None:
            digest.update(name.encode())
            hash_array(digest, values)
    return digest.hexdigest()


def hash_array(digest: Any, values: NDArray[Any]) -> None:
    """Add numbers to a digest, whatever integer type they are stored in."""
    dtype = "<f8" if values.dtype.kind == "f" else "<i8"
    for start in range(0, len(values), CHUNK_ROWS):
        digest.update(np.ascontiguousarray(values[start : start + CHUNK_ROWS], dtype))
