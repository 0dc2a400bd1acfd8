"""Read records in LMDB files, and write them."""

from __future__ import annotations

import errno
import itertools
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Writer
from penstock.core.files import write_lines
from penstock.core.parts import PackPlan, Part, PartSummary
from penstock.core.record_codec import pack_fields, unpack_fields
from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.datasets.files.access import RangeFile
from penstock.datasets.files.data_files import DataFiles, find_data_files
from penstock.datasets.records.file_storage import FileStorage, Form
from penstock.datasets.records.labels import CLASSES_NAME, class_ids
from penstock.datasets.records.table import Table
from penstock.datasets.storages.lmdb.pages import Entry, read_meta, scan_pages
from penstock.datasets.writing import refuse_class_names

_INDEX_KEY = b"penstock"  # sorted after the numbers of the records
_PAGE_BYTES = 4096
# Columns of a source about places in its files, labels, and sizes of images that may change.
_PLACES = frozenset(
    "file offset span_bytes size_bytes stored_bytes crc32 method number image_bytes label height "
    "width text_offset text_bytes".split()
)


@register("storage", "lmdb")
class LmdbStorage(FileStorage):
    """LMDB files, packed or in a common layout of other writers.

    The values are read without the library, because a damaged page can make the library end the
    interpreter; see `datasets.storages.lmdb.pages`. Packed records have checksums.

    Args:
        path: A folder of packed ``.lmdb`` files, the folder of a ``data.mdb``, or a file.
        key_format: For files of other writers: ``sorted`` (every key is a record) or the pattern of
            the keys, such as ``image-{}``.
        label_key: Another key with the record's class name as text, with the same text in place of
            ``{}``: ``label-{}``, ``{}.cls``.
        text_key: The same for a text, the field ``text``.
        classes: Class names by id; None: the lines of ``classes.txt``, or the classes found.
    """

    reads_urls = False
    form: Lmdb

    def __init__(
        self,
        path: str,
        *,
        key_format: str | None = None,
        label_key: str | None = None,
        text_key: str | None = None,
        classes: list[str] | None = None,
    ) -> None:
        key_format = "{}" if key_format == "sorted" else key_format
        super().__init__(Lmdb(key_format, label_key, text_key), path, classes=classes)

    def _find_files(self) -> DataFiles:
        data = os.path.join(self.path, "data.mdb")
        paths = data if os.path.isfile(data) else self.paths
        return find_data_files(paths, endings=self.form.endings, where=str(self))

    def records(self, indices: NDArray[np.int64], *found: Any) -> list[Record | BadRecord]:
        """Make records; ValueError if another program has written to the file since the scan."""
        records = super().records(indices, *found)
        if self.form.key_format is None:
            return records
        index = self.index
        numbers = index.values("file", indices).tolist()
        if self.form.text_key is not None:
            offsets, sizes = (index.values(f"text_{n}", indices) for n in ("offset", "bytes"))
            places = zip(numbers, offsets.tolist(), sizes.tolist(), strict=True)
            for n, ((number, *place), record) in enumerate(zip(places, records, strict=True)):
                if isinstance(record, Record):
                    try:
                        text = self.opened[self._files.names[number]].read(*place).decode()
                        record.fields["text"] = text
                    except ValueError as error:  # damage, and texts that are not UTF-8
                        records[n] = BadRecord(record.index, record.key, str(error))
        # LMDB reuses pages, but the pages of a transaction stay intact until the next but one. So
        # bytes read before this check belong to the scanned transaction.
        for number in {*numbers}:
            then = index.metadata["files"][number]["transaction"]
            name = self._files.names[number]
            try:
                now = read_meta(self.opened[name]).transaction
            except RecordError as error:
                raise ValueError(f"{self}: {name}: {error}") from error
            if now != then:
                raise ValueError(
                    f"{self}: another program has written to the file during the run: its last "
                    f"transaction was {then} and is {now}; train on a copy (mdb_copy {self.path} "
                    f"FOLDER), or start again when the writing is over"
                )
        return records


