"""Samples in tar shards on a disk: found by the headers alone, and read from their places."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datasets.formats.tar_headers import (
    BLOCK_BYTES,
    BadTar,
    TarHeaders,
    shown,
    stored_bytes,
)
from datasets.formats.tar_keys import unpack_key
from datasets.formats.tar_samples import (
    SampleFields,
    SampleLayout,
    extension_text,
    iter_samples,
    split_name,
)
from datasets.shared_file import SharedFile

# Where headers stand closer than this, reading what lies between costs less than another read.
_NEAR_BYTES = 1 << 16
_FEW_HEADERS = 16  # too few to tell
_LARGE_READ = 1 << 20
_SMALL_READ = 1 << 12
_COMPRESSED = {
    b"\x1f\x8b": "gzip", b"(\xb5/\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2",
    b"\x04\"M\x18": "lz4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShardScan:
    """The samples of a shard, in order.

    Attributes:
        keys: Their keys, [n].
        labels: Class ids or names, [n]; None for a sample without one.
        offset: Where the first member of each begins, with its header, int64 [n].
        span_bytes: From there to the end of the last member; others may lie between, int64 [n].
        size_bytes: The content of the members alone, int64 [n].
    """

    keys: list[bytes]
    labels: list[int | str | None]
    offset: NDArray[np.int64]
    span_bytes: NDArray[np.int64]
    size_bytes: NDArray[np.int64]


class _Place(NamedTuple):
    """Where a member begins, where its content does, and how long this is."""

    start: int
    content: int
    size_bytes: int
    owner: bytes
    crc32: int | None


def scan_shard(file: SharedFile, size_bytes: int, fields: SampleFields) -> ShardScan:
    """Find the samples of a shard; of their content, only labels are read.

    Args:
        file: The shard.
        size_bytes: Its length.
        fields: Which members count.

    Raises:
        BadTar: It is damaged, compressed or cut short, or holds what is no plain file.
        datasets.file_reader.MissingFile: It is gone, or may not be read.
        OSError: Trouble that did not pass.
    """
    window = _Window(file)
    start = window.read(0, 6)
    for mark, method in _COMPRESSED.items():
        if start.startswith(mark):
            raise BadTar(
                f"it is compressed ({method}), and no sample of it can be read without those "
                f"before; decompress it, or read it as a stream"
            )
    keys: list[bytes] = []
    labels: list[int | str | None] = []
    places: list[tuple[int, int, int]] = []
    json_labels = True
    for stem, members in iter_samples(_places(window, size_bytes)):
        key = unpack_key(stem, next(iter(members.values())).owner)
        label = None
        try:
            layout = fields.layout(tuple(members))
            if layout.label is not None and (layout.label != "json" or json_labels):
                place = members[layout.label]
                content = window.read(place.content, place.size_bytes)
                if place.crc32 is not None and zlib.crc32(content) != place.crc32:
                    raise ValueError("its label is not what was packed; copy the shard again")
                label = fields.label(layout.label, content)
                # Where the first one has none, the others are not read for nothing.
                json_labels = label is not None or bool(keys)
        except ValueError as error:
            raise BadTar(f"sample {shown(key)}: {error}") from error
        keys.append(key)
        labels.append(label)
        places.append(_span(members, layout))
    columns = np.array(places, np.int64).reshape(-1, 3).T
    return ShardScan(keys, labels, *columns)


def _span(members: dict[str, _Place], layout: SampleLayout) -> tuple[int, int, int]:
    """Where the members of a sample begin that are read again, how far they go; and its size.

    The label is kept in the index: a member that holds nothing else is not read again.
    """
    content = layout.content or tuple(members)
    offset, last = members[content[0]].start, members[content[-1]]
    size = sum([members[extension].size_bytes for extension in layout.content])
    if layout.label is not None and layout.label not in layout.content:
        size += members[layout.label].size_bytes
    return offset, last.content + last.size_bytes - offset, size


def _places(window: _Window, size_bytes: int) -> Iterator[tuple[bytes, _Place]]:
    """The files in a shard, in order; archives that were put one behind the other are all read."""
    headers, at, start, ended = TarHeaders(), 0, None, False
    while at < size_bytes:
        header = headers.parse(window.header(at))
        if start is None:
            start = at
        at += BLOCK_BYTES
        ended = header.kind == "end"
        if header.size_bytes > size_bytes - at:
            raise BadTar(
                f"the member {shown(header.name)} should have {header.size_bytes:,} bytes, and "
                f"{max(size_bytes - at, 0):,} are left in the file; copy it again"
            )
        if header.kind == "extension":
            headers.extend(window.read(at, header.size_bytes))
        elif header.kind == "file":
            yield header.name, _Place(start, at, header.size_bytes, header.owner, header.crc32)
        if header.kind != "extension":
            start = None
        at += stored_bytes(header.size_bytes)
    headers.finish()
    if not ended:
        raise BadTar(
            "it is empty; copy it again" if not size_bytes else
            "it has no end mark, and so may be cut short; copy it again, or, if it is whole, add "
            "the mark: truncate -s +1024"
        )  # fmt: skip


class _Window:
    """A file read piece by piece: small pieces around headers, large ones where these are near."""

    def __init__(self, file: SharedFile) -> None:
        self._file = file
        self._data = b""
        self._start = 0
        self._headers = 0

    def header(self, offset: int) -> bytes:
        """The block at a place."""
        self._headers += 1
        return self.read(offset, BLOCK_BYTES)

    def read(self, offset: int, size_bytes: int) -> bytes:
        """The bytes at a place, as many of them as there are."""
        start = offset - self._start
        if start < 0 or start + size_bytes > len(self._data):
            near = self._headers > _FEW_HEADERS and offset < self._headers * _NEAR_BYTES
            piece = _LARGE_READ if near else _SMALL_READ
            self._data = self._file.read_upto(offset, max(size_bytes, piece))
            self._start, start = offset, 0
        return self._data[start : start + size_bytes]


def read_sample(
    data: bytes, start: int, stop: int, key: bytes, fields: SampleFields, *, checksums: bool
) -> dict[str, Any]:
    """The fields of a sample, but its label, if that has a member of its own.

    Args:
        data: Bytes of the shard that hold its span.
        start: Where in them it begins.
        stop: Where it ends.
        key: Its key.
        fields: Which members become which fields.
        checksums: Compare members with their checksums, where the shard has any.

    Raises:
        ValueError: It is damaged, or another sample.
    """
    headers = TarHeaders()
    members: dict[str, bytes] = {}
    while start < stop:
        header = headers.parse(data[start : start + BLOCK_BYTES])
        start += BLOCK_BYTES
        content = data[start : start + header.size_bytes]
        start += stored_bytes(header.size_bytes)
        if header.kind == "extension":
            headers.extend(content)
        parts = split_name(header.name) if header.kind == "file" else None
        if parts is None:
            continue
        extension = extension_text(parts[1])
        if unpack_key(parts[0], header.owner) != key or extension in members:
            raise BadTar("it is not what it was when the index was made")
        if checksums and header.crc32 is not None and zlib.crc32(content) != header.crc32:
            raise BadTar(f"the bytes of {shown(header.name)} are not those that were packed")
        members[extension] = content
    headers.finish()
    return fields.read(members, label=False)
