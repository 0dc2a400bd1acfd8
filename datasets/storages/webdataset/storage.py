"""Read samples in tar shards by random access: found by their headers, read from their places."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import StorageCapabilities
from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record, too_large
from penstock.datasets.files.access import (
    MissingFile,
    OpenFiles,
    Run,
    SharedFile,
    absolute_path,
    find_runs,
    is_url,
    read_each,
)
from penstock.datasets.files.data_files import DataFiles, find_data_files
from penstock.datasets.records.index import IndexContent
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.records.labels import column_ids, find_twice, read_class_names
from penstock.datasets.records.unpacked import UnpackedShards
from penstock.datasets.storages.webdataset.headers import BadTar, Member, iter_members, shown
from penstock.datasets.storages.webdataset.layout import SampleFields, SampleLayout, iter_samples

_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.zst")
# Shards looked through at a time: their headers are many small reads, which a disk answers better
# when it has several to answer.
_SCANS = 8
_UNPACKED = (b"\x1f\x8b", b"(\xb5/\xfd")  # gzip, zstd
_REFUSED = {b"\xfd7zXZ": "xz", b"BZh": "bzip2", b'\x04"M\x18': "lz4"}


@register("storage", "webdataset")
class WebDatasetStorage(IndexedStorage):
    """Tar shards, read by random access: they shuffle fully and resume exactly.

    Members that stand beside each other with one path up to the first dot of its last part are a
    sample, and that path is its key. Their extensions say what they are: images are ``image``,
    ``cls`` ``label``, ``txt`` ``text``, ``npy`` ``array``, ``caption.txt`` ``caption``, and the
    items of a JSON object are fields of their own; see `SampleFields`.
    Shards are indexed by their headers, once; nothing is extracted, and nothing unpickled. Those
    that are compressed by gzip or zstd are unpacked into this machine's cache.

    Args:
        path: A shard, a folder of ``.tar``, ``.tar.gz``, ``.tgz`` or ``.tar.zst`` files, a pattern
            such as ``train-{000..099}.tar`` or ``train-*.tar``, or a list of these.
        fields: Extensions by field, such as ``{image: jpg;png, label: cls}``: the first one that
            a sample has; its other members are left out. None: every member is a field.
        classes: Class names by id; None: the lines of ``classes.txt`` in the folder, or else those
            found, sorted (numbers are ids already).
        shard_keys: Put the shard's name before the keys, for shards that each count anew.
        checksums: Compare members with their checksums; only packing writes any.
    """

    name = "webdataset"
    reading_arguments = ("checksums",)
    reads_urls = True
    _files: DataFiles
    _names: tuple[str, ...] | None
    _compressed: list[str]

    def __init__(
        self,
        path: str | list[str],
        *,
        fields: dict[str, str] | None = None,
        classes: list[str] | None = None,
        shard_keys: bool = False,
        checksums: bool = True,
    ) -> None:
        paths = [path] if isinstance(path, str) else path
        if not paths:
            raise ValueError("webdataset: path is an empty list; set dataset.storage.path")
        self.paths = tuple(map(absolute_path, paths))
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        self.path = self.paths[0] + more
        self.fields = None if fields is None else dict(fields)
        self.classes = None if classes is None else tuple(classes)
        self.shard_keys = shard_keys
        self.checksums = checksums
        self._fields = SampleFields(fields)

    def mark(self) -> Any:
        """State of the shards, and the class names beside them."""
        self._files = find_data_files(self.paths, endings=_ENDINGS, where=str(self))
        self._names = read_class_names(self._files.root, where=str(self))
        return [self._files.recipe, self._names]

    def open(self) -> OpenFiles:
        """Prepare to open shards, each when it is needed."""
        return OpenFiles(UnpackedShards(self._files, self._compressed))

    def learn(self, metadata: dict[str, Any]) -> None:
        """Keep which shards are compressed; an index from when none could be has no such list."""
        self._compressed = metadata.get("compressed", [])

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read samples, those beside each other at once; one that is damaged is a bad record.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        index, indices = self.index, np.asarray(indices, np.int64)
        raw_keys = index.raw_keys(indices)
        places = (index.values(name, indices) for name in ("shard", "offset", "span_bytes"))
        found: list[dict[str, Any] | str] = [""] * len(indices)
        runs = list(find_runs(*places))
        for run, data in zip(runs, read_each(self._run, runs, place=self._files.root), strict=True):
            name = self._files.names[run.file]
            for n, start, stop in run.parts:
                key = raw_keys[n].removeprefix(self._prefix(name))
                try:
                    if isinstance(data, MissingFile):
                        raise data
                    found[n] = self._sample(data, start, stop, key)
                except (ValueError, MissingFile) as error:
                    found[n] = f"{name}: {error}"
        return self.records(indices, found)

    def _run(self, run: Run) -> bytes | MissingFile:
        file: SharedFile = self.opened[self._files.names[run.file]]
        try:
            return file.read_upto(run.offset, run.size_bytes)
        except MissingFile as error:
            return error

    @property
    def capabilities(self) -> StorageCapabilities:
        """It knows its shards, and whether what it reads of them are copies."""
        copies = self._index is not None and len(self._compressed) == len(self._files.names)
        return StorageCapabilities(shards=self._firsts, reads_copies=copies)

    def _firsts(self) -> NDArray[np.int64]:
        return np.flatnonzero(np.diff(self.index.column("shard"), prepend=-1))

    def record_bytes(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Bytes from the first member of each sample to the end of its last one, integer [n]."""
        return self.index.values("span_bytes", indices)

    def _sample(self, data: bytes, start: int, stop: int, key: bytes) -> dict[str, Any]:
        """Read the fields of a sample, but its label, if that has a member of its own.

        Args:
            data: Bytes of the shard that hold its span.
            start: Where in them it begins.
            stop: Where it ends.
            key: Its key.

        Raises:
            ValueError: It is damaged, or another sample.
        """
        if len(data) < stop:
            raise BadTar("its shard has become shorter; copy it again")

        def read(at: int, size_bytes: int) -> bytes:
            return data[at : at + size_bytes] if at < stop else b""

        def contents() -> Iterator[tuple[bytes, bytes, bytes]]:
            for name, _, at, size_bytes, owner, crc32 in iter_members(read, start, has_end=False):
                content = data[at : at + size_bytes]
                if self.checksums and crc32 is not None and zlib.crc32(content) != crc32:
                    raise BadTar(f"the bytes of {shown(name)} are not those that were packed")
                yield name, owner, content

        samples = list(iter_samples(contents()))
        if len(samples) != 1 or samples[0][0] != key:
            raise BadTar("it is not what it was when the index was made")
        fields = self._fields.read(samples[0][1], label=False)
        if "label" in fields and "label" not in self.index.columns:
            raise BadTar("its json has a label, and that of the first sample had none")
        return fields

    def _prefix(self, name: str) -> bytes:
        """Give what stands before the keys of a shard."""
        name = name.removesuffix(".gz").removesuffix(".zst")
        return os.fsencode(os.path.splitext(name)[0]) + b"/" if self.shard_keys else b""

    def scan(self) -> IndexContent:
        """Look through the headers of all shards."""
        files, compressed = self._files, set()

        def scan(name: str, size_bytes: int) -> ShardScan:
            try:
                window = Window(files.open(name))
                if window.read(0, 4).startswith(_UNPACKED):
                    compressed.add(name)
                    window = Window(UnpackedShards(files, [name]).open(name))
                    size_bytes = os.stat(window.file.path).st_size
                return scan_shard(window, size_bytes, self._fields, self.max_record_bytes)
            except (BadTar, MissingFile) as error:
                raise ValueError(f"{self}: {name}: {error}") from error

        with ThreadPoolExecutor(_SCANS) as pool:
            scans = list(pool.map(scan, files.names, [size for size, _ in files.marks]))
        keys = [
            self._prefix(name) + key
            for name, scan in zip(files.names, scans, strict=True)
            for key in scan.keys
        ]
        if not keys:
            raise ValueError(
                f"{self}: no sample in there; expected members such as 0001.jpg and 0001.cls; set "
                f"dataset.storage.path"
            )
        counts = [len(scan.keys) for scan in scans]
        shards = np.repeat(np.arange(len(scans), dtype=np.int32), counts)
        if rows := find_twice(keys):
            a, b = (files.names[shards[row]] for row in rows)
            raise ValueError(
                f"{self}: {shown(keys[rows[0]])} stands twice, in {a} and {b}; write every sample "
                f"once and into one shard, or, if each shard counts anew, set "
                f"dataset.storage.shard_keys=true"
            )
        offset, span_bytes, size_bytes = np.concatenate([scan.places for scan in scans]).T.copy()
        columns: dict[str, NDArray[Any]] = {
            "shard": shards, "offset": offset, "span_bytes": span_bytes, "size_bytes": size_bytes,
        }  # fmt: skip
        labels = [label for scan in scans for label in scan.labels]
        class_names = None
        if any(label is not None for label in labels):
            columns["label"], class_names = self._class_ids(keys, labels)
        metadata = {"compressed": sorted(compressed)}
        return {"keys": keys, "columns": columns, "class_names": class_names, "metadata": metadata}

    def _class_ids(
        self, keys: list[bytes], labels: list[int | str | None]
    ) -> tuple[NDArray[np.int32], tuple[str, ...]]:
        """Class ids, int32 [n], and the class names by id."""
        if (missing := labels.count(None)) > 0:
            raise ValueError(
                f"{self}: {missing:,} of {len(labels):,} samples have no label, such as "
                f"{shown(keys[labels.index(None)])}; add them, or take none: "
                f"dataset.storage.fields={{image:jpg}}"
            )
        where = f"{self}: labels"
        if all(isinstance(label, int) for label in labels):
            numbers = np.array(labels, np.int64)
            return column_ids(numbers, names=self._names, classes=self.classes, where=where)
        return column_ids(list(map(str, labels)), classes=self.classes or self._names, where=where)


