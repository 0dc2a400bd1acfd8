"""Read image files in ZIP archives, and read and write packed archives.

Packed archives have hidden members beside the image files: a record's other fields, stored
before its image, and a table of all records at the end.
"""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Writer
from penstock.core.parts import PackPlan, Part, Written
from penstock.core.record_codec import UncacheableError, pack_record, unpack_record
from penstock.core.registry import register
from penstock.core.sample import Record, RecordError
from penstock.datasets.files.access import RangeFile, RangeStream, is_url
from penstock.datasets.files.data_files import (
    IMAGE_ENDINGS,
    ending_of,
    field_of,
    image_ending,
    no_images,
)
from penstock.datasets.files.zip_members import (
    Member,
    list_members,
    local_content,
    member_content,
    read_member,
)
from penstock.datasets.records.file_storage import FileStorage, Form
from penstock.datasets.records.labels import FileLabels, Unlabelled
from penstock.datasets.records.split_names import parts_among
from penstock.datasets.records.table import NO_LABEL, Table

_TABLE = ".penstock/table"
_FIELDS = ".penstock/"
_PLACE = {
    "offset": np.int64, "span_bytes": np.int64, "before_bytes": np.int64, "stored_bytes": np.int64,
    "size_bytes": np.int64, "image_bytes": np.int64, "crc32": np.uint32, "method": np.uint8,
}  # fmt: skip
_NO_IMAGE = 255


@register("storage", "zip")
class ZipStorage(FileStorage):
    """Image files in ZIP archives, stored or deflated, with the layout of an image folder.

    Records have the fields ``image`` (the member's bytes) and, with labels, ``label``. With other
    `endings`, the field is ``audio``, or the ending. Keys are the members' names below `folder`,
    over all archives. Nothing is extracted: a member is read from its place, and its checksum is
    verified.

    Packed archives hold keys, labels and other fields in hidden members, so that records
    round-trip, unless `folder` or `labels` override them.

    Args:
        path: An archive, a folder of ``.zip`` files, or a pattern such as ``part-*.zip``.
        folder: The folder in the archives that holds the images; others are ignored.
        labels: ``folder`` (the first folder below `folder`), ``filename``, the path of a CSV, or
            None.
        label_pattern: For ``filename``: a regular expression whose group is the label.
        label_columns: For a CSV: the columns of the keys and of the labels.
        unlabelled: Members without a row in the CSV; see `ImageFolder`.
        classes: Class names by id; None: the classes found, sorted (numbers by their value).
        hidden: Include names that begin with a dot.
        endings: Endings of image files, in any case.
        checksums: Verify the checksums of members.
    """

    def __init__(
        self,
        path: str,
        *,
        folder: str = "",
        labels: str | None = "folder",
        label_pattern: str | None = None,
        label_columns: tuple[str, str] = ("key", "label"),
        unlabelled: Unlabelled = None,
        classes: list[str] | None = None,
        hidden: bool = False,
        endings: tuple[str, ...] = IMAGE_ENDINGS,
        checksums: bool = True,
    ) -> None:
        self._folder = folder = folder.strip("/")
        packed = labels == "folder" and not folder
        form = Zip(folder, hidden, tuple(endings), packed, checksums)
        super().__init__(form, path, classes=classes)
        is_folder = os.path.isdir(self.path)
        if is_url(self.path):
            is_folder = not self.path.lower().endswith(".zip")
        beside = self.path if is_folder else os.path.dirname(self.path)
        self.labels = FileLabels.of(labels, label_pattern, label_columns, unlabelled, folder=beside)

    def _labelled(self, table: Table, tables: Sequence[Table]) -> Table:
        if self.labels is None or self.labels.source is None or tables[0].metadata["packed"]:
            return table
        above = f"{self._folder}/" if self._folder else ""
        if self.labels.source == "folder" and self.classes is None:
            keys = [key for key in table.raw_keys() if b"/" in key]
            tops = {key.partition(b"/")[0] for key in keys}
            if parts := parts_among([top.decode(errors="replace") for top in tops]):
                part = f"{above}{parts[0]}"
                raise ValueError(
                    f"{self}: its folders {' and '.join(parts)} look like parts of one data set; "
                    f"to split one of them, type dataset.storage.folder={part}; to use all, put "
                    f"the parts into train.zip and val.zip and set path to their folder"
                )
        place = f"dataset.storage.folder={above}"
        return self.labels.add_to(table, self.classes, where=str(self), place=place)


