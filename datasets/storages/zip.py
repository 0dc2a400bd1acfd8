"""Image files in ZIP archives."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.annotations.file_labels import FileLabels
from datasets.annotations.labels import class_ids
from datasets.data_files import DataFiles, find_data_files
from datasets.file_reader import MissingFile
from datasets.formats.arrow_damage import DamagedFile
from datasets.formats.arrow_values import label_ids
from datasets.formats.zip_members import (
    NO_MEMBER,
    PLACE,
    DamagedMember,
    Member,
    list_members,
    read_member,
)
from datasets.formats.zip_packed import (
    SIDECAR,
    PackedArchives,
    Sidecar,
    look_at_sidecars,
    open_sidecar,
)
from datasets.group_cache import GroupCache
from datasets.index import Index, write_index
from datasets.index_cache import cached_index
from datasets.indexed_storage import IndexedStorage
from datasets.sample import BadRecord, Record
from datasets.scan import IMAGE_ENDINGS
from datasets.shared_file import EndOfFile, FileView, OpenFiles
from pipeline.registry import register

_SIDECAR_BYTES = 128 << 20
_PARTS = frozenset(("train", "val", "valid", "validation", "test"))


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
        labels: ``folder`` (the first folder below `folder`), ``filename``, the path of a CSV with
            the columns key and label, or None.
        label_pattern: For ``filename``: a regular expression whose group is the label.
        classes: Class names by id; None: those found, sorted (numbers by their value).
        hidden: Take what begins with a dot.
        endings: Endings of image files, in any case.
        checksums: Compare members with their checksums.
    """

    name = "zip"

    def __init__(
        self,
        path: str,
        *,
        folder: str = "",
        labels: str | None = "folder",
        label_pattern: str | None = None,
        classes: list[str] | None = None,
        hidden: bool = False,
        endings: tuple[str, ...] = IMAGE_ENDINGS,
        checksums: bool = True,
    ) -> None:
        self.path = os.path.abspath(path)
        self.folder = folder.strip("/")
        beside = self.path if os.path.isdir(self.path) else os.path.dirname(self.path)
        self._file_labels = FileLabels.of(labels, label_pattern, folder=beside)
        self.labels = self._file_labels.source
        self.label_pattern = label_pattern
        self.classes = None if classes is None else tuple(classes)
        self.hidden = hidden
        self.endings = tuple(endings)
        self.checksums = checksums
        self._index: Index | None = None
        self._files: DataFiles | None = None
        self._opened: OpenFiles | None = None
        self._sidecars = GroupCache(_SIDECAR_BYTES)
        self._places: list[dict[str, int]] = []

    @property
    def index(self) -> Index:
        """Key, label, size_bytes and place of every member."""
        if self._index is None:
            self._files = files = find_data_files(self.path, endings=(".zip",), where=str(self))
            self._index = cached_index(
                self._recipe("checksums"),
                build=lambda path: self._build(path, files),
                is_current=lambda index: (
                    index.metadata["files"] == files.recipe
                    and index.metadata["csv"] == self._file_labels.csv_version()
                ),
            )
            self._places = self._index.metadata["sidecars"]
        return self._index

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read members; one that is damaged is a bad record.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        index, indices = self.index, np.asarray(indices, np.int64)
        assert self._files is not None
        if self._opened is None:
            self._opened = OpenFiles(self._files.root)
        rows = {name: index.values(name, indices) for name in index.columns}
        found: list[bytes | str | None] = [None] * len(indices)
        order = np.lexsort((rows["offset"], rows["archive"]))
        values = {name: column.tolist() for name, column in rows.items()}
        for n in order.tolist():
            row = {name: column[n] for name, column in values.items()}
            if row["method"] != NO_MEMBER.method:
                found[n] = self._content(row)
        others: list[Any] = [{}] * len(indices)
        if "sidecar_row" in rows:
            others = self._others(rows["archive"], rows["sidecar_row"])
        records: list[Record | BadRecord] = []
        for n, (i, key) in enumerate(zip(indices.tolist(), index.keys(indices), strict=True)):
            content, other = found[n], others[n]
            if isinstance(content, str) or isinstance(other, str):
                cause = content if isinstance(content, str) else other
                records.append(BadRecord(i, key, cause))
                continue
            fields: dict[str, Any] = {**other}
            if content is not None:
                fields["image"] = content
            if "label" in values:
                fields["label"] = values["label"][n]
            records.append(Record(i, key, fields))
        return records

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_index": self.index, "_files": self._files, "_opened": None,
                "_sidecars": None}  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _sidecars=GroupCache(_SIDECAR_BYTES))

    def _others(self, archives: NDArray[Any], rows: NDArray[Any]) -> list[Any]:
        """What the hidden members hold of some records; or why it cannot be had."""
        assert self._index is not None and self._files is not None and self._opened is not None
        found: list[Any] = [{}] * len(rows)
        for archive in np.unique(archives).tolist():
            at = np.flatnonzero(archives == archive)
            try:
                name = self._files.names[archive]
                load = partial(self._load, name, self._places[archive])
                sidecar = self._sidecars.get((os.getpid(), archive), load)
                values: Sequence[Any] = sidecar.rows(rows[at])
            except (DamagedFile, DamagedMember, EndOfFile, MissingFile) as error:
                values = [f"{self._files.names[archive]}, {SIDECAR}: {error}"] * len(at)
            for n, value in zip(at.tolist(), values, strict=True):
                found[n] = value
        return found

    def _load(self, name: str, place: dict[str, int]) -> tuple[Sidecar, int]:
        """Read an archive's hidden member, and what it costs to keep it."""
        assert self._opened is not None
        return open_sidecar(read_member(self._opened[name], **place)), place["size_bytes"]

    def _content(self, row: dict[str, Any]) -> bytes | str:
        """A member's bytes, or why they cannot be had."""
        assert self._files is not None and self._opened is not None
        name = self._files.names[row["archive"]]
        place = {name: row[name] for name in PLACE}
        if not self.checksums:
            place["crc32"] = None
        try:
            return read_member(self._opened[name], **place)
        except (DamagedMember, EndOfFile, MissingFile) as error:
            return f"{name}: {error}"

    def _build(self, path: Path, files: DataFiles) -> None:
        """Look through the directories of all archives."""
        version = self._file_labels.csv_version()
        opened = OpenFiles(files.root)
        listed = []
        for name, (size, _) in zip(files.names, files.marks, strict=True):
            where = f"{self}: {name}" if len(files.names) > 1 else str(self)
            listed.append(list_members(FileView(opened[name], size), where=where))
        hidden = [member for members in listed for member in members if member.name == SIDECAR]
        if len(hidden) == len(listed) and self.labels == "folder" and not self.folder:
            packed = look_at_sidecars(files, listed, hidden, opened, where=str(self))
            self._write(path, files, packed.found, None, packed=packed)
            return
        found: list[tuple[str, int, Member]] = []
        others: list[str] = []
        for number, members in enumerate(listed):
            for member in members:
                key = self._key(member.name)
                if key is not None:
                    found.append((key, number, member))
                elif len(others) < 3:
                    others.append(member.name)
        if not found:
            raise ValueError(
                f"{self}: no image found, among {', '.join(others) or 'no files at all'}; expected "
                f"names that end in {', '.join(self.endings)}; set dataset.storage.path, folder "
                f"or endings"
            )
        found.sort(key=lambda row: row[0].encode("utf-8", "surrogateescape"))
        for (key, a, _), (next_key, b, _) in itertools.pairwise(found):
            if key == next_key:
                raise ValueError(
                    f"{self}: {key!r} stands twice, in {files.names[a]} and {files.names[b]}; "
                    f"write the archives anew without it"
                )
        self._write(path, files, found, version)

    def _key(self, name: str) -> str | None:
        """The key of a member, or None for one that is no record."""
        folder = f"{self.folder}/" if self.folder else ""
        key = name.removeprefix(folder)
        if not name.startswith(folder) or not key.lower().endswith(self._dotted_endings()):
            return None
        parts = key.split("/")
        if not self.hidden and any(part.startswith(".") or part == "__MACOSX" for part in parts):
            return None
        return key

    def _dotted_endings(self) -> tuple[str, ...]:
        return tuple(f".{ending.lower().lstrip('.')}" for ending in self.endings)

    def _write(
        self,
        path: Path,
        files: DataFiles,
        found: list[tuple[str, int, Member]],
        csv_version: list[int] | None,
        *,
        packed: PackedArchives | None = None,
    ) -> None:
        keys = [key for key, _, _ in found]
        members = [member for _, _, member in found]
        columns: dict[str, NDArray[Any]] = {
            "archive": np.array([number for _, number, _ in found], np.int32)
        }
        for name, dtype in PLACE.items():
            columns[name] = np.array([getattr(member, name) for member in members], dtype)
        class_names = None
        if packed is not None:
            columns["sidecar_row"] = np.array(packed.rows, np.int32)
            if packed.labels is not None:
                columns["label"], class_names = label_ids(
                    packed.labels, packed.roles, self.classes, where=str(self)
                )
        elif self.labels is not None:
            names = self._file_labels.names(keys, where=str(self))
            if self.labels == "folder" and len(set(names)) > 1 and set(names) <= _PARTS:
                raise ValueError(
                    f"{self}: its folders are {' and '.join(sorted(set(names)))}, which are parts "
                    f"and no classes; set dataset.storage.folder=train to split that, or put the "
                    f"parts into train.zip and val.zip and set path to their folder"
                )
            columns["label"], class_names = class_ids(names, self.classes, where=str(self))
        write_index(
            path,
            keys=keys,
            columns=columns,
            class_names=class_names,
            metadata={
                "files": files.recipe,
                "csv": csv_version,
                "sidecars": [] if packed is None else packed.places,
            },
        )
