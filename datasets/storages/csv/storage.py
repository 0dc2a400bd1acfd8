"""Records in the rows of a CSV file, with images in files beside it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import StorageCapabilities
from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record, TextColumn
from penstock.datasets.columnar.rows import image_bytes
from penstock.datasets.files.access import (
    MissingFile,
    absolute_path,
    is_url,
    read_each,
)
from penstock.datasets.files.local_copies import local_copy
from penstock.datasets.records.index import IndexContent
from penstock.datasets.records.indexed_storage import IndexedStorage, file_mark
from penstock.datasets.records.labels import MISSING, column_ids
from penstock.datasets.storages.csv.reader import CsvReader

_log = logging.getLogger(__name__)

_MOST_KEPT = 1 << 16  # different texts of a column; of one with more, a batch's own are looked up


@register("storage", "csv")
class CsvStorage(IndexedStorage):
    """A CSV file: every row is a record, every column a field of its name.

    The first line names the columns. One of them may hold the paths of image files, which are
    read with their records. The file is parsed when it is first opened; its columns lie in the
    cache from then on, mapped and shared by all processes, until the file changes. A run goes on
    with what it has opened.

    Args:
        path: The file; with ``train.csv`` and ``val.csv``, their folder.
        image_column: The column of the images' paths, read into the field ``image``; None:
            ``image``, ``file_name``, ``filename`` or ``path``, whichever there is first.
        label_column: The column of the field ``label``: class ids or names; None: ``label``; an
            empty text: no labels.
        key_column: The column of the keys; None: ``key``, else the images' paths, or without these
            the numbers of the rows.
        columns: The other columns that are read; None: all.
        types: ``int``, ``float`` or ``str`` by column; None: the narrowest that holds all values.
        missing: Texts that stand for a missing value, which is NaN among numbers (whole ones are
            floats then) and None among texts.
        root: The folder that the paths of images are relative to, and may not leave; None: the
            file's own. ``/`` takes absolute paths.
        follow_symlinks: Read images that lie elsewhere by a link.
        delimiter: What separates values; None: a tab in ``.tsv`` files, else a comma.
        classes: Class names by id; None: those found, sorted (numbers are ids already).
    """

    name = "csv"
    reads_urls = True
    marks_records = False  # its images are files of their own
    reading_arguments = ("root", "follow_symlinks")
    index_version = 3

    def __init__(
        self,
        path: str,
        *,
        image_column: str | None = None,
        label_column: str | None = None,
        key_column: str | None = None,
        columns: list[str] | None = None,
        types: dict[str, Literal["int", "float", "str"]] | None = None,
        missing: tuple[str, ...] = MISSING,
        root: str | None = None,
        follow_symlinks: bool = False,
        delimiter: str | None = None,
        classes: list[str] | None = None,
    ) -> None:
        self.path = absolute_path(path)
        self.image_column = image_column
        self.label_column = label_column
        self.key_column = key_column
        self.columns = None if columns is None else tuple(columns)
        self.types = dict(types or {})
        self.missing = tuple(missing)
        self.root = absolute_path(root or os.path.dirname(self.path))
        self.follow_symlinks = follow_symlinks
        self.delimiter = delimiter or ("\t" if path.endswith(".tsv") else ",")
        self.classes = None if classes is None else tuple(classes)
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n' or not self.delimiter.isascii():
            raise ValueError(f"{self}: delimiter {delimiter!r}, expected one character, as in ';'")
        self._file = self.path
        self._columns: dict[str, tuple[str, tuple[int, int] | None]] = {}
        self._image: str | None = None
        self._known: dict[str, NDArray[np.object_]] = {}

    @property
    def capabilities(self) -> StorageCapabilities:
        """It gives columns."""
        return StorageCapabilities(columns=self)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of every record; none where there are images, which are files."""
        names = self._names()  # opens the index, which says whether there is an image
        return names if self._image is None else ()

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read rows and their images; one whose image is gone or elsewhere is a bad record.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        index, indices = self.index, np.asarray(indices, np.int64)
        rows, names = index.rows(indices), self._names()
        columns = [self._taken(name, rows).tolist() for name in names]
        found = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        fields: list[dict[str, Any]] = found if names else [{} for _ in range(len(indices))]
        if self._image is None:
            return self.records(indices, fields)
        if self._image in self._columns:
            images = self._taken(self._image, rows).tolist()
        else:
            images = index.keys(indices)
        rows_and_images = list(zip(images, fields, strict=True))
        return self.records(indices, read_each(self._with_image, rows_and_images, place=self.root))

    def _with_image(self, row: tuple[str | None, dict[str, Any]]) -> dict[str, Any] | str:
        """The fields of a row with its image, or why that cannot be had."""
        image, fields = row
        try:
            content = image_bytes(
                image,
                self.root,
                follow_symlinks=self.follow_symlinks,
                max_bytes=self.max_record_bytes,
            )
        except (MissingFile, ValueError) as error:
            return str(error)
        return {"image": content, **fields}

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, Any] | None:
        """Rows as columns, see `core.contracts.ColumnStorage`.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
        """
        rows = self.index.rows(indices)
        return {name: self._taken(name, rows) for name in self._names() if name in fields}

    def read_paths(self) -> list[str]:
        """The folder of the images: the rows are in the index."""
        return [] if self._image is None else [self.root]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_known": {}}

    def _names(self) -> tuple[str, ...]:
        """Names of the fields of every record, but for the image."""
        label = ("label",) if "label" in self.index.columns else ()
        return (*(name for name in self._columns if name != self._image), *label)

    def _taken(self, name: str, rows: NDArray[np.int64]) -> Any:
        """Values of a field in `rows`, int64 [n]: int64 or float64 [n], or a `TextColumn`."""
        column, place = self._columns.get(name, (name, None))
        values = self.index.column(column)[rows]
        if place is None:
            return values
        start, count = place
        if count > _MOST_KEPT:
            different, numbers = np.unique(values, return_inverse=True)
            there = different[different >= 0]
            return TextColumn(self._texts_at(start + there), numbers - len(different) + len(there))
        texts = self._known.get(name)
        if texts is None:
            texts = self._known[name] = self._texts_at(start + np.arange(count))
        return TextColumn(texts, values)

    def _texts_at(self, numbers: NDArray[np.int64]) -> NDArray[np.object_]:
        """Some of the different texts of all columns, and None."""
        return np.array([*self.index.texts(numbers), None], object)

    def mark(self) -> list[int]:
        """Size and time of the file."""
        self._file = local_copy(self.path) if is_url(self.path) else self.path
        if not os.path.isfile(self._file):
            what = "a folder" if os.path.isdir(self.path) else "nothing there"
            raise ValueError(
                f"{self}: expected a CSV file, got {what}; set dataset.storage.path to a file, "
                f"or to a folder with train.csv and val.csv"
            )
        return file_mark(self._file)

    def scan(self) -> IndexContent:
        """Parse the file."""
        reader = CsvReader(
            self._file,
            delimiter=self.delimiter,
            missing=self.missing,
            types=self.types,
            root=self.root,
            where=str(self),
        )
        table = reader.read(
            image_column=self.image_column,
            label_column=self.label_column,
            key_column=self.key_column,
            columns=self.columns,
        )
        columns = {f"field{n}": column.values for n, column in enumerate(table.columns.values())}
        class_names = None
        if table.labels is not None:
            where = f"{self}: column {self.label_column or 'label'!r}"
            columns["label"], class_names = column_ids(
                table.labels, classes=self.classes, missing=self.missing, where=where
            )
        named: Any = {"keys": table.keys}
        if table.keys is None:
            named = {"key_pattern": "{:08d}", "count": table.count}
        places: list[tuple[int, int] | None] = []
        texts: list[str] = []
        for column in table.columns.values():
            places.append((len(texts), len(column.texts)) if column.kind == "str" else None)
            texts += column.texts
        return {
            **named,
            "columns": columns,
            "class_names": class_names,
            "texts": texts,
            "content": table.content,
            "metadata": {
                "names": [*table.columns],
                "places": places,
                "image": table.image,
                "doubts": table.doubts,
            },
        }

    def learn(self, metadata: dict[str, Any]) -> None:
        """Keep where each field's values are, and say what may have been meant otherwise."""
        fields = zip(metadata["names"], metadata["places"], strict=True)
        self._columns = {name: (f"field{n}", place) for n, (name, place) in enumerate(fields)}
        self._image = metadata["image"]
        for doubt in metadata["doubts"]:
            _warn_once(f"{self}: {doubt}")


@cache
def _warn_once(text: str) -> None:
    """Both splits of a run may open the same file."""
    _log.warning("%s", text)
