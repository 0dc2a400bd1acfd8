"""What of a packing is done: a file for each part, with a checksum."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets.formats.packed_fields import pack_fields, unpack_fields
from datasets.index import write_whole
from datasets.parts import Part, PartSummary, Written
from datasets.sample import BadRecord
from datasets.writing import mark_file, sync_folder

_CHECKSUM = struct.Struct("<I")


class Journal:
    """The parts of one split that are written, and how many of them are joined.

    Args:
        folder: Where it is kept; made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)

    def save(self, summary: PartSummary) -> None:
        """Note that a part is written."""
        value = _packed(summary)
        content = _CHECKSUM.pack(zlib.crc32(value)) + value
        write_whole(self._file(summary.part), lambda file: file.write(content))
        sync_folder(self._folder)

    def load(self, parts: Sequence[Part], result: Path) -> dict[int, PartSummary]:
        """Parts that are written and whose files are what they were, by number."""
        joined = self.joined
        found = {}
        for part in parts:
            summary = self._read(part)
            if summary is None:
                continue
            spooled = () if part.number < joined else summary.written.spooled
            names = (*summary.written.files, *spooled)
            if all(_mark(result / name) == tuple(summary.marks[name]) for name in names):
                found[part.number] = summary
        return found

    @property
    def joined(self) -> int:
        """How many parts are joined."""
        try:
            return int((self._folder / "joined").read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def set_joined(self, count: int) -> None:
        """Note that so many parts are joined."""
        write_whole(self._folder / "joined", lambda file: file.write(b"%d" % count))
        sync_folder(self._folder)

    def _file(self, part: Part) -> Path:
        return self._folder / f"{part.number:06d}"

    def _read(self, part: Part) -> PartSummary | None:
        """What was noted of a part; None for nothing, or what is damaged."""
        try:
            content = self._file(part).read_bytes()
        except FileNotFoundError:
            return None
        value = content[_CHECKSUM.size :]
        if len(content) < _CHECKSUM.size or _CHECKSUM.unpack_from(content)[0] != zlib.crc32(value):
            return None
        summary = _unpacked(unpack_fields(value, 0))
        return summary if summary.part == part else None


def _mark(path: Path) -> tuple[int, int] | None:
    return mark_file(path) if os.path.isfile(path) else None


def _packed(summary: PartSummary) -> bytes:
    fields: dict[str, Any] = {
        "part": [summary.part.number, summary.part.start, summary.part.stop],
        "files": list(summary.written.files),
        "spooled": list(summary.written.spooled),
        "marks": summary.marks,
        "bad": [[bad.index, bad.key, bad.cause] for bad in summary.bad],
        "done": dict(summary.done),
        "rows": summary.rows,
        "checksums": summary.checksums,
        "sizes": summary.sizes,
    }
    if summary.labels is not None:
        fields["labels"] = summary.labels
    fields |= {f"column {name}": values for name, values in summary.written.columns.items()}
    return pack_fields(fields, key=f"part {summary.part.number}")[0]


def _unpacked(fields: dict[str, Any]) -> PartSummary:
    columns = {
        name.removeprefix("column "): values
        for name, values in fields.items()
        if name.startswith("column ")
    }
    written = Written(columns, tuple(fields["files"]), tuple(fields["spooled"]))
    return PartSummary(
        part=Part(*fields["part"]),
        written=written,
        first=0,
        rows=fields["rows"],
        checksums=fields["checksums"],
        sizes=fields["sizes"],
        labels=fields.get("labels"),
        marks={name: (size, crc) for name, (size, crc) in fields["marks"].items()},
        bad=tuple(BadRecord(*bad) for bad in fields["bad"]),
        done=fields["done"],
    )


def numbered(summaries: dict[int, PartSummary], count: int) -> list[PartSummary]:
    """The first `count` parts in order, each told the number of its first record."""
    first, found = 0, []
    for number in range(count):
        found.append(replace(summaries[number], first=first))
        first += len(found[-1])
    return found
