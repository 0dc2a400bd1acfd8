"""Records in the rows of a CSV file, with images in files beside it."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datasets.annotations.label_columns import column_ids
from datasets.file_reader import MissingFile, read_file
from datasets.formats.csv_columns import CsvColumns, cached_columns
from datasets.formats.csv_rows import convert, iter_rows, parse_row
from datasets.formats.csv_table import find_csv_roles, scan_csv
from datasets.index import Index, write_index
from datasets.index_cache import cached_index
from datasets.indexed_storage import IndexedStorage
from datasets.inside import inside
from datasets.sample import BadRecord, Record
from datasets.shared_file import EndOfFile, SharedFile
from pipeline.registry import register

_log = logging.getLogger(__name__)


@register("storage", "csv")
class CsvStorage(IndexedStorage):
    """A CSV file: every row is a record, every column a field of its name.

    The first line names the columns. One of them may hold the paths of image files, which are
    read with their records. Only the places of the rows are in the index, not their text. Where
    batches are taken as a whole, the columns of a file without images are kept in the cache too.

    Args:
        path: The file; with ``train.csv`` and ``val.csv``, their folder.
        image_column: The column of the images' paths, read into the field ``image``; None:
            ``image``, ``file_name``, ``filename`` or ``path``, whichever there is first.
        label_column: The column of the field ``label``: class ids or names; None: ``label``.
        key_column: The column of the keys; None: ``key``, else the images' paths, or without these
            the numbers of the rows.
        columns: The other columns that are read; None: all.
        types: ``int``, ``float`` or ``str`` by column; None: the narrowest that holds all values.
        missing: Texts that stand for a missing value, which is NaN among numbers (whole ones are
            floats then) and None among texts.
        root: The folder that the paths of images are relative to, and may not leave; None: the
            file's own.
        follow_symlinks: Read images that lie elsewhere by a link.
        delimiter: What separates values; None: a tab in ``.tsv`` files, else a comma.
        classes: Class names by id; None: those found, sorted (numbers are ids already).
    """

    name = "csv"

    def __init__(
        self,
        path: str,
        *,
        image_column: str | None = None,
        label_column: str | None = None,
        key_column: str | None = None,
        columns: list[str] | None = None,
        types: dict[str, Literal["int", "float", "str"]] | None = None,
        missing: tuple[str, ...] = ("", "NA", "NaN", "nan", "null"),
        root: str | None = None,
        follow_symlinks: bool = False,
        delimiter: str | None = None,
        classes: list[str] | None = None,
    ) -> None:
        self.path = os.path.abspath(path)
        self.image_column = image_column
        self.label_column = label_column
        self.key_column = key_column
        self.columns = None if columns is None else tuple(columns)
        self.types = dict(types or {})
        self.missing = tuple(missing)
        self.root = os.path.abspath(root or os.path.dirname(self.path))
        self.follow_symlinks = follow_symlinks
        self.delimiter = delimiter or ("\t" if path.endswith(".tsv") else ",")
        self.classes = None if classes is None else tuple(classes)
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise ValueError(f"{self}: delimiter {delimiter!r}, expected one character, as in ';'")
        self._index: Index | None = None
        self._layout: dict[str, Any] = {}
        self._mark: list[int] = []
        self._columns: CsvColumns | None = None
        self._file: SharedFile | None = None

    @property
    def index(self) -> Index:
        """Key, label and place of every row."""
        if self._index is None:
            if not os.path.isfile(self.path):
                what = "a folder" if os.path.isdir(self.path) else "nothing there"
                raise ValueError(
                    f"{self}: expected a CSV file, got {what}; set dataset.storage.path to a file, "
                    f"or to a folder with train.csv and val.csv"
                )
            status = os.stat(self.path)
            mark = [status.st_size, status.st_mtime_ns]
            index = cached_index(
                self._recipe("root", "follow_symlinks"),
                build=lambda path: self._build(path, mark),
                is_current=lambda index: index.metadata["mark"] == mark,
            )
            self._layout, self._mark = index.metadata["layout"], index.metadata["mark"]
            for doubt in index.metadata.get("doubts", []):
                _warn_once(f"{self}: {doubt}")
            self._index = index
        return self._index

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of every record; none where there are images, which are files."""
        index = self.index
        if self._layout["image"] is not None:
            return ()
        label = ("label",) if "label" in index.columns else ()
        return (*self._layout["fields"], *label)

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read rows and their images; one whose image is gone or elsewhere is a bad record.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        index, indices = self.index, np.asarray(indices, np.int64)
        rows = {name: index.values(name, indices).tolist() for name in index.columns}
        if self._file is None:
            self._file = SharedFile(self.path, root=os.path.dirname(self.path))
        records: list[Record | BadRecord] = []
        for n, (i, key) in enumerate(zip(indices.tolist(), index.keys(indices), strict=True)):
            try:
                raw = self._file.read(rows["offset"][n], rows["row_bytes"][n])
                fields = self._fields(raw, rows["crc32"][n])
            except (EndOfFile, MissingFile, ValueError) as error:
                records.append(BadRecord(i, key, str(error)))
                continue
            if "label" in rows:
                fields["label"] = rows["label"][n]
            records.append(Record(i, key, fields))
        return records

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, Any] | None:
        """Rows as columns, see `datasets.protocols.ColumnStorage`; None if the file has changed.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
        """
        rows = self.index.rows(indices)
        if self._has_changed():
            return None
        names = [name for name in self.fields if name in fields]
        if self._columns is None and names != ["label"]:
            self._columns = cached_columns(
                self.path,
                self._layout["fields"],
                delimiter=self.delimiter,
                missing=self.missing,
                recipe=self._recipe("root", "follow_symlinks"),
                content=f"{self._mark} {self.fingerprint()}",
                where=str(self),
            )
            if self._columns is None:
                return None
        columns = {n: self._columns.take(n, rows) for n in names if n != "label" and self._columns}
        if "label" in names:
            columns["label"] = self.index.values("label", rows)
        return columns

    def _has_changed(self) -> bool:
        """Whether the file is not what it was when the index was made: then each row tells."""
        try:
            status = os.stat(self.path)
        except OSError:
            return True
        return [status.st_size, status.st_mtime_ns] != self._mark

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_index": self.index, "_layout": self._layout, "_file": None}

    def _fields(self, raw: bytes, crc32: int) -> dict[str, Any]:
        if zlib.crc32(raw) != crc32:
            raise ValueError("its row is not what it was when the index was made")
        values = parse_row(raw, delimiter=self.delimiter)
        missing = frozenset(self.missing)
        fields: dict[str, Any] = {}
        image_at = self._layout["image"]
        if image_at is not None:
            if values[image_at] in missing:
                raise ValueError("its row names no image")
            file = inside(self.root, values[image_at], follow_symlinks=self.follow_symlinks)
            fields["image"] = read_file(file, root=self.root)
        for name, (at, kind) in self._layout["fields"].items():
            fields[name] = convert(values[at], kind, missing)
        return fields

    def _build(self, path: Path, mark: list[int]) -> None:
        """Read the file once: places, keys, labels, and the types of the columns."""
        first = next(iter_rows(self.path, delimiter=self.delimiter, where=str(self)), None)
        if first is None:
            raise ValueError(f"{self}: it is empty; write a first line with the columns' names")
        roles = find_csv_roles(
            first.values,
            image_column=self.image_column,
            label_column=self.label_column,
            key_column=self.key_column,
            columns=self.columns,
            where=str(self),
        )
        scan = scan_csv(
            self.path,
            roles,
            delimiter=self.delimiter,
            types=self.types,
            missing=frozenset(self.missing),
            where=str(self),
        )
        columns: dict[str, NDArray[Any]] = {
            "offset": scan.offsets,
            "row_bytes": scan.row_bytes,
            "crc32": scan.crc32,
        }
        class_names = None
        if roles.label is not None:
            numbers = scan.types[roles.label] == "int"
            labels = np.array(list(map(int, scan.labels))) if numbers else scan.labels
            columns["label"], class_names = column_ids(
                labels, classes=self.classes, where=f"{self}: column {roles.label!r}"
            )
        named: dict[str, Any] = {"keys": list(scan.keys)}
        if roles.key is None:
            named = {"key_pattern": "{:08d}", "count": len(scan.offsets)}
        fields = {name: (roles.places[name], scan.types[name]) for name in roles.fields}
        image = None if roles.image is None else roles.places[roles.image]
        write_index(
            path,
            **named,
            columns=columns,
            class_names=class_names,
            content=scan.content,
            metadata={
                "mark": mark,
                "layout": {"image": image, "fields": fields},
                "doubts": scan.doubts,
            },
        )


@cache
def _warn_once(text: str) -> None:
    """Both splits of a run may open the same file."""
    _log.warning("%s", text)
