"""Read records in an LMDB file."""

from __future__ import annotations

import os
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.json_text import parse_json
from penstock.core.record_codec import unpack_fields
from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.datasets.files.access import RangeFile
from penstock.datasets.records.indexed_storage import IndexedStorage, file_mark
from penstock.datasets.records.labels import column_ids
from penstock.datasets.records.table import Table
from penstock.datasets.storages.lmdb.layouts import Layout, ValueFormat, scan_foreign
from penstock.datasets.storages.lmdb.pages import change_mark, data_file
from penstock.datasets.storages.lmdb.writer import INDEX_NAME


@register("storage", "lmdb")
class LmdbStorage(IndexedStorage):
    """An LMDB file, packed or in a common layout of other writers.

    The index holds the places of the values, which are read without the library, because a
    damaged page can make the library end the interpreter; see `datasets.storages.lmdb.pages`.
    The first read in a process opens the file; threads share it.

    A packed file may hold decoded images, uint8 [H, W, C], among encoded ones. They are
    read-only views of the mapped file, so a crop copies only itself. Their pages count as the
    process's memory, but the system reclaims them. A disk that fails under a view ends the
    process by a signal; reads of other records are retried.

    Args:
        path: The folder of data.mdb, or the file itself.
        key_format: For files of other writers: ``sorted`` (every key is a record) or the format of
            a numbered key, such as ``image-%09d`` or ``{:08d}``.
        value_format: ``image``, or with a label in the value: ``label:uint32+image``,
            ``image+label:int64be``.
        label_key: Another key with the record's class name as text, made from the number (or, with
            ``sorted``, the key): ``label-%09d``, ``{}.cls``.
        text_key: The same for a text, the field ``text``.
        metadata_key: The same for a JSON object, whose items become fields.
        label_pattern: A regular expression whose group matches the class name in the key.
        database: A named database in the file.
        classes: Class names by id; None: the classes found.
        checksums: Verify the checksum of a packed record when a process first reads it, which costs
            almost nothing over the epochs.
    """

    name = "lmdb"
    reading_arguments = ("checksums",)
    _verified: NDArray[np.bool_] | None = None  # records that this process has verified

    def __init__(
        self,
        path: str,
        *,
        key_format: str | None = None,
        value_format: str = "image",
        label_key: str | None = None,
        text_key: str | None = None,
        metadata_key: str | None = None,
        label_pattern: str | None = None,
        database: str | None = None,
        classes: list[str] | None = None,
        checksums: bool = True,
    ) -> None:
        self.path = os.path.abspath(path)
        self.classes = None if classes is None else tuple(classes)
        self.checksums = checksums
        self.is_packed = key_format is None
        self.layout = Layout(
            key_format=key_format or "sorted",
            value_format=value_format,
            label_key=label_key,
            text_key=text_key,
            metadata_key=metadata_key,
            label_pattern=label_pattern,
            database=database,
        )
        ValueFormat.parse(value_format, where=str(self))

    def mark(self) -> Any:
        """Return size and time of the file, and of the index beside a packed one."""
        data = data_file(self.path)
        if not os.path.isfile(data):
            what = "a folder without data.mdb" if os.path.isdir(self.path) else "nothing there"
            raise ValueError(
                f"{self}: expected an LMDB file, got {what}; set dataset.storage.path, or "
                f"make one of image files: penstock pack --help"
            )
        return (
            [*file_mark(data), *file_mark(self._beside())] if self.is_packed else change_mark(data)
        )

    def scan(self) -> Table:
        """Load the index beside a packed file, or scan a file of another writer."""
        data = data_file(self.path)
        if not self.is_packed:
            return scan_foreign(data, self.layout, self.classes, where=str(self))
        try:
            index = Table.open(self._beside(), verify=True)
        except ValueError as error:
            raise ValueError(f"{self}: {error}; copy it again, or pack it again") from error
        expected, found = index.metadata.get("data_bytes"), os.path.getsize(data)
        if expected is None or found < expected:
            raise ValueError(
                f"{self}: cut short: data.mdb has {found:,} bytes and should have {expected:,}; "
                f"copy it again"
            )
        columns = index.arrays
        names = index.class_names
        if "label" in columns:
            columns["label"], names = column_ids(
                columns["label"], names=names, classes=self.classes, where=str(self)
            )
        return Table(index.raw_keys(), columns, names)

    def open(self) -> RangeFile:
        """Return the file, which the first read opens."""
        data = data_file(self.path)
        return RangeFile(data, root=os.path.dirname(data))

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records; a damaged record is a bad record.

        Raises:
            OSError: A disk error persisted.
            ValueError: Another program has written to the file since the scan.
        """
        index, indices = self.index, np.asarray(indices, np.int64)
        names = index.columns
        columns = [index.values(name, indices).tolist() for name in names]
        rows = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
        records = self.records(indices, map(self._fields, indices.tolist(), rows))
        if not self.is_packed:
            self._check_unchanged()
        return records

    def _check_unchanged(self) -> None:
        """Raise if the file has a later transaction than the scanned one.

        LMDB reuses pages, but the pages of a transaction stay intact until the next but one. So
        bytes read before this check belong to the scanned transaction.
        """
        then, now = self.index.metadata["mark"][2], change_mark(data_file(self.path))[2]
        if now != then:
            raise ValueError(
                f"{self}: another program has written to the file during the run: its last "
                f"transaction was {then} and is {now}; train on a copy (mdb_copy {self.path} "
                f"FOLDER), or start again when the writing is over"
            )

    def held_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the memory of read records, int64 [n]; decoded images stay in the map: 0."""
        index = self.index
        sizes = index.values("size_bytes", indices).astype(np.int64)
        if "raw_channels" in index.columns:
            sizes[index.values("raw_channels", indices) > 0] = 0
        return sizes

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_verified": None}

    def _fields(self, i: int, row: dict[str, Any]) -> dict[str, Any] | str:
        """Read the fields of record `i` with index row `row`, or return why it is bad."""
        file: RangeFile = self.opened
        shape = None
        if row.get("raw_channels"):
            shape = row["raw_height"], row["raw_width"], row["raw_channels"]
        value: Any
        try:
            if shape is None:
                value = file.read(row["offset"], row["size_bytes"])
            else:
                value = file.view(row["offset"], row["size_bytes"])
            if "crc32" in row and not self._is_right(i, value, row["crc32"]):
                return "its bytes are not those that were packed (checksum)"
            fields = unpack_fields(value, row.get("image_bytes"), shape)
            if "text_offset" in row:
                fields["text"] = file.read(row["text_offset"], row["text_bytes"]).decode()
            if "metadata_offset" in row:
                text = file.read(row["metadata_offset"], row["metadata_bytes"])
                # An item "image" of the JSON is a name, not the image.
                fields = parse_json(text) | fields
        except RecordError as error:
            return str(error)
        except (ValueError, KeyError, TypeError, IndexError, struct.error) as error:
            return f"its fields cannot be read ({error})"
        return fields

    def _is_right(self, i: int, value: Any, crc32: int) -> bool:
        """Verify the checksum of a packed record on its first read in this process."""
        if self._verified is None:
            self._verified = np.zeros(len(self), np.bool_)
        if self.checksums and not self._verified[i]:
            self._verified[i] = zlib.crc32(value) == crc32
        return not self.checksums or bool(self._verified[i])

    def _beside(self) -> str:
        """Return the path of the index beside a packed file."""
        found = os.path.join(os.path.dirname(data_file(self.path)), INDEX_NAME)
        if os.path.exists(found):
            return found
        raise ValueError(
            f"{self}: no {INDEX_NAME} beside {os.path.basename(data_file(self.path))}, so it was "
            f"not packed here; name the layout: key_format=sorted, or as in key_format=image-%09d"
        )
