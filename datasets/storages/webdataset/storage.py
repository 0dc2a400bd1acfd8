"""Read samples in tar shards by random access, and write shards."""

from __future__ import annotations

import io
import os
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from penstock.core.contracts import Writer
from penstock.core.files import write_lines
from penstock.core.parts import PackPlan, Part, PartSummary
from penstock.core.registry import register
from penstock.core.sample import Record, RecordError
from penstock.datasets.files.access import RangeFile
from penstock.datasets.records.file_storage import FileStorage, Form
from penstock.datasets.records.labels import CLASSES_NAME, class_ids
from penstock.datasets.records.table import NO_LABEL, Table
from penstock.datasets.storages.webdataset.headers import iter_members, shown
from penstock.datasets.storages.webdataset.layout import (
    TAR_ENDINGS,
    SampleFields,
    iter_samples,
    pack_key,
    pack_members,
)
from penstock.datasets.writing import refuse_class_names

_COMPRESSED = (b"\x1f\x8b", b"(\xb5/\xfd", b"BZh", b"\xfd7zXZ")  # gzip, zstd, bzip2, xz


@register("storage", "webdataset")
class WebDatasetStorage(FileStorage):
    """Tar shards, read by random access: they shuffle fully and resume exactly.

    Adjacent members with the same path up to the first dot of the last part are a sample, and
    that path is its key. Their extensions name the fields: images are ``image``,
    ``cls`` ``label``, ``txt`` ``text``, ``npy`` ``array``, ``caption.txt`` ``caption``, and the
    items of a JSON object are fields of their own; see `SampleFields`.

    Shards compressed by gzip or zstd are unpacked into this machine's cache.

    Args:
        path: A shard, a folder of ``.tar``, ``.tar.gz``, ``.tgz`` or ``.tar.zst`` files, a pattern
            such as ``train-{000..099}.tar`` or ``train-*.tar``, or a list of these.
        fields: Extensions by field, such as ``{image: jpg;png, label: cls}``, of which a sample has
            one; its other members are dropped. None: every member is a field.
        classes: Class names by id; None: the lines of ``classes.txt`` in the folder, or else the
            labels found, sorted (numbers are ids already).
        shard_keys: Prefix keys with the shard's name, for shards that number samples separately.
    """

    def __init__(
        self,
        path: str | list[str],
        *,
        fields: dict[str, str] | None = None,
        classes: list[str] | None = None,
        shard_keys: bool = False,
    ) -> None:
        super().__init__(Tar(fields, shard_keys), path, classes=classes)


