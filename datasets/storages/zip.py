"""Image files in ZIP archives, and the archives that packing writes.

Those have a hidden member beside the image files: an Arrow file with the columns of
`datasets.columnar.writer`, among them the name of the member that is a record's image.
"""

from __future__ import annotations

import io
import itertools
import os
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.parts import PackPlan, Part, PartSummary, Written
from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record
from penstock.datasets.columnar.roles import Roles, find_roles
from penstock.datasets.columnar.values import DamagedFile, Row, damage, label_ids, read_rows
from penstock.datasets.columnar.writer import RecordTable
from penstock.datasets.files.access import (
    EndOfFile,
    FileView,
    MissingFile,
    OpenFiles,
    SharedFile,
    absolute_path,
    is_url,
    read_each,
)
from penstock.datasets.files.data_files import (
    IMAGE_ENDINGS,
    DataFiles,
    ending_of,
    find_data_files,
    image_ending,
    no_images,
)
from penstock.datasets.files.group_cache import GroupCache
from penstock.datasets.files.ipc_sizes import file_fault
from penstock.datasets.files.zip_members import (
    NO_MEMBER,
    PLACE,
    DamagedMember,
    Member,
    list_members,
    read_member,
)
from penstock.datasets.records.index import IndexContent
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.records.labels import FileLabels, LabelIds, Unlabelled, refuse_twice
from penstock.datasets.records.split_names import parts_among

_SIDECAR = ".penstock.arrow"
_MEMBER = "penstock_member"
_SIDECAR_BYTES = 128 << 20
_ROWS = 1000
_UNREADABLE = (DamagedFile, DamagedMember, EndOfFile, MissingFile)

_Found = list[tuple[str, int, Member]]
"""Key, archive and member of every record."""


