"""Records into an LMDB file with an index beside it."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.formats.lmdb_packed import DATA_NAME, INDEX_NAME, append_values
from datasets.formats.lmdb_pages import scan_lmdb
from datasets.formats.packed_fields import pack_fields
from datasets.index import write_index
from datasets.parts import (
    PackPlan,
    Part,
    PartSummary,
    Written,
    written_column,
    written_keys,
    written_labels,
    written_rows,
)
from datasets.sample import Record
from pipeline.registry import register

# Columns of an LMDB source that speak of its file.
_PLACES = frozenset(
    "offset crc32 image_bytes text_offset text_bytes metadata_offset metadata_bytes "
    "raw_height raw_width raw_channels".split()
)
_SIZES = frozenset(("height", "width"))  # of images that may have become others
_BUFFER_BYTES = 1 << 20
_SHAPE = ("height", "width", "channels")


@register("writer", "lmdb")
class LmdbWriter:
    """A folder with data.mdb and index.arrow.

    Values are stored under the keys ``0000000000``, ``0000000001``, ...; that of a record with
    an image and a label alone is the image file as it was, or the pixels of a decoded image.
    Labels, keys, checksums and the shapes of decoded images (``raw_height``, ``raw_width``,
    ``raw_channels``; 0 for a file) are in the index, with the columns of the source's index.
    """

    version = 1
    part_records = 4096
    part_bytes = 1 << 25
    cannot_hold: frozenset[str] = frozenset()
    storage_arguments: dict[str, Any] = {}  # noqa: RUF012

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Look whether the samples can be held."""
        for record in plan.samples:
            pack_fields(record.fields, key=record.key)

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write the values one behind the other."""
        name = f"spool-{part.number:06d}"
        sizes: list[int] = []
        images, checksums = [], []
        shapes = np.zeros((len(part), len(_SHAPE)), np.uint32)
        held: list[bytes] = []
        held_bytes, spool = 0, None
        with ExitStack() as stack:
            for record in records:
                value, image_bytes = pack_fields(record.fields, key=record.key)
                held.append(value)
                held_bytes += len(value)
                if isinstance(image := record.fields.get("image"), np.ndarray):
                    shapes[len(sizes)] = image.shape
                sizes.append(len(value))
                images.append(image_bytes)
                checksums.append(zlib.crc32(value))
                if held_bytes > (self.part_bytes if plan.held else _BUFFER_BYTES):
                    spool = spool or stack.enter_context(open(folder / name, "wb"))
                    spool.write(b"".join(held))
                    held, held_bytes = [], 0
            if spool or not plan.held:
                spool = spool or stack.enter_context(open(folder / name, "wb"))
                spool.write(b"".join(held))
        columns = {
            "size_bytes": np.array(sizes, np.uint32),
            "image_bytes": np.array(images, np.uint32),
            "crc32": np.array(checksums, np.uint32),
            "shapes": shapes[: len(sizes)],
        }
        if spool:
            return Written(columns=columns, spooled=(name,))
        return Written(columns=columns, held=held)

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """Append a part's values to data.mdb."""
        sizes = summary.written.columns["size_bytes"]
        values = summary.written.held
        if values is None:
            values = _spooled(folder / summary.written.spooled[0], sizes)
        append_values(folder, summary.first, values)

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
        write_index(
            folder / INDEX_NAME,
            keys=written_keys(plan, summaries),
            columns=columns,
            class_names=plan.class_names,
            metadata={"layout": "lmdb", "version": 1, "data_bytes": data.stat().st_size},
        )


def _spooled(path: Path, sizes: NDArray[np.uint32]) -> list[memoryview]:
    """Values that lie in a file one behind the other."""
    content = memoryview(b"")
    if sizes.any():
        with open(path, "rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    return [content[a:b] for a, b in zip([0, *ends], ends, strict=False)]