@dataclass(frozen=True, repr=False)
class Lmdb(Form):
    """LMDB files; see `LmdbStorage` for the options."""

    key_format: str | None
    label_key: str | None
    text_key: str | None

    name = "lmdb"
    endings = (".lmdb",)
    named_beside = True

    @property
    def row(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("crc32", "image_bytes") if self.key_format is None else ()

    def scan(self, file: RangeFile, file_bytes: int, name: str, max_bytes: int) -> Table:
        transaction = read_meta(file).transaction  # before the pages, which may change
        entries = {entry.key: entry for entry in scan_pages(file, file_bytes)}
        if self.key_format is None:
            return _packed_table(file, entries)
        table = self._foreign_table(file, entries, self.key_format)
        return table.replaced(metadata={"transaction": transaction})

    def decode(self, data: memoryview, key: bytes, row: tuple[int, ...]) -> dict[str, Any]:
        if self.key_format is not None:
            return {"image": bytes(data)}
        crc32, image_bytes = row
        if zlib.crc32(data) != crc32:
            raise RecordError("its bytes are not those that were packed (checksum)")
        fields: dict[str, Any] = {}
        if image_bytes >= 0:
            fields["image"], data = bytes(data[:image_bytes]), data[image_bytes:]
        return fields | unpack_fields(data) if data else fields

    def _foreign_table(
        self, file: RangeFile, entries: Mapping[bytes, Entry], key_format: str
    ) -> Table:
        others = [key for key in (self.label_key, self.text_key) if key is not None]
        names = _record_names(entries, key_format, others)
        main = _entries_of(names, entries, key_format)
        columns = _places(main, "offset", "span_bytes")
        if self.text_key is not None:
            columns |= _places(
                _entries_of(names, entries, self.text_key), "text_offset", "text_bytes"
            )
        classes = None
        if self.label_key is not None:
            places = _entries_of(names, entries, self.label_key)
            values = [file.read(entry.offset, entry.size_bytes) for entry in places]
            labels = [value.decode("utf-8", "backslashreplace").strip() for value in values]
            columns["label"], classes = class_ids(labels, None, where=self.label_key)
        return Table([entry.key for entry in main], columns, classes)


def _packed_table(file: RangeFile, entries: dict[bytes, Entry]) -> Table:
    if (place := entries.pop(_INDEX_KEY, None)) is None:
        raise RecordError(
            "was not packed by this version; pack it again, or, if another program wrote it, type "
            "dataset.storage.key_format=sorted, or a pattern of its keys, such as image-{}"
        )
    value = file.read(place.offset, place.size_bytes)
    if zlib.crc32(value[4:]) != int.from_bytes(value[:4], "little"):
        raise RecordError("its index is damaged; copy it again")
    columns = unpack_fields(value[4:])
    text, ends = columns.pop("keys"), np.cumsum(columns.pop("key_bytes")).tolist()
    keys = [text[start:end] for start, end in itertools.pairwise([0, *ends])]
    if list(entries) != [b"%010d" % number for number in range(len(keys))]:
        raise RecordError("records are missing; copy it again")
    return Table(keys, _places([*entries.values()], "offset", "span_bytes") | columns)


def _places(entries: Sequence[Entry], offset: str, size_bytes: str) -> dict[str, NDArray[Any]]:
    return {
        offset: np.array([entry.offset for entry in entries], np.int64),
        size_bytes: np.array([entry.size_bytes for entry in entries], np.int64),
    }


def _record_names(
    entries: Mapping[bytes, Entry], key_format: str, others: Sequence[str]
) -> list[bytes]:
    """Return the variable part of the key of every record; numbers in the order of their values."""
    before, found, after = os.fsencode(key_format).partition(b"{}")
    fitting = [key for key in entries if key.startswith(before) and key.endswith(after)]
    names = [key[len(before) : len(key) - len(after)] for key in fitting]
    parts = {_formatted(pattern, name) for pattern in others for name in names}
    names = [name for name in names if name and _formatted(key_format, name) not in parts]
    if not names or not found:
        some = ", ".join(repr(key.decode(errors="backslashreplace")) for key in list(entries)[:3])
        raise RecordError(
            f"no key fits key_format {key_format!r}; the file has {len(entries):,} keys {some}; "
            f"expected 'sorted' (every key is a record) or a pattern such as 'image-{{}}'"
        )
    return sorted(names, key=int) if all(name.isdigit() for name in names) else names


def _formatted(pattern: str, name: bytes) -> bytes:
    return os.fsencode(pattern).replace(b"{}", name, 1)


def _entries_of(
    names: Sequence[bytes], entries: Mapping[bytes, Entry], pattern: str
) -> list[Entry]:
    """Return the entry that `pattern` names for every record."""
    try:
        return [entries[_formatted(pattern, name)] for name in names]
    except KeyError as error:
        raise RecordError(
            f"a record lacks the key {error}; expected a pattern such as 'label-{{}}', "
            f"got {pattern!r}"
        ) from None


@register("writer", "lmdb")
class LmdbWriter(Writer):
    """A folder of files ``part-00000-of-00012.lmdb``, each an environment, and ``classes.txt``.

    The keys of the values are ``0000000000``, ``0000000001``, ...; a record with only an image
    file and a label is stored as the image file. The value ``penstock`` holds keys, labels,
    checksums and the columns of the source's index.
    """

    version = 2
    part_bytes = 1 << 26

    def begin(self, folder: Path, plan: PackPlan) -> None:
        refuse_class_names(plan.class_names or ())

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> tuple[str, ...]:
        values: list[bytes] = []
        found: list[tuple[int, int, int]] = []
        labels: list[int] = []
        for record in records:
            rest = dict(record.fields)
            if (label := rest.pop("label", None)) is not None:
                labels.append(label)
            is_file = isinstance(rest.get("image"), bytes)
            image = rest.pop("image") if is_file else b""
            values.append(image + (pack_fields(rest, key=record.key) if rest else b""))
            found.append((record.index, zlib.crc32(values[-1]), len(image) if is_file else -1))
        if not found:
            return ()
        rows, crc32, image_bytes = np.array(found, np.int64).T.copy()
        keys = plan.index.raw_keys(rows)
        index = {
            **{n: plan.index.column(n)[rows] for n in plan.index.columns if n not in _PLACES},
            **{"keys": b"".join(keys), "key_bytes": np.array([*map(len, keys)], np.int64)},
            **{"crc32": crc32.astype(np.uint32), "image_bytes": image_bytes},
        }
        if labels:
            index["label"] = np.array(labels, np.int64)
        content = pack_fields(index, key="index")
        name = f"part-{part.number:05d}-of-{len(plan.parts):05d}.lmdb"
        _write_values(folder / name, [*values, zlib.crc32(content).to_bytes(4, "little") + content])
        return (name,)

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        if plan.class_names is not None:
            write_lines(folder / CLASSES_NAME, plan.class_names)


def _write_values(path: Path, values: Sequence[bytes]) -> None:
    """Write values under the keys ``0000000000``, ..., and the last one under ``penstock``.

    The library fills unused ends of pages with earlier writes, so only a new environment in one
    transaction keeps the file byte-identical.
    """
    import lmdb

    path.unlink(missing_ok=True)  # of a process that was killed
    size_bytes = sum(len(value) + 2 * _PAGE_BYTES for value in values) + (1 << 20)
    keys = [b"%010d" % number for number in range(len(values) - 1)] + [_INDEX_KEY]
    try:
        with (
            lmdb.open(str(path), size_bytes, subdir=False, lock=False, max_dbs=0) as env,
            env.begin(write=True) as transaction,
        ):
            transaction.cursor().putmulti(zip(keys, values, strict=True), append=True)
    except lmdb.Error as error:
        said = f"{error}: the disk is full, or fails"
        raise OSError(errno.EIO, said, str(path)) from error
