"""Write records into an LMDB file with an index beside it."""

from __future__ import annotations

import errno
import mmap
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Writer
from penstock.core.parts import (
    PackPlan,
    Part,
    PartSummary,
    Written,
    written_column,
    written_keys,
    written_labels,
    written_rows,
)
from penstock.core.record_codec import pack_fields
from penstock.core.registry import register
from penstock.core.sample import Record
from penstock.datasets.records.table import Table
from penstock.datasets.storages.lmdb.pages import scan_lmdb

INDEX_NAME = "index.npz"
DATA_NAME = "data.mdb"
# Bytes of a transaction, whose pages stay in memory until its commit.
_TRANSACTION_BYTES = 1 << 25
_FIRST_MAP_BYTES = 1 << 28
# Columns of an LMDB source about places in its file.
_PLACES = frozenset(
    "offset crc32 image_bytes text_offset text_bytes metadata_offset metadata_bytes "
    "raw_height raw_width raw_channels".split()
)
_SIZES = frozenset(("height", "width"))  # of images that may have changed
_BUFFER_BYTES = 1 << 20
_SHAPE = ("height", "width", "channels")


@register("writer", "lmdb")
class LmdbWriter(Writer):
    """A folder with data.mdb and index.npz.

    The keys of the values are ``0000000000``, ``0000000001``, ...; a record with only an image
    and a label is stored as its image file, or the pixels of a decoded image.
    Labels, keys, checksums and the shapes of decoded images (``raw_height``, ``raw_width``,
    ``raw_channels``; 0 for a file) are in the index, with the columns of the source's index.
    """

    part_records = 4096
    part_bytes = 1 << 25

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Check that the writer can store the samples."""
        for record in plan.samples:
            pack_fields(record.fields, key=record.key)

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write the concatenated values of a part to a spool file."""
        name = f"spool-{part.number:06d}"
        sizes: list[int] = []
        images, checksums = [], []
        shapes = np.zeros((len(part), len(_SHAPE)), np.uint32)
        with open(folder / name, "wb", buffering=_BUFFER_BYTES) as spool:
            for record in records:
                value, image_bytes = pack_fields(record.fields, key=record.key)
                spool.write(value)
                if isinstance(image := record.fields.get("image"), np.ndarray):
                    shapes[len(sizes)] = image.shape
                sizes.append(len(value))
                images.append(image_bytes)
                checksums.append(zlib.crc32(value))
        columns = {
            "size_bytes": np.array(sizes, np.uint32),
            "image_bytes": np.array(images, np.uint32),
            "crc32": np.array(checksums, np.uint32),
            "shapes": shapes[: len(sizes)],
        }
        return Written(columns=columns, spooled=(name,))

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """Append a part's values to data.mdb."""
        sizes = summary.written.columns["size_bytes"]
        append_values(folder, summary.first, _spooled(folder / summary.written.spooled[0], sizes))

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Write the index."""
        data = folder / DATA_NAME
        rows = written_rows(summaries)
        names = ("size_bytes", "crc32")
        columns: dict[str, Any] = {name: written_column(summaries, name) for name in names}
        entries = list(scan_lmdb(str(data)))
        assert [entry.size_bytes for entry in entries] == columns["size_bytes"].tolist()
        columns["offset"] = np.array([entry.offset for entry in entries], np.int64)
        labels = written_labels(summaries)
        if labels is not None:
            columns["label"] = labels
        images = written_column(summaries, "image_bytes")
        if (images != columns["size_bytes"]).any():
            columns["image_bytes"] = images
        shapes = written_column(summaries, "shapes")
        if shapes.any():
            columns |= {f"raw_{name}": shapes[:, k] for k, name in enumerate(_SHAPE)}
        gone = _PLACES | _SIZES if plan.recoded else _PLACES
        for name in plan.index.columns:
            if name not in gone:
                columns.setdefault(name, plan.index.column(name)[rows])
        metadata = {"layout": "lmdb", "version": 1, "data_bytes": data.stat().st_size}
        table = Table(written_keys(plan, summaries), columns, plan.class_names, metadata)
        table.write(folder / INDEX_NAME)


def _spooled(path: Path, sizes: NDArray[np.uint32]) -> list[memoryview]:
    """Map the concatenated values of a file."""
    content = memoryview(b"")
    if sizes.any():
        with open(path, "rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    return [content[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def append_values(folder: Path, first: int, values: Sequence[memoryview]) -> None:
    """Append values under the keys ``0000000000``, ``0000000001``, ...; skip existing keys.

    Every transaction opens the environment anew. The library fills unused ends of pages with
    earlier writes, so only this keeps the file byte-identical after a kill and a resume.
    """
    start, taken = 0, 0
    for stop, value in enumerate(values):
        if stop > start and taken + len(value) > _TRANSACTION_BYTES:
            _append(folder, first + start, values[start:stop])
            start, taken = stop, 0
        taken += len(value)
    if values:
        _append(folder, first + start, values[start:])


def _append(folder: Path, first: int, values: Sequence[memoryview]) -> None:
    """Write values in one transaction, and enlarge the map if they do not fit."""
    import lmdb

    exists = (folder / DATA_NAME).exists()
    # A single writer in its own folder needs no lock file. 0: the file's own map size.
    env = lmdb.open(str(folder), map_size=0 if exists else _FIRST_MAP_BYTES, lock=False, max_dbs=0)
    try:
        while True:
            try:
                with env.begin(write=True) as transaction:
                    cursor = transaction.cursor()
                    if cursor.last() and int(cursor.key()) >= first:
                        return
                    _, added = cursor.putmulti(_items(first, values), append=True)
                    assert added == len(values), "the library passes over keys that are there"
                return
            except lmdb.MapFullError:
                env.set_mapsize(env.info()["map_size"] * 2)
            except lmdb.DiskError as error:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error
            except lmdb.Error as error:  # also a partial write to a full disk
                cause = f"{error}: the disk is full, or fails"
                raise OSError(errno.EIO, cause, str(folder)) from error
    finally:
        env.close()


def _items(first: int, values: Sequence[memoryview]) -> Iterator[tuple[bytes, memoryview]]:
    return ((b"%010d" % number, value) for number, value in enumerate(values, first))