@register("storage", "zip")
class ZipStorage(IndexedStorage):
    """Image files in ZIP archives, stored or deflated, with the layout of an image folder.

    Records have the fields ``image`` (the member's bytes) and, with labels, ``label``. Their keys
    are the members' names below `folder`, in whichever archive they lie. Nothing is extracted: a
    member is read from its place and compared with its checksum.

    Archives that packing wrote hold keys, labels and all other fields in a hidden member, from
    which records come back as they were, unless `folder` or `labels` say something else.

    Args:
        path: An archive, a folder of ``.zip`` files, or a pattern such as ``part-*.zip``.
        folder: The folder in the archives that holds the images; what lies elsewhere is left out.
        labels: ``folder`` (the first folder below `folder`), ``filename``, the path of a CSV, or
            None.
        label_pattern: For ``filename``: a regular expression whose group is the label.
        label_columns: Of the CSV: the columns of the keys and of the labels.
        unlabelled: Members that the CSV has no row for; see `ImageFolder`.
        classes: Class names by id; None: those found, sorted (numbers by their value).
        hidden: Take what begins with a dot.
        endings: Endings of image files, in any case.
        checksums: Compare members with their checksums.
    """

    name = "zip"
    reading_arguments = ("checksums",)
    reads_urls = True

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
        self.path = absolute_path(path)
        self.folder = folder.strip("/")
        is_folder = os.path.isdir(self.path)
        if is_url(self.path):
            is_folder = not self.path.lower().endswith(".zip")
        beside = self.path if is_folder else os.path.dirname(self.path)
        self.labels = FileLabels.of(labels, label_pattern, label_columns, unlabelled, folder=beside)
        self.classes = None if classes is None else tuple(classes)
        self.hidden = hidden
        self.endings = tuple(endings)
        self._dotted_endings = tuple(f".{ending.lower().lstrip('.')}" for ending in endings)
        self.checksums = checksums
        self._files: DataFiles
        self._places: list[dict[str, int]] = []

    def mark(self) -> Any:
        """Names, sizes and times of the archives, and of the CSV of the labels."""
        self._files = find_data_files(self.path, endings=(".zip",), where=str(self))
        return [self._files.recipe, self.labels.csv_version()]

    def learn(self, metadata: dict[str, Any]) -> None:
        """Keep where the hidden members lie."""
        self._places = metadata["sidecars"]

    def open(self) -> _OpenArchives:
        """Prepare to read; archives are opened when they are needed."""
        return _OpenArchives(self._files, self._places, self.checksums, self.max_record_bytes)

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read members; one that is damaged is a bad record.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        index, indices = self.index, np.asarray(indices, np.int64)
        opened: _OpenArchives = self.opened
        rows = {name: index.values(name, indices) for name in index.columns}
        found: list[dict[str, Any] | str] = [{} for _ in indices]
        if "sidecar_row" in rows:
            found = opened.others(rows["archive"], rows["sidecar_row"])
        is_wanted = rows["method"] != NO_MEMBER.method
        is_wanted &= np.array([isinstance(fields, dict) for fields in found], bool)
        order = np.lexsort((rows["offset"], rows["archive"]))
        order = order[is_wanted[order]]
        names = ("archive", *PLACE)
        columns = (rows[name][order].tolist() for name in names)
        places = [dict(zip(names, place, strict=True)) for place in zip(*columns, strict=True)]
        contents = read_each(lambda place: opened.content(**place), places, place=self.path)
        for n, content in zip(order.tolist(), contents, strict=True):
            found[n] = content if isinstance(content, str) else {**found[n], "image": content}
        return self.records(indices, found)

    def scan(self) -> IndexContent:
        """Index the directories of all archives."""
        files, opened = self._files, OpenFiles(self._files)
        listed = []
        for name, (size, _) in zip(files.names, files.marks, strict=True):
            where = f"{self}: {name}" if len(files.names) > 1 else str(self)
            listed.append(list_members(FileView(opened[name], size), where=where))
        hidden = [member for members in listed for member in members if member.name == _SIDECAR]
        columns: dict[str, NDArray[Any]] = {}
        labels, places = None, list[dict[str, Any]]()
        by_folder = self.labels.source == "folder"
        if packed := len(hidden) == len(listed) and by_folder and not self.folder:
            places = [{name: getattr(one, name) for name in PLACE} for one in hidden]
            sidecars = [
                _open_checked(
                    opened[name],
                    place,
                    self.max_record_bytes,
                    where=f"{self}: damaged: {name}, {_SIDECAR}",
                )
                for name, place in zip(files.names, places, strict=True)
            ]
            found = self._packed_records(files, listed, sidecars)
            counts = [sum(map(len, sidecar.batches)) for sidecar in sidecars]
            columns["sidecar_row"] = np.concatenate([np.arange(n, dtype=np.int32) for n in counts])
            labels = self._packed_labels(sidecars)
        else:
            found = self._image_files(files, listed)
        columns["archive"] = np.array([number for _, number, _ in found], np.int32)
        for name, dtype in PLACE.items():
            columns[name] = np.array([getattr(member, name) for *_, member in found], dtype)
        if labels is not None:
            columns["label"] = labels[0]
        content: IndexContent = {
            "keys": [key for key, *_ in found],
            "columns": columns,
            "class_names": None if labels is None else labels[1],
            "metadata": {"sidecars": places},
        }
        return content if packed or self.labels.source is None else self._labelled(content)

    def _packed_records(
        self, files: DataFiles, listed: Sequence[Sequence[Member]], sidecars: Sequence[_Sidecar]
    ) -> _Found:
        """List the records that the hidden members name; `NO_MEMBER` for those without an image."""
        found: _Found = []
        for number, (members, sidecar) in enumerate(zip(listed, sidecars, strict=True)):
            by_name = {member.name: member for member in members} | {"": NO_MEMBER}
            texts = (sidecar.column(name) for name in ("key", _MEMBER))
            keys, images = ([t for array in arrays for t in array.to_pylist()] for arrays in texts)
            for key, image in zip(keys, images, strict=True):
                if image not in by_name or key is None:
                    name = files.names[number]
                    raise ValueError(f"{self}: {name}: no member {image!r}, which is {key!r}")
                found.append((key, number, by_name[image]))
        refuse_twice([key.encode() for key, *_ in found], where=str(self))
        return found

    def _packed_labels(self, sidecars: Sequence[_Sidecar]) -> LabelIds | None:
        import pyarrow as pa

        roles = sidecars[-1].roles
        labels = [array for one in sidecars if one.roles.label for array in one.column("label")]
        if not labels:
            return None
        return label_ids(pa.chunked_array(labels), roles, self.classes, where=str(self))

    def _labelled(self, found: IndexContent) -> IndexContent:
        above = f"{self.folder}/" if self.folder else ""
        if self.labels.source == "folder":
            names = {str(key).partition("/")[0] for key in found["keys"] or () if "/" in str(key)}
            if self.classes is None and (parts := parts_among(names)):
                part = f"{above}{parts[0]}"
                raise ValueError(
                    f"{self}: its folders {' and '.join(parts)} look like parts of one data set; "
                    f"to split one of them, type dataset.storage.folder={part}; to use all, put "
                    f"the parts into train.zip and val.zip and set path to their folder"
                )
        place = f"dataset.storage.folder={above}"
        return self.labels.add_to(found, self.classes, where=str(self), place=place)

    def _image_files(self, files: DataFiles, listed: Sequence[Sequence[Member]]) -> _Found:
        """List the members that are image files, by key."""
        keyed = [
            (self._key(member.name), number, member)
            for number, members in enumerate(listed)
            for member in members
        ]
        found = [(key, number, member) for key, number, member in keyed if key is not None]
        if not found:
            others = Counter(ending_of(os.fsencode(member.name)) for *_, member in keyed)
            remedy = "set dataset.storage.path or folder"
            raise ValueError(f"{self}: {no_images(others, self.endings, remedy)}")
        found.sort(key=lambda row: row[0].encode("utf-8", "surrogateescape"))
        for (key, a, _), (next_key, b, _) in itertools.pairwise(found):
            if key == next_key:
                raise ValueError(
                    f"{self}: {key!r} stands twice, in {files.names[a]} and {files.names[b]}; "
                    f"write the archives anew without it"
                )
        return found

    def _key(self, name: str) -> str | None:
        """Make the key of a member; None for one that is no record."""
        folder = f"{self.folder}/" if self.folder else ""
        key = name.removeprefix(folder)
        if not name.startswith(folder) or not key.lower().endswith(self._dotted_endings):
            return None
        parts = key.split("/")
        if not self.hidden and any(part.startswith(".") or part == "__MACOSX" for part in parts):
            return None
        return key