class ShardScan(NamedTuple):
    """The samples of a shard, in order.

    Attributes:
        keys: Their keys, [n].
        labels: Class ids or names, [n]; None for a sample without one.
        places: int64 [n, 3]: where the first member of each begins, with its header; how far it is
            from there to the end of the last one; and the size of the members' content alone.
    """

    keys: list[bytes]
    labels: list[int | str | None]
    places: NDArray[np.int64]


def scan_shard(window: Window, size_bytes: int, fields: SampleFields, max_bytes: int) -> ShardScan:
    """Find the samples of a shard; of their content, only labels are read.

    Args:
        window: The shard.
        size_bytes: Its length.
        fields: Which members count.
        max_bytes: What a label may have.

    Raises:
        BadTar: It is damaged, compressed still or cut short, or holds what is no plain file.
        penstock.datasets.files.access.MissingFile: It is gone, or may not be read.
        OSError: Trouble that did not pass.
    """
    start = window.read(0, 6)
    for mark, method in _REFUSED.items():
        if start.startswith(mark):
            said = f"it is compressed ({method}), expected gzip, zstd or nothing; unpack it"
            if not is_url(window.file.path):
                said += (
                    f", or read it as a stream: type dataset=stream dataset/source=webdataset "
                    f"dataset.source.path='pipe:{method} -dc {window.file.path}'"
                )
            raise BadTar(said)
    keys: list[bytes] = []
    labels: list[int | str | None] = []
    places: list[tuple[int, int, int]] = []
    json_labels = True
    for key, members in iter_samples(_whole_members(window, size_bytes)):
        label = None
        try:
            layout = fields.layout(tuple(members))
            if layout.label is not None and (layout.label != "json" or json_labels):
                place = members[layout.label]
                if place.size_bytes > max_bytes:
                    raise ValueError(f"its label {too_large(place.size_bytes, max_bytes)}")
                content = window.read(place.offset, place.size_bytes)
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
    return ShardScan(keys, labels, np.array(places, np.int64).reshape(-1, 3))


