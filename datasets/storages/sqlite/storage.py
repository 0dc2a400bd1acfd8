"""Read records in the rows of an SQLite file."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record
from penstock.datasets.columnar.names import ColumnRoles, find_roles
from penstock.datasets.columnar.record_columns import REST, restore, restore_rest
from penstock.datasets.columnar.rows import FieldType, image_bytes, label_ids
from penstock.datasets.files.access import MissingFile
from penstock.datasets.records.index import IndexContent
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.storages.sqlite.database import (
    BadQuery,
    DamagedDatabase,
    Database,
    change_mark,
)
from penstock.datasets.storages.sqlite.table import (
    READ_LIMIT_S,
    PackedLayout,
    Scan,
    Source,
    convert,
    find_source,
    key_place,
    placed,
    quoted,
    read_layout,
    scan,
)

_BATCH_ROWS = 256
_ENDINGS = (".sqlite", ".sqlite3", ".db")


@register("storage", "sqlite")
class SqliteStorage(IndexedStorage):
    """A table, view or query of an SQLite file: every row is a record, every column a field.

    The index is made without a look at the images, and rows are found by their numbers, or by
    their keys where they have none: in a view, a query, a table WITHOUT ROWID. A key should then
    be an indexed column, else every batch looks through all rows. Columns of large blobs belong
    behind the others, because SQLite walks through them to reach what follows.

    The file is opened for reading only. A program may write to it meanwhile: a row that is gone is
    a bad record, and the next start makes the index anew. A write-ahead log is taken into account.

    Args:
        path: The file; with ``train.sqlite`` and ``val.sqlite``, their folder.
        table: A table or view; None: the only one.
        query: One SELECT in place of `table`.
        image_column: The column of the field ``image``: its bytes, or the path of a file; None:
            ``image``, ``file_name``, ``filename`` or ``path``, whichever there is first.
        label_column: The column of the field ``label``: class ids or names; None: ``label``.
        key_column: The column of the keys; None: ``key``, or without one the numbers of the rows
            (``rowid``).
        columns: The other columns that are read; None: all.
        types: ``array`` for columns of ``.npy`` files' bytes, ``json`` for texts that are JSON.
        root: The folder that the paths of images are relative to, and may not leave; None: the
            file's own. ``/`` takes absolute paths.
        follow_symlinks: Read images that lie elsewhere by a link.
        classes: Class names by id; None: those found, sorted (numbers are ids already).
    """

    name = "sqlite"
    reading_arguments = ("root", "follow_symlinks")
    index_version = 2

    def __init__(
        self,
        path: str,
        *,
        table: str | None = None,
        query: str | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
        key_column: str | None = None,
        columns: list[str] | None = None,
        types: dict[str, FieldType] | None = None,
        root: str | None = None,
        follow_symlinks: bool = False,
        classes: list[str] | None = None,
    ) -> None:
        self.path = os.path.abspath(path)
        self.table = table
        self.query = query
        self.image_column = image_column
        self.label_column = label_column
        self.key_column = key_column
        self.columns = None if columns is None else tuple(columns)
        self.types = dict(types or {})
        self.root = os.path.abspath(root or os.path.dirname(self.path))
        self.follow_symlinks = follow_symlinks
        self.classes = None if classes is None else tuple(classes)
        if table is not None and query is not None:
            raise ValueError(f"{self}: table and query, expected one of them; leave one out")
        self._layout: dict[str, Any] = {}

    def mark(self) -> Any:
        """Size and time of the file and of its write-ahead log."""
        return change_mark(self._find_file())

    def learn(self, metadata: dict[str, Any]) -> None:
        """Keep how rows are asked for, and what their columns become."""
        self._layout = metadata

    def open(self) -> Database:
        """Prepare to query; connections are opened when they are needed."""
        return Database(self._find_file())

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read rows and their images; one that is damaged or gone is a bad record.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        indices, database = np.asarray(indices, np.int64), self.opened
        places = self._places(indices)
        found: dict[Any, Any] = {}
        wanted = sorted(set(places))
        for start in range(0, len(wanted), _BATCH_ROWS):
            self._fetch(database, wanted[start : start + _BATCH_ROWS], found)
        return self.records(indices, (self._fields(found.get(place)) for place in places))

    def _find_file(self) -> str:
        """Find the file itself, which may be the only one in a folder."""
        files: tuple[str, ...] = ()
        what = "nothing there"
        if os.path.isdir(self.path):
            names = sorted(os.listdir(self.path))
            files = tuple(name for name in names if name.endswith(_ENDINGS) and name[0] != ".")
            what = f"a folder of {len(files)}"
        if os.path.isfile(self.path) or len(files) == 1:
            return os.path.join(self.path, *files)
        raise ValueError(
            f"{self}: expected an SQLite file, got {what}; set dataset.storage.path to a file, or "
            f"to a folder with train.sqlite and val.sqlite"
        )

    def _places(self, indices: NDArray[np.int64]) -> list[Any]:
        """Find the place of each row: its number, or its key and the key's type."""
        if self._layout["by_rowid"]:
            return self.index.values("row", indices).tolist()
        types = self.index.values("key_type", indices).tolist()
        return list(zip(self.index.raw_keys(indices), types, strict=True))

    def _fetch(self, database: Database, places: list[Any], found: dict[Any, Any]) -> None:
        """Read rows, which are put into `found` by their places; or the cause for one by itself."""
        layout = self._layout
        by_rowid = layout["by_rowid"]
        given = [("?", place) if by_rowid else placed(*place) for place in places]
        sql = (
            f"SELECT {', '.join([layout['place'], *map(quoted, layout['columns'])])} "
            f"FROM {layout['source']} WHERE {layout['place']} IN "
            f"({', '.join(mark for mark, _ in given)})"
        )
        try:
            rows = database.rows(sql, [value for _, value in given], limit_s=READ_LIMIT_S)
        except (BadQuery, DamagedDatabase, MissingFile) as error:
            if len(places) == 1:
                found[places[0]] = str(error)
            else:
                for place in places:
                    self._fetch(database, [place], found)
            return
        for place, *values in rows:
            found[place if by_rowid else key_place(place)] = values

    def _fields(self, row: list[Any] | str | None) -> dict[str, Any] | str:
        """Make the fields of a row that was read, or say why they cannot be had."""
        if not isinstance(row, list):
            return row or "its row is gone"
        fields: dict[str, Any] = {}
        values = iter(row)
        name = ""
        try:
            if self._layout["has_image"]:
                image = next(values)
                if image is not None or not self._layout["is_packed"]:
                    fields["image"] = image_bytes(
                        image,
                        self.root,
                        follow_symlinks=self.follow_symlinks,
                        max_bytes=self.max_record_bytes,
                    )
            for (name, kind), value in zip(self._layout["fields"].items(), values, strict=True):
                if not self._layout["is_packed"]:
                    fields[name] = convert(value, kind)
                elif kind == "rest" and value is not None:
                    fields |= restore_rest(value, self.columns)
                elif value is not None:
                    fields[name] = restore(value, kind)
        except (ValueError, MissingFile) as error:
            return f"column {name!r} {error}" if name else str(error)
        return fields

    def scan(self) -> IndexContent:
        """Look at all rows: numbers, keys, labels, and what the columns hold."""
        file = self._find_file()
        try:
            source, roles, packed, rows = self._look(Database(file), os.path.getsize(file))
        except (DamagedDatabase, MissingFile) as error:
            raise ValueError(
                f"{self}: damaged or no SQLite file: {error}; copy it again, or restore it"
            ) from error
        except BadQuery as error:
            raise ValueError(
                f"{self}: SQLite says: {error}; only one SELECT is run, from table or query"
            ) from error
        columns: dict[str, NDArray[Any]] = {"key_type": np.array(rows.key_types, np.uint8)}
        if source.by_rowid:
            columns = {"row": np.array(rows.places, np.int64)}
        sizes = [0 if size is None and packed else size for size in rows.image_bytes]
        if roles.image is not None and None not in sizes:
            columns["size_bytes"] = np.array(sizes, np.int64)
        class_names = None
        if roles.label is not None:
            columns["label"], class_names = label_ids(
                rows.labels,
                self.classes,
                names=None if packed is None else packed.class_names,
                where=f"{self}: column {roles.label!r}",
            )
        image = [] if roles.image is None else [roles.image]
        return {
            "keys": rows.keys,
            "columns": columns,
            "class_names": class_names,
            "content": repr(sorted(rows.kinds.items())),
            "metadata": {
                "source": source.sql,
                "place": source.place,
                "by_rowid": source.by_rowid,
                "has_image": bool(image),
                "is_packed": packed is not None,
                "columns": [*image, *rows.kinds],
                "fields": rows.kinds,
            },
        }

    def _look(
        self, database: Database, size_bytes: int
    ) -> tuple[Source, ColumnRoles, PackedLayout | None, Scan]:
        """Look at the table: its source, the roles of its columns, and the scan of its rows."""
        where, packed = str(self), None
        named = (self.query, self.image_column, self.label_column, self.key_column)
        if named == (None,) * 4 and not self.types and self.table in (None, "samples"):
            packed = read_layout(database)
        key, table = (self.key_column, self.table) if packed is None else ("key", "samples")
        source = find_source(database, table, self.query, key, where=where)
        if packed is not None:
            roles = packed.roles
            kept = (*roles.fields,) if self.columns is None else (*self.columns, REST)
            roles = replace(roles, fields=tuple(name for name in roles.fields if name in kept))
        else:
            roles = find_roles(
                source.columns,
                image_column=self.image_column,
                label_column=self.label_column,
                key_column=key or source.key,
                columns=self.columns,
                types=self.types,
                where=where,
            )
        types = self.types if packed is None else {n: packed.kinds[n] for n in roles.fields}
        rows = scan(
            database, source, roles, types, size_bytes=size_bytes, root=self.root, where=where
        )
        return source, roles, packed, rows