@dataclass(frozen=True, repr=False)
class Zip(Form):
    """ZIP archives; see `ZipStorage` for the options.

    With `packed`, reads the records of packed archives, rather than their image files.
    """

    folder: str
    hidden: bool
    image_endings: tuple[str, ...]
    packed: bool
    checksums: bool

    name = "zip"
    reading = ("checksums",)
    endings = (".zip",)
    row = ("before_bytes", "stored_bytes", "size_bytes", "image_bytes", "crc32", "method")
    declares_classes = True
    twice = "write the archives anew without it"

    def scan(self, file: RangeFile, file_bytes: int, name: str, max_bytes: int) -> Table:
        """Read the directory of an archive, and the table of a packed one."""
        members = list_members(RangeStream(file, file_bytes))
        if self.packed and members and members[-1].name == _TABLE:
            return self._table(file, members)
        keyed = [(self._key(member.name), member) for member in members]
        found = [(key, member) for key, member in keyed if key is not None]
        others = Counter(ending_of(os.fsencode(m.name)) for key, m in keyed if key is None)
        places = [_place(None, member) for _, member in found]
        columns = _columns(places)
        keys = [key.encode("utf-8", "surrogateescape") for key, _ in found]
        return Table(keys, columns, metadata={"packed": False, "others": others})

    def _table(self, file: RangeFile, members: Sequence[Member]) -> Table:
        try:
            _, table = unpack_record(read_member(file, members[-1]))
            places = [
                _place(*(None if n < 0 else members[n] for n in pair))
                for pair in zip(table["fields"].tolist(), table["image"].tolist(), strict=True)
            ]
            keys = [key.encode("utf-8", "surrogateescape") for key in table["keys"]]
            columns = _columns(places)
            if (table["label"] != NO_LABEL).any():
                columns["label"] = table["label"]
            classes = None if table["classes"] is None else tuple(table["classes"])
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            said = " ".join(str(error).split())
            raise RecordError(
                f"damaged: {_TABLE}: {said}; copy it again, or take it away"
            ) from error
        return Table(keys, columns, classes, {"packed": True, "others": {}})

    def _key(self, name: str) -> str | None:
        """Return the key of an image's member; None for other members."""
        folder = f"{self.folder}/" if self.folder else ""
        key = name.removeprefix(folder)
        dotted = tuple(f".{ending.lower().lstrip('.')}" for ending in self.image_endings)
        if not name.startswith(folder) or not key.lower().endswith(dotted):
            return None
        parts = key.split("/")
        if not self.hidden and any(part.startswith(".") or part == "__MACOSX" for part in parts):
            return None
        return key

    def decode(self, data: memoryview, key: bytes, row: tuple[int, ...]) -> dict[str, Any]:
        """Read the image of a record, and its other packed fields."""
        before, stored, size, image, crc32, method = row
        fields: dict[str, Any] = {}
        if before:
            try:
                fields = unpack_record(local_content(data[:before], size - image))[1]
            except (ValueError, KeyError, TypeError) as error:
                raise RecordError(" ".join(str(error).split())) from error
        if method != _NO_IMAGE:
            crc = crc32 if self.checksums else None
            name = field_of(tuple(self.image_endings))
            fields[name] = member_content(data[before:], stored, image, crc, method)
        return fields

    def order(self, tables: Sequence[Table], keys: Sequence[bytes]) -> NDArray[np.int64] | None:
        """Sort image files by key; packed records keep their order."""
        packed = {table.metadata["packed"] for table in tables}
        if len(packed) > 1:
            raise ValueError(
                "zip: some of the archives are packed and others are not; put them into folders "
                "of their own, or read all as files without labels: dataset.storage.labels=null"
            )
        return None if True in packed else np.array(sorted(range(len(keys)), key=keys.__getitem__))

    def nothing(self, tables: Sequence[Table]) -> str:
        """Explain which endings the members have."""
        others = sum((Counter(table.metadata["others"]) for table in tables), Counter())
        return no_images(others, self.image_endings, "set dataset.storage.path or folder")