class Tar(Form):
    """Tar shards of samples; see `WebDatasetStorage` for the options."""

    name = "webdataset"
    endings = TAR_ENDINGS
    named_beside = True
    twice = (
        "write every sample once, its members together (tar --sort=name), or, if each shard "
        "counts anew, set dataset.storage.shard_keys=true"
    )
    unlabelled = "add them, or take none: dataset.storage.fields={image:jpg}"

    def __init__(self, fields: dict[str, str] | None, shard_keys: bool) -> None:
        self.fields, self.shard_keys = fields, shard_keys
        self._fields = SampleFields(fields)

    def decode(self, data: memoryview, key: bytes, row: tuple[Any, ...]) -> dict[str, Any]:
        """Read the fields of a sample, except a label with a member of its own."""

        def read(at: int, size_bytes: int) -> bytes:
            return bytes(data[at : at + size_bytes])

        samples = list(iter_samples(iter_members(read, end=len(data), has_end=False)))
        if len(samples) != 1 or not key.endswith(samples[0][0]):
            raise RecordError("it is not what it was when the index was made")
        members = {name: member.read(read, len(data)) for name, member in samples[0][1].items()}
        return self._fields.read(members, label=False)

    def scan(self, file: RangeFile, file_bytes: int, name: str, max_bytes: int) -> Table:
        window = Window(file)
        if window.read(0, 6).startswith(_COMPRESSED):
            said = "it is compressed; unpack it, or, if by gzip or zstd, end its name"
            raise RecordError(f"{said} in .tar.gz or .tar.zst")
        plain = name.removesuffix(".gz").removesuffix(".zst")
        prefix = os.fsencode(os.path.splitext(plain)[0]) + b"/" if self.shard_keys else b""
        keys: list[bytes] = []
        labels: list[int | str | None] = []
        places: list[tuple[int, int]] = []
        for key, members in iter_samples(iter_members(window.read, end=file_bytes)):
            label = None
            try:
                sources = self._fields.sources(members)
                if (extension := self._fields.label_source(sources)) is not None:
                    content = members[extension].read(window.read, max_bytes)
                    label = self._fields.label(extension, content)
            except RecordError as error:
                raise RecordError(f"sample {shown(key)}: {error}") from error
            keys.append(prefix + key)
            labels.append(label)
            # The index holds the label, so a member with only a label is not read again.
            read = [members[e] for name, e in sources.items() if name != "label"]
            read = read or list(members.values())
            stop = read[-1].offset + read[-1].size_bytes
            places.append((read[0].start, stop - read[0].start))
        offset, span_bytes = np.array(places, np.int64).reshape(-1, 2).T.copy()
        columns = {"offset": offset, "span_bytes": span_bytes}
        known = [row for row, label in enumerate(labels) if label is not None]
        if not known:
            return Table(keys, columns)
        found: Any = [label for label in labels if label is not None]
        classes = None
        if any(isinstance(label, str) for label in found):
            found, classes = class_ids(list(map(str, found)), None, where="")
        columns["label"] = np.full(len(keys), NO_LABEL, np.int64)
        columns["label"][known] = found
        return Table(keys, columns, classes)


class Window:
    """Reads a file in pieces around the headers; small members share a piece."""

    def __init__(self, file: RangeFile) -> None:
        self._file = file
        self._data, self._start = b"", 0

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Read up to `size_bytes` bytes at `offset`."""
        start = offset - self._start
        if start < 0 or start + size_bytes > len(self._data):
            self._data = self._file.read_upto(offset, max(size_bytes, self._file.piece_bytes))
            self._start, start = offset, 0
        return self._data[start : start + size_bytes]


@register("writer", "webdataset")
class WebDatasetWriter(Writer):
    """A folder of shards, ``shard-000000.tar``, and of the class names in ``classes.txt``.

    A record's image keeps its bytes and extension; the class id is ``.cls``, arrays are ``.npy``,
    other byte strings ``.bin``, and the other fields items of one ``.json``. Equal records give
    equal bytes. The name of a member's group holds its checksum, since tar lacks a field for it.

    Args:
        shard_records: Maximum records of a shard.
        shard_bytes: Maximum bytes of a shard, by the source's index or the sizes of some records.
    """

    version = 2

    def __init__(
        self,
        *,
        shard_records: Annotated[int, Ge(1)] = 10_000,
        shard_bytes: Annotated[int, Ge(1)] = 1 << 28,
    ) -> None:
        self.part_records = shard_records
        self.part_bytes = shard_bytes

    def begin(self, folder: Path, plan: PackPlan) -> None:
        for record in plan.samples:
            pack_members(record)
        refuse_class_names(plan.class_names or ())

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> tuple[str, ...]:
        name = f"shard-{part.number:06d}.tar"
        stem = b""
        with tarfile.open(folder / name, "w", format=tarfile.GNU_FORMAT) as archive:
            for record in records:
                [key] = plan.index.raw_keys(np.array([record.index]))
                stem, owner = pack_key(key, before=stem)
                for extension, content in pack_members(record).items():
                    member = tarfile.TarInfo(f"{os.fsdecode(stem)}.{extension}")
                    member.size, member.uname = len(content), os.fsdecode(owner)
                    member.gname = f"crc32:{zlib.crc32(content):08x}"
                    archive.addfile(member, io.BytesIO(content))
        return (name,)

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        if plan.class_names is not None:
            write_lines(folder / CLASSES_NAME, plan.class_names)
