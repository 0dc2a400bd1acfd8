"""Records in an LMDB file."""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.file_reader import MissingFile
from datasets.formats.lmdb_layouts import Layout, ValueFormat, write_foreign_index
from datasets.formats.lmdb_packed import INDEX_NAME
from datasets.formats.lmdb_pages import change_mark, data_file
from datasets.formats.packed_fields import unpack_fields
from datasets.index import Index, write_index
from datasets.index_cache import cached_index
from datasets.indexed_storage import IndexedStorage
from datasets.sample import BadRecord, Record
from datasets.shared_file import EndOfFile, SharedFile
from datasets.shared_flags import SharedFlags
from pipeline.registry import register


@register("storage", "lmdb")
class LmdbStorage(IndexedStorage):
    """An LMDB file: one that packing made, or one in a common layout of others.

    The places of the values are in the index, and a value is read from its place, without the
    library, which can end the interpreter when a page is damaged; see
    `datasets.formats.lmdb_pages`. The first read in a process opens the file; threads share it.

    A packed file may hold images that are decoded, uint8 [H, W, C], among encoded ones. They are
    read-only views of the mapped file, so that a crop of one is all that is copied; the pages
    count as the process's memory, and the system takes them back where it needs to. A disk that
    fails under a view ends the process by a signal, where other records are tried again.

    Args:
        path: The folder of data.mdb, or the file itself.
        key_format: For files of others: ``sorted`` (every key is a record) or how a number
            becomes a key, such as ``image-%09d`` or ``{:08d}``.
        value_format: ``image``, or with a label in the value: ``label:uint32+image``,
            ``image+label:int64be``.
        label_key: Another key with the record's class name as text, made from the number (or,
            with ``sorted``, the key): ``label-%09d``, ``{}.cls``.
        text_key: The same for a text, the field ``text``.
        metadata_key: The same for a JSON object, whose items become fields.
        label_pattern: A regular expression whose group finds the class name in the key.
        database: A named database in the file.
        classes: Class names by id; None: those found.
        checksums: Compare a packed record with its checksum when a process reads it first:
            damage on the disk is found, at next to no cost over the epochs.
    """

    name = "lmdb"

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
        self.key_format = key_format
        self.classes = None if classes is None else tuple(classes)
        self.checksums = checksums
        self._layout = Layout(
            key_format=key_format or "sorted",
            value_format=value_format,
            label_key=label_key,
            text_key=text_key,
            metadata_key=metadata_key,
            label_pattern=label_pattern,
            database=database,
        )
        self._value_format = ValueFormat.parse(value_format, where=str(self))
        self._index: Index | None = None
        self._file: SharedFile | None = None
        self._verified: SharedFlags | None = None  # of each record

    @property
    def index(self) -> Index:
        """Key, label, size_bytes and place of every record."""
        if self._index is None:
            data = data_file(self.path)
            if not os.path.isfile(data):
                what = "a folder without data.mdb" if os.path.isdir(self.path) else "nothing there"
                raise ValueError(
                    f"{self}: expected an LMDB file, got {what}; set dataset.storage.path, or "
                    f"make one of image files: python -m pipeline pack --help"
                )
            self._index = self._open_packed(data) if not self.key_format else self._scan(data)
        return self._index

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records; one that is damaged is a bad record.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        index, indices = self.index, np.asarray(indices, np.int64)
        names = index.columns
        columns = [index.values(name, indices).tolist() for name in names]
        verified = self._verified_records()
        if self._file is None:
            data = data_file(self.path)
            self._file = SharedFile(data, root=os.path.dirname(data))
        records: list[Record | BadRecord] = []
        for i, key, *row in zip(indices.tolist(), index.keys(indices), *columns, strict=True):
            try:
                fields = self._fields(self._file, i, dict(zip(names, row, strict=True)), verified)
                records.append(Record(i, key, fields))
            except (_DamagedRecord, EndOfFile, MissingFile) as error:
                records.append(BadRecord(i, key, str(error)))
        return records

    def held_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Memory of records that have been read, int64 [n]; decoded images stay in the map."""
        index = self.index
        sizes = index.values("size_bytes", indices).astype(np.int64)
        if "raw_channels" in index.columns:
            sizes[index.values("raw_channels", indices) > 0] = 0
        return sizes

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "_index": self.index, "_file": None}
        return {**state, "_verified": self._verified_records()}

    def _verified_records(self) -> SharedFlags:
        """Which records some process has verified; so each is, once."""
        if self._verified is None:
            self._verified = SharedFlags(len(self.index))
        return self._verified

    def _fields(
        self, file: SharedFile, i: int, row: dict[str, Any], verified: SharedFlags
    ) -> dict[str, Any]:
        shape = None
        if row.get("raw_channels"):
            shape = row["raw_height"], row["raw_width"], row["raw_channels"]
        value: Any
        if shape is None:
            value = file.read(row["offset"], row["size_bytes"])
        else:
            value = file.view(row["offset"], row["size_bytes"])
        if self.checksums and "crc32" in row and not verified[i]:
            if zlib.crc32(value) != row["crc32"]:
                raise _DamagedRecord("its bytes are not those that were packed (checksum)")
            verified.set(i)
        try:
            fields = unpack_fields(value, row.get("image_bytes"), shape)
            if "text_offset" in row:
                fields["text"] = file.read(row["text_offset"], row["text_bytes"]).decode()
            if "metadata_offset" in row:
                text = file.read(row["metadata_offset"], row["metadata_bytes"])
                # An "image" in there is a name, not the image.
                fields = json.loads(text) | fields
        except (ValueError, KeyError, TypeError, IndexError, struct.error) as error:
            raise _DamagedRecord(f"its fields cannot be read ({error})") from error
        if "label" in row:
            fields["label"] = row["label"]
        return fields

    def _open_packed(self, data: str) -> Index:
        """Open the index beside the data of a file that packing made."""
        beside = os.path.join(os.path.dirname(data), INDEX_NAME)
        if not os.path.exists(beside):
            raise ValueError(
                f"{self}: no {INDEX_NAME} beside {os.path.basename(data)}, so it was not packed "
                f"here; name the layout: key_format=sorted, or as in key_format=image-%09d"
            )
        try:
            index = Index.open(beside, verify=True)
        except ValueError as error:
            raise ValueError(f"{self}: {error}; copy it again, or pack it again") from error
        expected, found = index.metadata.get("data_bytes"), os.path.getsize(data)
        if expected is None or found < expected:
            raise ValueError(
                f"{self}: cut short: data.mdb has {found:,} bytes and should have {expected:,}; "
                f"copy it again"
            )
        if self.classes is None or self.classes == index.class_names:
            return index
        return cached_index(
            {"storage": "lmdb", "fingerprint": index.fingerprint(), "classes": self.classes,
             "path": self.path},
            build=lambda path: self._write_relabelled(path, index),
            is_current=lambda cached: cached.metadata["source"] == index.fingerprint(),
        )  # fmt: skip

    def _write_relabelled(self, path: Path, index: Index) -> None:
        """Write a copy of an index with the ids of `classes`."""
        assert self.classes is not None
        names = index.class_names or ()
        columns = {name: index.column(name) for name in index.columns}
        if extra := [name for name in names if name not in self.classes]:
            raise ValueError(
                f"{self}: class {extra[0]!r} is not among the {len(self.classes)} classes of the "
                f"training data; remove its records, or add some to the training data"
            )
        if "label" in columns:
            ids = np.array([self.classes.index(name) for name in names], np.int32)
            columns["label"] = ids[columns["label"]]
        write_index(
            path,
            keys=list(index.iter_raw_keys()),
            columns=columns,
            class_names=self.classes,
            metadata={"source": index.fingerprint()},
        )

    def _scan(self, data: str) -> Index:
        """The index of a file that others wrote, from the cache if the file is as it was."""
        recipe = {"path": data, "layout": repr(self._layout), "classes": self.classes}
        return cached_index(
            {"storage": "lmdb", **recipe},
            build=lambda path: write_foreign_index(
                path, data, self._layout, self.classes, where=str(self)
            ),
            is_current=lambda index: index.metadata["mark"] == change_mark(data),
        )


class _DamagedRecord(Exception):
    """A record that is there but is not what was written; the message is the cause."""