def _whole_members(window: Window, size_bytes: int) -> Iterator[tuple[bytes, bytes, Member]]:
    for member in iter_members(window.read):
        left = size_bytes - member.offset
        if member.size_bytes > left:
            raise BadTar(
                f"the member {shown(member.name)} should have {member.size_bytes:,} bytes, and "
                f"{max(left, 0):,} are left in the file; copy it again"
            )
        yield member.name, member.owner, member


def _span(members: dict[str, Member], layout: SampleLayout) -> tuple[int, int, int]:
    """Find where the members of a sample begin that are read again, how far they go; and its size.

    The label is kept in the index: a member that holds nothing else is not read again.
    """
    content = layout.content or tuple(members)
    offset, last = members[content[0]].start, members[content[-1]]
    counted = {*layout.content, *([layout.label] if layout.label is not None else ())}
    size = sum(members[extension].size_bytes for extension in counted)
    return offset, last.offset + last.size_bytes - offset, size


class Window:
    """Reads a file in pieces around the headers, of which those of small members share one.

    Attributes:
        file: The file.
    """

    def __init__(self, file: SharedFile) -> None:
        self.file = file
        self._data = b""
        self._start = 0

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Read the bytes at a place, as many of them as there are."""
        start = offset - self._start
        if start < 0 or start + size_bytes > len(self._data):
            self._data = self.file.read_upto(offset, max(size_bytes, self.file.piece_bytes))
            self._start, start = offset, 0
        return self._data[start : start + size_bytes]
