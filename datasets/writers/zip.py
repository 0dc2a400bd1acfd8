"""Records into ZIP archives."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from datasets.formats.arrow_records import RecordTable
from datasets.formats.zip_packed import MEMBER, SIDECAR
from datasets.parts import PackPlan, Part, PartSummary, Written
from datasets.sample import Record
from pipeline.registry import register

_ENDINGS = ((b"\xff\xd8", ".jpg"), (b"\x89PNG", ".png"), (b"RIFF", ".webp"), (b"BM", ".bmp"),
            (b"GIF8", ".gif"), (b"II*\0", ".tif"), (b"MM\0*", ".tif"))  # fmt: skip
_KNOWN = (*(ending for _, ending in _ENDINGS), ".jpeg", ".tiff")
_ROWS = 1000


@register("writer", "zip")
class ZipWriter:
    """A folder of ZIP archives, one for each part: image files in class folders, not compressed.

    Images are members that any program can take out, named by their keys where these can be
    names. All else lies in a hidden member, an Arrow file: keys, labels, boxes, pixels.

    Args:
        part_records: The most records of an archive.
    """

    version = 1
    part_bytes = 1 << 28
    cannot_hold: frozenset[str] = frozenset()
    storage_arguments: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, *, part_records: Annotated[int, Ge(1)] = 10_000) -> None:
        self.part_records = part_records

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Look whether the samples can be held."""
        named = [record for record, _ in _named(plan.samples, plan)]
        list(_table(plan).batches(named, rows=_ROWS))

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write an archive, if any record of the part can be read."""
        import pyarrow as pa

        table, rows = _table(plan), 0
        name = f"part-{part.number:05d}-of-{len(plan.parts):05d}.zip"
        with zipfile.ZipFile(folder / name, "w") as archive:

            def others() -> Iterator[Record]:
                for record, image in _named(records, plan):
                    if image is not None:
                        archive.writestr(_member(record.fields[MEMBER]), image)
                    yield record

            sidecar = io.BytesIO()
            with pa.ipc.new_file(sidecar, table.schema) as file:
                for batch in table.batches(others(), rows=_ROWS):
                    file.write_batch(batch)
                    rows += len(batch)
            archive.writestr(_member(SIDECAR), sidecar.getbuffer())
        if not rows:
            (folder / name).unlink()
        return Written(files=(name,) if rows else ())

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """A part is whole as it is."""

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """The archives are all that there is."""


def _table(plan: PackPlan) -> RecordTable:
    """The table of the hidden member: records without the images that are files."""
    named = tuple(record for record, _ in _named(plan.samples, plan))
    return RecordTable(replace(plan, samples=named))


def _named(records: Iterable[Record], plan: PackPlan) -> Iterator[tuple[Record, bytes | None]]:
    """Records with the name of their member in place of an image, and that image."""
    taken = {SIDECAR}
    for record in records:
        fields, image, name = dict(record.fields), None, ""
        if isinstance(fields.get("image"), bytes | bytearray | memoryview):
            image = bytes(fields.pop("image"))
            name = _member_name(record, image, plan)
            while name in taken:  # keys that differ in what is no part of a name
                name = f"{record.index:08d}/{name}"
            taken.add(name)
        yield replace(record, fields={**fields, MEMBER: name}), image


def _member_name(record: Record, image: bytes, plan: PackPlan) -> str:
    """A name that can be a file: the key, if that can be one, in the folder of its class."""
    name = record.key if _is_path(record.key) else f"{record.index:08d}"
    label, classes = record.fields.get("label"), plan.class_names
    if label is not None and classes is not None:
        folder = classes[label].replace("/", "_")
        if _is_path(folder) and not name.startswith(f"{folder}/"):
            name = f"{folder}/{name}"
    if not name.lower().endswith(_KNOWN):
        name += next((end for mark, end in _ENDINGS if image.startswith(mark)), ".bin")
    return name


def _is_path(text: str) -> bool:
    odd = any(c in text for c in '\\:*?"<>|') or not text.isprintable() or len(text) > 200
    parts = text.split("/")
    return not odd and not any(part[:1] in ("", ".", "-") or part[-1] in ". " for part in parts)


def _member(name: str) -> zipfile.ZipInfo:
    """A member with the first date that the format has, so that equal data are equal bytes."""
    member = zipfile.ZipInfo(name)
    member.external_attr = 0o644 << 16
    return member
