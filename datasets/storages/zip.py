"""Read and write image files in ZIP archives."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from penstock.core.parts import PackPlan, Part
from penstock.core.registry import register
from penstock.core.sample import Record
from penstock.datasets.files.access import RangeFile, RangeStream
from penstock.datasets.files.data_files import IMAGE_ENDINGS, field_of
from penstock.datasets.files.zip_members import list_members, member_content
from penstock.datasets.records.file_storage import FileStorage, Form
from penstock.datasets.records.labels import FileLabels, Unlabelled
from penstock.datasets.records.table import Table
from penstock.datasets.storages.image_folder import ImageFolderWriter, image_of
from penstock.datasets.writing import refuse_other_bytes


@register("storage", "zip")
class ZipStorage(FileStorage):
    """Image files in ZIP archives, stored or deflated, with the layout of an image folder.

    Records have the fields ``image`` (the member's bytes) and, with labels, ``label``. With other
    `endings`, the field is ``audio``, or the ending. Keys are the members' names below `folder`,
    sorted in each archive. Nothing is extracted: a member is read from its place, and its
    checksum is verified. Names that begin with a dot are left out.

    Args:
        path: An archive, a folder of ``.zip`` files, or a pattern such as ``part-*.zip``.
        folder: The folder in the archives that holds the images; others are ignored.
        labels: ``folder`` (the first folder below `folder`, if any), ``filename``, the path of a
            CSV, or None.
        label_pattern: For ``filename``: a regular expression whose group is the label.
        label_columns: For a CSV: the columns of keys and labels; None: their usual names.
        unlabelled: Members without a row in the CSV; see `ImageFolder`.
        classes: Class names by id; None: the classes found, sorted (numbers by their value).
        endings: Endings of image files, in any case.
    """

    def __init__(
        self,
        path: str,
        *,
        folder: str = "",
        labels: str | None = "folder",
        label_pattern: str | None = None,
        label_columns: tuple[str, str] | None = None,
        unlabelled: Unlabelled = None,
        classes: list[str] | None = None,
        endings: tuple[str, ...] = IMAGE_ENDINGS,
    ) -> None:
        above = f"{folder.strip('/')}/".lstrip("/")
        super().__init__(Zip(above, tuple(endings)), path, classes=classes)
        place = f"dataset.storage.folder={above}"
        is_file = self.path.lower().endswith(Zip.endings)
        beside = os.path.dirname(self.path) if is_file else self.path
        self.labels = FileLabels(labels, label_pattern, label_columns, unlabelled, beside, place)


@dataclass(frozen=True, repr=False)
class Zip(Form):
    """ZIP archives; `above` is the folder in them with a slash; see `ZipStorage`."""

    above: str
    image_endings: tuple[str, ...]

    name = "zip"
    endings = (".zip",)
    row = ("stored_bytes", "size_bytes", "crc32", "method")

    def scan(self, file: RangeFile, file_bytes: int, name: str, max_bytes: int) -> Table:
        """Read the directory of an archive."""
        members = sorted(list_members(RangeStream(file, file_bytes)), key=lambda m: m.name)
        found = [member for member in members if self._is_image(member.name)]
        keys = [m.name[len(self.above) :].encode("utf-8", "surrogateescape") for m in found]
        names = ("offset", "span_bytes", *self.row)
        columns = {n: np.array([getattr(m, n) for m in found], np.int64) for n in names}
        return Table(keys, columns)

    def _is_image(self, name: str) -> bool:
        dotted = tuple(f".{ending.lower().lstrip('.')}" for ending in self.image_endings)
        is_inside = name.startswith(self.above) and "/." not in f"/{name[len(self.above) :]}"
        return is_inside and name.lower().endswith(dotted)

    def decode(self, data: memoryview, key: bytes, row: tuple[int, ...]) -> dict[str, Any]:
        return {field_of(self.image_endings): member_content(data, *row)}

    def nothing(self, tables: Sequence[Table]) -> str:
        return (
            f"no image found below {self.above!r}, expected names that end in "
            f"{', '.join(self.image_endings)}; set dataset.storage.path, folder or endings"
        )


@register("writer", "zip")
class ZipWriter(ImageFolderWriter):
    """A folder of uncompressed ZIP archives, one for each part: image files in class folders.

    It holds what `ImageFolderWriter` holds.

    Args:
        part_records: Maximum records of an archive.
    """

    def __init__(self, *, part_records: Annotated[int, Ge(1)] = 10_000) -> None:
        self.part_records = part_records

    def begin(self, folder: Path, plan: PackPlan) -> None:
        super().begin(folder, plan)
        refuse_other_bytes(plan.index.raw_keys(np.arange(len(plan.index))))

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> tuple[str, ...]:
        name = f"part-{part.number:05d}-of-{len(plan.parts):05d}.zip"
        with zipfile.ZipFile(folder / name, "w") as archive:
            for record in records:
                path, content = image_of(record, plan)
                member = zipfile.ZipInfo(path)  # without a date, so that equal data is equal bytes
                member.external_attr = 0o644 << 16
                archive.writestr(member, content)
        return (name,)
