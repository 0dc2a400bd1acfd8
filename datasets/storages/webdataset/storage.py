"""Read samples in tar shards by random access."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.core.registry import register
from penstock.core.sample import RecordError, too_large
from penstock.datasets.files.access import RangeFile, is_url
from penstock.datasets.records.file_storage import FileStorage, Form
from penstock.datasets.records.labels import class_ids, read_class_names
from penstock.datasets.records.table import NO_LABEL, Table
from penstock.datasets.records.unpacked import CompressedFile
from penstock.datasets.storages.webdataset.headers import Member, iter_members, shown
from penstock.datasets.storages.webdataset.layout import SampleFields, SampleLayout, iter_samples

_SMALL_BYTES = 1 << 16
_UNPACKED = (b"\x1f\x8b", b"(\xb5/\xfd")  # gzip, zstd
_REFUSED = {b"\xfd7zXZ": "xz", b"BZh": "bzip2", b'\x04"M\x18': "lz4"}


@register("storage", "webdataset")
class WebDatasetStorage(FileStorage):
    """Tar shards, read by random access: they shuffle fully and resume exactly.

    Adjacent members with the same path up to the first dot of the last part are a sample, and
    that path is its key. Their extensions name the fields: images are ``image``,
    ``cls`` ``label``, ``txt`` ``text``, ``npy`` ``array``, ``caption.txt`` ``caption``, and the
    items of a JSON object are fields of their own; see `SampleFields`.

    The headers of the shards are indexed once; nothing is extracted or unpickled. Shards
    compressed by gzip or zstd are unpacked into this machine's cache.

    Args:
        path: A shard, a folder of ``.tar``, ``.tar.gz``, ``.tgz`` or ``.tar.zst`` files, a pattern
            such as ``train-{000..099}.tar`` or ``train-*.tar``, or a list of these.
        fields: Extensions by field, such as ``{image: jpg;png, label: cls}``. The first extension
            that a sample has counts; its other members are dropped. None: every member is a field.
        classes: Class names by id; None: the lines of ``classes.txt`` in the folder, or else the
            labels found, sorted (numbers are ids already).
        shard_keys: Prefix keys with the shard's name, for shards that number samples separately.
        checksums: Verify the checksums of members; only packing writes any.
    """

    def __init__(
        self,
        path: str | list[str],
        *,
        fields: dict[str, str] | None = None,
        classes: list[str] | None = None,
        shard_keys: bool = False,
        checksums: bool = True,
    ) -> None:
        super().__init__(Tar(fields, shard_keys, checksums), path, classes=classes)


@dataclass(frozen=True, repr=False)
class Tar(Form):
    """Tar shards of samples; see `WebDatasetStorage` for the options."""

    fields: dict[str, str] | None
    shard_keys: bool
    checksums: bool

    name = "webdataset"
    reading = ("checksums",)
    endings = (".tar", ".tar.gz", ".tgz", ".tar.zst")
    limited = "span_bytes"
    twice = (
        "write every sample once and into one shard, or, if each shard counts anew, set "
        "dataset.storage.shard_keys=true"
    )
    unlabelled = "add them, or take none: dataset.storage.fields={image:jpg}"

    _fields: ClassVar[SampleFields]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_fields", SampleFields(self.fields))

    def class_names(self, root: str, *, where: str) -> tuple[str, ...] | None:
        """Read the lines of ``classes.txt``."""
        return read_class_names(root, where=where)

    def nothing(self, tables: Sequence[Table]) -> str:
        """Explain which members were expected."""
        return (
            "no sample in there; expected members such as 0001.jpg and 0001.cls; set "
            "dataset.storage.path"
        )

    def decode(self, data: memoryview, key: bytes, row: tuple[Any, ...]) -> dict[str, Any]:
        """Read the fields of a sample, except a label with a member of its own."""
        # A small copy is cheaper than views.
        span: Any = bytes(data) if len(data) < _SMALL_BYTES else data

        def read(at: int, size_bytes: int) -> bytes:
            return bytes(span[at : at + size_bytes])

        def contents() -> Iterator[tuple[bytes, bytes, Any]]:
            for name, _, at, size_bytes, owner, crc32 in iter_members(read, has_end=False):
                content = span[at : at + size_bytes]
                if self.checksums and crc32 is not None and zlib.crc32(content) != crc32:
                    raise RecordError(f"the bytes of {shown(name)} are not those that were packed")
                yield name, owner, content

        samples = list(iter_samples(contents()))
        if len(samples) != 1 or not (
            samples[0][0] == key or (self.shard_keys and key.endswith(b"/" + samples[0][0]))
        ):
            raise RecordError("it is not what it was when the index was made")
        try:
            return self._fields.read(samples[0][1], label=False)
        except ValueError as error:
            raise RecordError(str(error)) from error

    def scan(self, file: RangeFile, file_bytes: int, name: str, max_bytes: int) -> Table:
        """Find the samples of a shard by its headers; read only labels of their content."""
        window = Window(file)
        start = window.read(0, 6)
        if start.startswith(_UNPACKED):
            raise CompressedFile("it is compressed twice; unpack it")
        for mark, method in _REFUSED.items():
            if start.startswith(mark):
                said = f"it is compressed ({method}), expected gzip, zstd or nothing; unpack it"
                if not is_url(file.path):
                    said += (
                        f", or read it as a stream: type dataset=stream dataset/source=webdataset "
                        f"dataset.source.path='pipe:{method} -dc {file.path}'"
                    )
                raise RecordError(said)
        prefix = b""
        if self.shard_keys:
            plain = name.removesuffix(".gz").removesuffix(".zst")
            prefix = os.fsencode(os.path.splitext(plain)[0]) + b"/"
        keys: list[bytes] = []
        labels: list[int | str | None] = []
        places: list[tuple[int, int, int]] = []
        json_labels = True
        for key, members in iter_samples(_whole_members(window, file_bytes)):
            label = None
            try:
                layout = self._fields.layout(tuple(members))
                if layout.label is not None and (layout.label != "json" or json_labels):
                    place = members[layout.label]
                    if place.size_bytes > max_bytes:
                        raise ValueError(f"its label {too_large(place.size_bytes, max_bytes)}")
                    content = window.read(place.offset, place.size_bytes)
                    if place.crc32 is not None and zlib.crc32(content) != place.crc32:
                        raise ValueError("its label is not what was packed; copy the shard again")
                    label = self._fields.label(layout.label, content)
                    # If the first JSON lacks a label, skip the others.
                    json_labels = label is not None or bool(keys)
            except ValueError as error:
                raise RecordError(f"sample {shown(key)}: {error}") from error
            keys.append(prefix + key)
            labels.append(label)
            places.append(_span(members, layout))
        offset, span_bytes, size_bytes = np.array(places, np.int64).reshape(-1, 3).T.copy()
        columns = {"offset": offset, "span_bytes": span_bytes, "size_bytes": size_bytes}
        return _labelled(keys, columns, labels)


def _labelled(
    keys: Sequence[bytes], columns: dict[str, Any], labels: Sequence[int | str | None]
) -> Table:
    """Return the table of samples with their labels, if any has one, as class ids or numbers."""
    if all(label is None for label in labels):
        return Table(keys, columns)
    classes, numbers = None, labels
    if any(isinstance(label, str) for label in labels):
        ids, classes = class_ids([str(one) for one in labels if one is not None], None, where="")
        given = iter(ids.tolist())
        numbers = [label if label is None else next(given) for label in labels]
    column = np.array([NO_LABEL if n is None else n for n in numbers], np.int64)
    return Table(keys, {**columns, "label": column}, classes)


def _whole_members(window: Window, size_bytes: int) -> Iterator[tuple[bytes, bytes, Member]]:
    for member in iter_members(window.read):
        left = size_bytes - member.offset
        if member.size_bytes > left:
            raise RecordError(
                f"the member {shown(member.name)} should have {member.size_bytes:,} bytes, and "
                f"{max(left, 0):,} are left in the file; copy it again"
            )
        yield member.name, member.owner, member


def _span(members: dict[str, Member], layout: SampleLayout) -> tuple[int, int, int]:
    """Return offset and length of a sample's content members, and the size of all its members.

    The index holds the label, so a member with only a label is not read again.
    """
    content = layout.content or tuple(members)
    offset, last = members[content[0]].start, members[content[-1]]
    counted = {*layout.content, *([layout.label] if layout.label is not None else ())}
    size = sum(members[extension].size_bytes for extension in counted)
    return offset, last.offset + last.size_bytes - offset, size


class Window:
    """Reads a file in pieces around the headers; small members share a piece."""

    def __init__(self, file: RangeFile) -> None:
        self.file = file
        self._data = b""
        self._start = 0

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Read up to `size_bytes` bytes at `offset`."""
        start = offset - self._start
        if start < 0 or start + size_bytes > len(self._data):
            self._data = self.file.read_upto(offset, max(size_bytes, self.file.piece_bytes))
            self._start, start = offset, 0
        return self._data[start : start + size_bytes]