class _OpenArchives:
    """The archives as a process has opened them; its threads share it.

    Args:
        files: The archives.
        places: Where their hidden members lie, if all have one.
        checksums: Compare members with their checksums.
        max_bytes: What a record may take.
    """

    def __init__(
        self, files: DataFiles, places: Sequence[dict[str, int]], checksums: bool, max_bytes: int
    ) -> None:
        self._max_bytes = max_bytes
        self._files = files
        self._places = places
        self._checksums = checksums
        self._opened = OpenFiles(files)
        self._sidecars = GroupCache(_SIDECAR_BYTES)

    def content(self, archive: int, **place: Any) -> bytes | str:
        """Read a member's bytes, or why they cannot be had."""
        name = self._files.names[archive]
        if not self._checksums:
            place["crc32"] = None
        try:
            return read_member(self._opened[name], **place)
        except _UNREADABLE as error:
            return f"{name}: {error}"

    def others(self, archives: NDArray[Any], rows: NDArray[Any]) -> list[dict[str, Any] | str]:
        """Read what the hidden members hold of some records, or why it cannot be had."""
        found: list[dict[str, Any] | str] = [{} for _ in rows]

        def read(archive: int) -> None:
            at = np.flatnonzero(archives == archive)
            try:
                sidecar: _Sidecar = self._sidecars.get(archive, partial(self._load, archive))
                values: Sequence[Row] = sidecar.read(rows[at], self._max_bytes)
            except _UNREADABLE as error:
                values = [f"{self._files.names[archive]}, {_SIDECAR}: {error}"] * len(at)
            for n, value in zip(at.tolist(), values, strict=True):
                found[n] = value

        list(read_each(read, np.unique(archives).tolist(), place=self._files.root))
        return found

    def _load(self, archive: int) -> tuple[_Sidecar, int]:
        """Read an archive's hidden member, and what it costs to keep it."""
        place = self._places[archive]
        file = self._opened[self._files.names[archive]]
        return _Sidecar.open(file, place, self._max_bytes), place["size_bytes"]


