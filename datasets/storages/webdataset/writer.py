"""Write records into tar shards, which the webdataset library reads too."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge

from penstock.core.contracts import Writer
from penstock.core.parts import PackPlan, Part, PartSummary, Written
from penstock.core.registry import register
from penstock.core.sample import Record
from penstock.datasets.files.data_files import image_ending
from penstock.datasets.records.labels import CLASSES_NAME
from penstock.datasets.storages.webdataset.headers import BLOCK_BYTES, stored_bytes, write_header
from penstock.datasets.storages.webdataset.layout import IMAGE_EXTENSIONS, pack_key, pack_members

_END = bytes(2 * BLOCK_BYTES)


@register("writer", "webdataset")
class WebDatasetWriter(Writer):
    """A folder of shards, ``shard-000000.tar``, and of the class names in ``classes.txt``.

    A record's image keeps its bytes and extension; the class id is ``.cls``, arrays are ``.npy``,
    other byte strings ``.bin``, and the other fields items of one ``.json``. Equal records give
    equal bytes. The name of a member's group holds its checksum, since tar lacks a field for it.

    Args:
        shard_records: Maximum records of a shard.
        shard_bytes: Maximum bytes of a shard, as far as the source's index knows them.
    """

    def __init__(
        self,
        *,
        shard_records: Annotated[int, Ge(1)] = 10_000,
        shard_bytes: Annotated[int, Ge(1)] = 1 << 28,
    ) -> None:
        self.part_records = shard_records
        self.part_bytes = shard_bytes

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Check that the writer can store the samples, and that class names fit on lines."""
        for record in plan.samples:
            _members(record)
        for name in plan.class_names or ():
            if "\n" in name or "\r" in name:
                raise ValueError(
                    f"pack: class {name!r} has a line feed in its name, which {CLASSES_NAME} "
                    f"cannot hold; rename it"
                )

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write a shard."""
        name = f"shard-{part.number:06d}.tar"
        stem = b""
        with open(folder / name, "wb", buffering=1 << 20) as file:
            for record in records:
                [key] = plan.index.raw_keys(np.array([record.index]))
                stem, owner = pack_key(key, before=stem)
                for extension, content in _members(record).items():
                    path = b"%s.%s" % (stem, extension.encode())
                    size = len(content)
                    file.write(write_header(path, size, owner=owner, crc32=zlib.crc32(content)))
                    file.write(content)
                    file.write(bytes(stored_bytes(size) - size))
            file.write(_END)
        return Written(files=(name,))

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Write the class names."""
        if plan.class_names is not None:
            lines = "".join(f"{name}\n" for name in plan.class_names)
            (folder / CLASSES_NAME).write_text(lines, encoding="utf-8")


def _members(record: Record) -> dict[str, bytes]:
    """Encode the members of a record by extension."""
    image = record.fields.get("image")
    ending = record.key.rpartition(".")[2]
    if ending.lower() not in IMAGE_EXTENSIONS:
        known = image_ending(image) if isinstance(image, bytes) else None
        ending = known[1:] if known else "image.bin"
    return pack_members(record.fields, image=ending, key=record.key)
