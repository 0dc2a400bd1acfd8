"""Read image files in a folder, and write them into a folder for each class."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Storage, Writer
from penstock.core.machine_cache import signature_of
from penstock.core.parts import PackPlan, Part, PartSummary, written_keys
from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.datasets.files.access import MissingFile, absolute_path, is_url, read_each, read_file
from penstock.datasets.files.clients import Found
from penstock.datasets.files.data_files import (
    IMAGE_ENDINGS,
    field_of,
    no_images,
    scan_files,
    scan_listing,
)
from penstock.datasets.files.remote import list_files
from penstock.datasets.records.indexed_storage import IndexedStorage, files_mark
from penstock.datasets.records.labels import FileLabels, Unlabelled, class_ids
from penstock.datasets.records.table import Table

_SPOT_CHECKS = 64
_PATH_BYTES = 2048
# Names of at most 255 bytes, the limit of file systems, without leading dots.
_NAME = rb"[^./\\\0-\x1f\x7f][^/\\\0-\x1f\x7f]{0,254}"
_PATH = re.compile(rb"(?:%b/)*%b" % (_NAME, _NAME))


@register("storage", "image_folder")
class ImageFolder(IndexedStorage):
    """Image files below a folder.

    Records have the fields ``image`` (the file's bytes) and, with labels, ``label``. With other
    `endings`, the field is ``audio``, or the ending. Keys are paths relative to the folder. Links
    are followed, and names that begin with a dot are left out. Empty and unreadable files are bad
    samples.

    Args:
        path: The folder, or its URL.
        labels: ``folder`` (the first folder below `path`, if any), ``filename``, the path of a CSV,
            or None.
        label_pattern: For ``filename``: a regular expression whose group is the label.
        label_columns: For a CSV: the column of the files' paths below `path`, with or without their
            ending, and the column of their labels; None: their usual names.
        unlabelled: Drop files without a row in the CSV (``leave_out``), or raise an ``error``.
            None: drop and report them, but raise if they are more than half.
        classes: Class names by id; None: the classes found, sorted (numbers by their value).
        endings: Endings of image files, in any case.
    """

    name = "image_folder"
    reads_urls = True
    _listed: Sequence[Found] | None = None

    def __init__(
        self,
        path: str,
        *,
        labels: str | None = "folder",
        label_pattern: str | None = None,
        label_columns: tuple[str, str] | None = None,
        unlabelled: Unlabelled = None,
        classes: list[str] | None = None,
        endings: tuple[str, ...] = IMAGE_ENDINGS,
    ) -> None:
        self.path = absolute_path(path)
        place = f"dataset.storage.path={self.path}/"
        self.labels = FileLabels(labels, label_pattern, label_columns, unlabelled, self.path, place)
        self.classes = None if classes is None else tuple(classes)
        self.endings = tuple(endings)

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        field, most = field_of(self.endings), self.max_record_bytes

        def read(key: bytes) -> dict[str, Any] | str:
            path = f"{self.path}/{os.fsdecode(key)}"
            try:
                return {field: read_file(path, root=self.path, max_bytes=most)}
            except RecordError as error:
                return str(error)

        keys = self.index.raw_keys(indices)
        return self.records(indices, read_each(read, keys, place=self.path), keys)

    def mark(self) -> Any:
        """Return the state of the label CSV and of a URL's listing, but not of local folders."""
        if is_url(self.path):
            self._listed = list_files(self.path)
            return [signature_of(files=self._listed), self.labels.csv_version()]
        if not os.path.isdir(self.path):
            got, remedy = "nothing there", "set dataset.storage.path"
            if os.path.exists(self.path):
                got, remedy = "a file", f"type dataset.storage.path={os.path.dirname(self.path)}"
            raise ValueError(f"{self}: expected a folder of images, got {got}; {remedy}")
        return self.labels.csv_version()

    def is_current(self, index: Table, mark: Any) -> bool:
        """Return whether labels, the times of folders, and sizes of a few files are unchanged."""
        if is_url(self.path) or not super().is_current(index, mark):
            return super().is_current(index, mark)
        rows = np.linspace(0, len(index) - 1, min(_SPOT_CHECKS, len(index))).astype(np.int64)
        sizes = zip(index.raw_keys(rows), index.values("size_bytes", rows).tolist(), strict=True)
        try:
            return all(
                os.stat(os.path.join(self.path, folder)).st_mtime_ns == mtime_ns
                for folder, mtime_ns in index.metadata["folders"]
            ) and all(  # a broken link has size 0
                not size or os.stat(os.path.join(self.path, os.fsdecode(key))).st_size == size
                for key, size in sizes
            )
        except OSError:
            return False

    def state(self) -> Any:
        """Return also the times of all files: a file may change while its folder does not."""
        state = super().state()
        return state if is_url(self.path) else [state, files_mark(self.path, self.index.raw_keys())]

    def learn(self, metadata: dict[str, Any]) -> None:
        """Drop the listing, which may be long."""
        self._listed = None

    def scan(self) -> Table:
        if self._listed is not None:
            found = scan_listing(self._listed, endings=self.endings)
        else:
            found = scan_files(self.path, endings=self.endings)
        if not found.keys:
            remedy = "set dataset.storage.path, or take another dataset=..."
            raise ValueError(f"{self}: {no_images(found.others, self.endings, remedy)}")
        columns = {"size_bytes": found.size_bytes}
        table = Table(found.keys, columns, metadata={"folders": found.folders})
        return self.labels.add_to(table, self.classes, where=str(self))


@register("writer", "image_folder")
class ImageFolderWriter(Writer):
    """A folder for each class, with the image files, which keep their bytes.

    Keys are the files' paths: ``<class>/<name>.jpg``, or ``<name>.jpg`` without labels. Classes are
    sorted by name and records by key, and each record has an image file and no other field.
    """

    part_records = 4096
    cannot_hold = frozenset(
        ("keys", "numbered", "order", "classes", "pixels", "arrays", "shapes", "bytes", "numbers",
         "values", "no image")
    )  # fmt: skip

    def begin(self, folder: Path, plan: PackPlan) -> None:
        keys = plan.index.raw_keys(np.arange(len(plan.index)))
        endings = tuple(map(str.encode, IMAGE_ENDINGS))
        for before, key in zip([b"", *keys], keys, strict=False):
            is_path = key.lower().endswith(endings) and _PATH.fullmatch(key)
            if not is_path or len(key) > _PATH_BYTES:
                raise _refusal(f"the key {key!r:.100} cannot be the path of an image file")
            if before >= key:
                raise _refusal(f"{key!r:.100} follows {before!r:.100}, and files are sorted")
        _refuse_classes(keys, plan)
        for record in plan.samples:
            image_of(record, plan)

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> tuple[str, ...]:
        names = []
        for record in records:
            name, content = image_of(record, plan)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
            names.append(name)
        return tuple(names)

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Check that every class still has a file, since unreadable records are missing."""
        _refuse_classes(written_keys(plan, summaries), plan)


def _refuse_classes(keys: Sequence[bytes], plan: PackPlan) -> None:
    """Refuse classes whose ids would change when they are found as folders."""
    folders = {key.partition(b"/")[0] for key in keys if b"/" in key}
    names = [folder.decode("utf-8", "backslashreplace") for folder in folders]
    _, found = class_ids(names, None, where="pack")
    if found != tuple(plan.class_names or ()):
        raise _refusal(f"the classes {plan.class_names} differ from the folders {found}")


def image_of(record: Record, plan: PackPlan) -> tuple[str, bytes]:
    """Return the path and the content of a record's image file; refuse other fields."""
    if extra := sorted(record.fields.keys() - {"image", "label"}):
        raise _refusal(f"{record.key!r} has a field {extra[0]!r}")
    image, label = record.fields.get("image"), record.fields.get("label")
    if not isinstance(image, bytes | bytearray | memoryview):
        raise _refusal(f"{record.key!r} lacks an image that is an encoded file")
    folder, names = record.key.rpartition("/")[0].partition("/")[0], plan.class_names or ()
    name = "" if label is None else names[label] if 0 <= label < len(names) else None
    if name != folder:
        raise _refusal(f"{record.key!r} is of the class {name!r} and in the folder {folder!r}")
    path = record.key
    if "\\" in path:  # for bytes that are not UTF-8
        path = os.fsdecode(plan.index.raw_keys(np.array([record.index]))[0])
    return path, bytes(image)


def _refusal(what: str) -> ValueError:
    return ValueError(f"pack: {what}; pack it as webdataset, which holds any record")


@register("storage", "image_files")
class ImageFiles(Storage):
    """Image files by their paths, without labels, in the given order.

    Args:
        paths: The files, or their URLs; duplicates are dropped.
    """

    def __init__(self, paths: list[str]) -> None:
        keys = list(dict.fromkeys(paths))
        self.index: Table = Table(keys)
        self.paths = [absolute_path(os.path.expanduser(key)) for key in keys]

    def __str__(self) -> str:
        return f"image_files of {len(self)} files"

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        place = next(filter(is_url, self.paths), "")
        return list(read_each(self._read, self.index.rows(indices).tolist(), place=place))

    def _read(self, row: int) -> Record | BadRecord:
        path, [key] = self.paths[row], self.index.keys(np.array([row]))
        try:
            root, most = os.path.dirname(path), self.max_record_bytes
            return Record(row, key, {"image": read_file(path, root=root, max_bytes=most)})
        except MissingFile as error:
            return BadRecord(row, key, str(error))