@dataclass(frozen=True, slots=True)
class _Sidecar:
    """The records of one packed archive.

    Attributes:
        batches: Their rows, ``pyarrow.RecordBatch``, in order.
        roles: What the columns become.
    """

    batches: Sequence[Any]
    roles: Roles

    @classmethod
    def open(
        cls,
        file: SharedFile,
        place: dict[str, int],
        max_bytes: int,
        columns: Collection[str] | None = None,
    ) -> _Sidecar:
        """Read a hidden member.

        Args:
            file: The archive.
            place: Where the member lies in it.
            max_bytes: What a record may take: what is compressed may not become absurdly more.
            columns: Columns that are to be checked; None: all.

        Raises:
            DamagedFile, DamagedMember, EndOfFile: It cannot be read.
        """
        import pyarrow as pa

        content = pa.py_buffer(read_member(file, **place, max_bytes=max_bytes))
        with damage():
            reader = pa.ipc.open_file(content)
            names = reader.schema.names
            for part in range(reader.num_record_batches):
                if fault := file_fault(content, part, max_bytes):
                    raise DamagedFile(fault)
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
            wanted = [name for name in names if columns is None or name in columns]
            for batch in batches:
                batch.select(wanted).validate(full=True)
            if not {"key", _MEMBER} <= set(names):
                raise DamagedFile("it names no keys and members")
            roles = find_roles(
                reader.schema,
                image_column=None,
                label_column=None,
                key_column="key",
                columns=[name for name in names if name != _MEMBER],
                where=_SIDECAR,
            )
        return cls(batches, roles)

    def column(self, name: str) -> list[Any]:
        """Arrays of one column."""
        return [batch.column(batch.schema.get_field_index(name)) for batch in self.batches]

    def read(self, rows: NDArray[np.int64], max_bytes: int) -> list[Row]:
        """Read the fields of some records, int64 [n], but for images that are files."""
        ends = np.cumsum([len(batch) for batch in self.batches])
        found: list[Row] = []
        parts = np.searchsorted(ends, rows, side="right").tolist()
        for row, part in zip(rows.tolist(), parts, strict=True):
            if part == len(ends):
                found.append("it is not what it was when the index was made")
                continue
            batch = self.batches[part]
            row -= int(ends[part]) - len(batch)
            found += read_rows(batch, [row], self.roles, max_bytes=max_bytes)
        return found


def _open_checked(
    file: SharedFile, place: dict[str, int], max_bytes: int, *, where: str
) -> _Sidecar:
    """Open what an index needs of a hidden member; ValueError where it is damaged."""
    try:
        return _Sidecar.open(file, place, max_bytes, ("key", "label", _MEMBER))
    except _UNREADABLE as error:
        raise ValueError(f"{where}: {error}; copy it again, or take it away") from error


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
        """Check that the samples can be held."""
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
                        archive.writestr(_member(record.fields[_MEMBER]), image)
                    yield record

            sidecar = io.BytesIO()
            with pa.ipc.new_file(sidecar, table.schema) as file:
                for batch in table.batches(others(), rows=_ROWS):
                    file.write_batch(batch)
                    rows += len(batch)
            archive.writestr(_member(_SIDECAR), sidecar.getbuffer())
        if not rows:
            (folder / name).unlink()
        return Written(files=(name,) if rows else ())

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """Nothing: a part is an archive of the result."""

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Nothing: the archives are all that there is."""


def _table(plan: PackPlan) -> RecordTable:
    """The table of the hidden member: records without the images that are files."""
    named = tuple(record for record, _ in _named(plan.samples, plan))
    return RecordTable(replace(plan, samples=named))


def _named(records: Iterable[Record], plan: PackPlan) -> Iterator[tuple[Record, bytes | None]]:
    """Put the name of its member in place of each record's image, and give that image."""
    taken = {_SIDECAR}
    for record in records:
        fields, image, name = dict(record.fields), None, ""
        if isinstance(fields.get("image"), bytes | bytearray | memoryview):
            image = bytes(fields.pop("image"))
            name = _member_name(record, image, plan)
            while name in taken:  # keys that differ in what is no part of a name
                name = f"{record.index:08d}/{name}"
            taken.add(name)
        yield replace(record, fields={**fields, _MEMBER: name}), image


def _member_name(record: Record, image: bytes, plan: PackPlan) -> str:
    """Name a member as a file can be: the key, if that can be one, in the folder of its class."""
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
    """A member with the first date that the format has, so that equal data are equal bytes."""
    member = zipfile.ZipInfo(name)
    member.external_attr = 0o644 << 16
    return member
