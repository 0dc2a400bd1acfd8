"""Read tables whose rows are records: one storage for formats that are read by group."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.sample import BadRecord, Record, RecordError
from penstock.datasets.columnar.form import RowError, TableFile, TableForm
from penstock.datasets.columnar.images import image_bytes
from penstock.datasets.files.access import MissingFile, OpenFiles, absolute_path, read_each
from penstock.datasets.files.data_files import refuse_escape
from penstock.datasets.files.group_cache import GroupCache
from penstock.datasets.records.file_storage import FileStorage
from penstock.datasets.records.table import Table, by_part

if TYPE_CHECKING:
    from penstock.datasets.columnar.group import Group, Row, Texts

_OPEN_FILES_BYTES = 64 << 20


class TableStorage(FileStorage):
    """The rows of tables in files; see `storages.parquet.ParquetStorage` for the arguments."""

    reading_arguments = ("cache_bytes", "root", "follow_symlinks")
    index_version = 5
    form_class: ClassVar[type[TableForm]]
    form: TableForm
    _counts: list[list[int]]  # rows of each group, by file
    _ends: NDArray[np.int64]  # of groups, in rows
    _file_ends: NDArray[np.int64]  # in groups
    _meta: dict[str, Any]

    def __init__(
        self,
        path: str,
        *,
        image_column: str | None = None,
        label_column: str | None = None,
        key_column: str | None = None,
        length_column: str | None = None,
        columns: list[str] | None = None,
        root: str | None = None,
        follow_symlinks: bool = False,
        classes: list[str] | None = None,
        cache_bytes: Annotated[int, Ge(0)] = 128 << 20,
    ) -> None:
        taken = None if columns is None else tuple(columns)
        form = self.form_class(image_column, label_column, key_column, length_column, taken)
        super().__init__(form, path, classes=classes)
        self.root = None if root is None else absolute_path(root)
        self.follow_symlinks = follow_symlinks
        self.cache_bytes = cache_bytes

    @property
    def is_remote(self) -> bool:  # type: ignore[override]
        """Return whether whole records come from a URL; images may be separate files."""
        return super().is_remote and self._meta["roles"]["paths"] is None

    @property
    def column_fields(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the fields of every record; empty unless all are numbers and texts."""
        label = ("label",) if "label" in self.index.columns else ()
        fields = self._meta["roles"]["fields"]
        return (*fields.values(), *label) if len(fields) == len(self._meta["plain"]) else ()

    def shards(self) -> NDArray[np.int64]:
        """Return the first row of each group."""
        len(self.index)
        return np.unique(np.append(0, self._ends[:-1]))

    def record_bytes(self, indices: NDArray[np.int64]) -> None:  # type: ignore[override]
        """Return None: the size of a record is unknown before it is read."""

    def scan(self) -> Table:
        """Join the tables of all files."""
        tables, names = self._tables(), self._files.names
        first = tables[0].metadata
        roles = first["roles"]
        for name, table in zip(names, tables, strict=True):
            for role in ("label", "key"):
                if (other := table.metadata["roles"][role]) != roles[role]:
                    raise ValueError(
                        f"{self}: {name}: the {role} is the column {other!r}, and {roles[role]!r} "
                        f"in the first file; type dataset.storage.{role}_column={roles[role]}"
                    )
            for column, kind in first["types"].items():
                if (found := table.metadata["types"].get(column)) != kind:
                    raise ValueError(
                        f"{self}: {name}: column {column!r} is {found or 'missing'}, and {kind} in "
                        f"the first file; write all files with the same columns"
                    )
        floats = sorted({column for t in tables for column in t.metadata["roles"]["floats"]})
        contents = [[t.metadata["groups"], t.metadata["content"]] for t in tables]
        tables = [t.replaced(metadata={**t.metadata, "paths": None}) for t in tables]
        return self._in_order(
            tables,
            "{:08d}",
            f"{self}: key_column {roles['key']!r}",
            content=repr([contents, sorted(roles["fields"].items()), floats]),
            metadata={"floats": floats},
        )

    def _scanned(self, name: str, size_bytes: int) -> Table:
        where = f"{self}: {name}" if len(self._files.names) > 1 else str(self)
        try:
            table = super()._scanned(name, size_bytes)
            for row, path in enumerate(table.metadata["paths"] or ()):
                try:
                    refuse_escape(path or "", self._image_root)
                except ValueError as error:
                    raise ValueError(f"{self._place_of(name, row)}: {error}") from None
            return table
        except RecordError as error:
            raise ValueError(
                f"{where}: damaged or no {self.name.title()} file: {error}; copy it again, or "
                f"take it away"
            ) from error
        except RowError as error:
            raise ValueError(f"{where}: {self._place_of(name, error.row)}: {error}") from error
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error

    def _place_of(self, name: str, row: int) -> str:
        return f"record {row}"

    def learn(self, metadata: dict[str, Any]) -> None:
        """Store the groups of the files, and the roles of the columns."""
        super().learn(metadata)
        files = metadata["files"]
        self._counts = [file["groups"] for file in files]
        self._ends = np.cumsum([count for counts in self._counts for count in counts])
        self._file_ends = np.cumsum(list(map(len, self._counts)))
        self._meta = {**files[0], "roles": {**files[0]["roles"], "floats": metadata["floats"]}}

    def open(self) -> _Opened:  # type: ignore[override]
        """Return caches of open files and groups; files open on demand."""
        from penstock.datasets.columnar.group import Texts

        texts = {column: Texts() for column in self._meta["roles"]["fields"]}
        files, groups = GroupCache(_OPEN_FILES_BYTES), GroupCache(self.cache_bytes)
        return _Opened(super().open(), files, groups, texts)

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read rows; rows of a damaged group are bad records.

        Raises:
            OSError: A disk error persisted.
        """
        indices = np.asarray(indices, np.int64)
        numbers, opened = self.index.rows(indices), self.opened
        found: list[Row] = [""] * len(indices)
        for number, places, local in by_part(self._ends, numbers):
            try:
                rows = self._group(opened, number).read(local, self.form.columns)
            except RecordError as error:
                file, group = self._place(number)
                name = f"{self._files.names[file]}, {self.form.group_name} {group}"
                rows = [f"{name}: {error}"] * len(local)
            for place, row in zip(places.tolist(), rows, strict=True):
                found[place] = row
        if self._meta["roles"]["paths"] is not None:
            found = list(read_each(self._with_image, found, place=self._image_root))
        return self.records(indices, found)

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, Any] | None:
        """Return columns of numbers and texts; None if a row is damaged.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: A disk error persisted.
        """
        indices = np.asarray(indices, np.int64)
        rows = self.index.rows(indices)
        known = self._meta["roles"]["fields"]
        names = {column: field for column, field in known.items() if field in fields}
        if not names.keys() <= {*self._meta["plain"]}:
            return None
        opened: _Opened = self.opened  # once: concurrent threads may open two
        texts = opened.texts
        parts: dict[str, list[tuple[NDArray[np.int64], Any]]] = {column: [] for column in names}
        try:
            for number, places, local in by_part(self._ends, rows) if names else ():
                group = self._group(opened, number)
                for column, found in parts.items():
                    found.append((places, group.column(column, local, texts[column])))
        except RecordError:
            return None
        taken: dict[str, Any] = {}
        for column, found in parts.items() if len(rows) else ():
            if "string" in self._meta["types"][column]:
                taken[names[column]] = texts[column].column(found, len(rows))
                continue
            taken[names[column]] = values = np.empty(len(rows), found[0][1].dtype)
            for places, some in found:
                values[places] = some
        if "label" in fields and "label" in self.index.columns:
            taken["label"] = self.index.values("label", indices)
        return taken

    @property
    def _image_root(self) -> str:
        return self.root or self._files.root

    def _with_image(self, row: Row) -> Row:
        """Return the fields of a row with its image in place of the path, or why it is bad."""
        if isinstance(row, str):
            return row
        try:
            image = image_bytes(
                row["image"],
                self._image_root,
                follow_symlinks=self.follow_symlinks,
                max_bytes=self.max_record_bytes,
            )
        except (ValueError, MissingFile) as error:
            return str(error)
        return {**row, "image": image}

    def _place(self, number: int) -> tuple[int, int]:
        """Return the file of a group, and its number in the file."""
        file = int(np.searchsorted(self._file_ends, number, side="right"))
        return file, number - (int(self._file_ends[file - 1]) if file else 0)

    def _group(self, opened: _Opened, number: int) -> Group:
        def load() -> tuple[Group, int]:
            file, group = self._place(number)
            table = opened.files.get(file, partial(self._open_file, opened, file))
            meta = {**self._meta, "groups": self._counts[file]}
            return self.form.read_group(table, group, meta, self.max_record_bytes)

        group: Group = opened.groups.get(number, load)
        return group

    def _open_file(self, opened: _Opened, number: int) -> tuple[TableFile, int]:
        name, (size_bytes, _) = self._files.names[number], self._files.marks[number]
        file = self.form.open(opened.handles[name], size_bytes)
        return file, file.size_bytes


class _Opened(NamedTuple):
    """The state of a process: its handles, open files, groups, and texts by column."""

    handles: OpenFiles
    files: GroupCache
    groups: GroupCache
    texts: dict[str, Texts]