def _columns(places: Sequence[tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    values = np.array(places, np.int64).reshape(-1, len(_PLACE)).T
    return {name: column.astype(_PLACE[name]) for name, column in zip(_PLACE, values, strict=True)}


def _place(fields: Member | None, image: Member | None) -> tuple[int, ...]:
    """Return the values of `_PLACE` for a record; either member may be None."""
    first = fields or image
    if first is None:
        return 0, 0, 0, 0, 0, 0, 0, _NO_IMAGE
    other_bytes = 0 if fields is None else fields.size_bytes
    if image is None:
        return first.offset, first.span_bytes, first.span_bytes, 0, other_bytes, 0, 0, _NO_IMAGE
    before = image.offset - first.offset
    if not 0 <= before <= first.span_bytes:
        raise RecordError("its members are not neighbours")
    span, size = before + image.span_bytes, other_bytes + image.size_bytes
    return (first.offset, span, before, image.stored_bytes, size, image.size_bytes, image.crc32,
            image.method)  # fmt: skip


@register("writer", "zip")
class ZipWriter(Writer):
    """A folder of uncompressed ZIP archives, one for each part: image files in class folders.

    Any program can extract the images, which are named by their keys where these are valid names.
    A hidden member before an image holds the other fields of the record, and one at the end the
    keys and labels of all.

    Args:
        part_records: Maximum records of an archive.
    """

    version = 2

    def __init__(self, *, part_records: Annotated[int, Ge(1)] = 10_000) -> None:
        self.part_records = part_records

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Check the fields of the samples."""
        for record in plan.samples:
            _packed(record.key, record.fields)

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write an archive, if any record of the part is readable."""
        name = f"part-{part.number:05d}-of-{len(plan.parts):05d}.zip"
        keys: list[str] = []
        places: list[tuple[int, int, int]] = []
        taken: set[str] = set()
        members = 0
        with zipfile.ZipFile(folder / name, "w") as archive:
            for record in records:
                fields, image = dict(sorted(record.fields.items())), None
                fields_at = image_at = -1
                label = fields.pop("label", None)
                if isinstance(fields.get("image"), bytes | bytearray | memoryview):
                    image = bytes(fields.pop("image"))
                if fields:
                    content = _packed(record.key, fields)
                    archive.writestr(_member(f"{_FIELDS}{len(keys):08d}"), content)
                    fields_at, members = members, members + 1
                if image is not None:
                    path = _image_name(record, image, plan)
                    while path in taken:  # different keys with equal names
                        path = f"{record.index:08d}/{path}"
                    taken.add(path)
                    archive.writestr(_member(path), image)
                    image_at, members = members, members + 1
                keys.append(record.key)
                places.append((fields_at, image_at, NO_LABEL if label is None else int(label)))
            columns = np.array(places, np.int64).reshape(-1, 3).T
            classes = None if plan.class_names is None else list(plan.class_names)
            table: dict[str, Any] = dict(zip(("fields", "image", "label"), columns, strict=True))
            archive.writestr(
                _member(_TABLE), _packed("", {"keys": keys, "classes": classes, **table})
            )
        if not keys:
            (folder / name).unlink()
        return Written(files=(name,) if keys else ())


def _packed(key: str, fields: Mapping[str, Any]) -> bytes:
    """Encode fields."""
    try:
        return b"".join(pack_record(key, fields).parts)
    except UncacheableError as error:
        raise ValueError(f"pack: {key!r}: {error}; convert or drop it") from error


def _image_name(record: Record, image: bytes, plan: PackPlan) -> str:
    """Return a member's name, in a class folder: the key if valid, else the record's number."""
    name = record.key if _is_path(record.key) else f"{record.index:08d}"
    label, classes = record.fields.get("label"), plan.class_names
    if label is not None and classes is not None:
        folder = classes[label].replace("/", "_")
        if _is_path(folder) and not name.startswith(f"{folder}/"):
            name = f"{folder}/{name}"
    if not name.lower().endswith(IMAGE_ENDINGS):
        name += image_ending(image) or ".bin"
    return name


def _is_path(text: str) -> bool:
    odd = any(c in text for c in '\\:*?"<>|') or not text.isprintable() or len(text) > 200
    parts = text.split("/")
    return not odd and not any(part[:1] in ("", ".", "-") or part[-1] in ". " for part in parts)


def _member(name: str) -> zipfile.ZipInfo:
    """Return a member with a fixed date, so that equal data give equal bytes."""
    member = zipfile.ZipInfo(name)
    member.external_attr = 0o644 << 16
    return member
