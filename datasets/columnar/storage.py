"""Read tables whose rows are records: one storage for formats that are read by group."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.sample import BadRecord, Record, RecordError
from penstock.datasets.columnar.form import TableFile, TableForm
from penstock.datasets.columnar.images import image_bytes
from penstock.datasets.files.access import MissingFile, absolute_path, is_url, read_each
from penstock.datasets.files.group_cache import GroupCache
from penstock.datasets.records.file_storage import FileStorage
from penstock.datasets.records.indexed_storage import files_mark
from penstock.datasets.records.table import Table, by_part

if TYPE_CHECKING:
    from penstock.datasets.columnar.group import Group, Row
    from penstock.datasets.columnar.schema import Roles

_OPEN_FILES = 64


class TableStorage(FileStorage):
    """The rows of tables in files; see `storages.parquet.ParquetStorage` for the arguments."""

    reading_arguments = ("cache_bytes", "root")
    index_version = 8
    form_class: ClassVar[type[TableForm]]
    form: TableForm
    _roles: Roles
    _plain: dict[str, bool]  # columns that `take` returns, and whether they are texts
    _groups: list[tuple[int, int, int]]  # file, number in the file, and rows
    _ends: NDArray[np.int64]  # of groups, in rows

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
        classes: list[str] | None = None,
        cache_bytes: Annotated[int, Ge(0)] = 128 << 20,
    ) -> None:
        form = self.form_class(image_column, label_column, key_column, length_column, columns)
        super().__init__(form, path, classes=classes)
        self.root = None if root is None else absolute_path(root)
        self.cache_bytes = cache_bytes

    @property
    def column_fields(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the fields of every record; empty unless all are numbers and texts."""
        label = ("label",) if "label" in self.index.columns else ()
        fields = self._roles.fields
        return (*fields.values(), *label) if len(fields) == len(self._plain) else ()

    @property
    def nullable(self) -> list[str]:  # type: ignore[override]
        """Return the fields of integers or times with nulls."""
        len(self.index)
        return [self._roles.fields[column] for column in self._roles.floats]

    def shards(self) -> NDArray[np.int64]:
        """Return the first row of each group."""
        len(self.index)
        return np.unique(np.append(0, self._ends[:-1]))

    def scan(self) -> Table:
        tables = self._tables()
        first = tables[0].metadata["layout"]
        for name, table in zip(self._files.names, tables, strict=True):
            layout = table.metadata["layout"]
            if wrong := [what for what in first if layout.get(what, "missing") != first[what]]:
                raise ValueError(
                    f"{self}: {name}: {wrong[0]!r} is {layout.get(wrong[0], 'missing')}, expected "
                    f"{first[wrong[0]]} as in the first file; list the columns that all files have "
                    f"in dataset.storage.columns"
                )
        roles = tables[0].metadata["roles"]
        floats = sorted({column for t in tables for column in t.metadata["roles"]["floats"]})
        contents = [[t.metadata["groups"], t.metadata["content"]] for t in tables]
        return self._joined(
            tables,
            "{:08d}",
            content=repr([contents, sorted(roles["fields"].items()), floats]),
            metadata={"floats": floats},
        )

    def learn(self, metadata: dict[str, Any]) -> None:
        from penstock.datasets.columnar.schema import Roles

        super().learn(metadata)
        files = metadata["files"]
        self._roles = Roles(**{**files[0]["roles"], "floats": metadata["floats"]})
        self._plain = files[0]["plain"]
        self._groups = [
            (file, group, rows)
            for file, about in enumerate(files)
            for group, rows in enumerate(about["groups"])
        ]
        self._ends = np.cumsum([rows for *_, rows in self._groups])

    def open(self) -> Any:
        """Return handles, which open on demand, caches of open files and groups, and texts."""
        from penstock.datasets.columnar.group import Texts

        texts = {column: Texts() for column, is_text in self._plain.items() if is_text}
        return super().open(), GroupCache(_OPEN_FILES), GroupCache(self.cache_bytes), texts

    def state(self) -> Any:
        """Return also the times of the image files that rows name."""
        state, names = super().state(), list[str]()
        if (paths := self._roles.paths) is None or is_url(self._image_root):
            return state
        for name, (file_bytes, _) in zip(self._files.names, self._files.marks, strict=True):
            with suppress(RecordError):  # rows of a damaged file are bad records
                table = self.form_class.open(self._files.open(name), file_bytes)
                names += filter(None, table.column(paths).to_pylist())
        return [state, files_mark(self._image_root, names)]

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read rows; rows of a damaged group are bad records."""
        opened, checked = self.opened, set[int]()
        found: list[Row] = [""] * len(indices)
        for number, places, local in by_part(self._ends, self.index.rows(indices)):
            try:
                rows = self._group(opened, number, checked).read(local, self.form.columns)
            except RecordError as error:
                rows = [str(error)] * len(local)
            for place, row in zip(places.tolist(), rows, strict=True):
                found[place] = row
        if self._roles.paths is not None:
            found = list(read_each(self._with_image, found, place=self._image_root))
        return self.records(indices, found)

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, Any] | None:
        rows, opened = self.index.rows(indices), self.opened
        names = {column: field for column, field in self._roles.fields.items() if field in fields}
        if not names.keys() <= self._plain.keys():
            return None
        taken, texts, checked = dict[str, Any](), opened[-1], set[int]()
        try:
            for number, places, local in by_part(self._ends, rows) if names else ():
                group = self._group(opened, number, checked)
                for column, field in names.items():
                    values = group.numbers(column, texts.get(column))
                    if values is None:
                        return None
                    if field not in taken:
                        taken[field] = np.empty(len(rows), values.dtype)
                    taken[field][places] = values[local]
        except RecordError:
            return None
        for column, known in texts.items():
            if (field := names.get(column, "")) in taken:
                taken[field] = known.column(taken[field])
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
            image = image_bytes(row["image"], self._image_root, max_bytes=self.max_record_bytes)
        except (ValueError, MissingFile) as error:
            return str(error)
        return {**row, "image": image}

    def _group(self, opened: Any, number: int, checked: set[int]) -> Group:
        """Return a group of rows, from the cache or its file; add the file to those `checked`."""
        from penstock.datasets.columnar.group import Group

        file, group, count = self._groups[number]
        name, file_bytes = self._files.names[file], self._files.marks[file][0]
        handles, files, groups, _ = opened

        def load() -> tuple[Group, int]:
            table: TableFile = files.get(
                file, lambda: (self.form_class.open(handles[name], file_bytes), 1)
            )
            rows, size = table.read(group, [*self._roles.fields])
            if len(rows) != count:
                raise RecordError("it is not what it was when the index was made")
            return Group(rows, self._roles, self.max_record_bytes), size

        try:
            if file not in checked:  # reading a mapped file that was cut ends the process
                self._files.refuse_changed(file)
                checked.add(file)
            found: Group = groups.get(number, load)
        except RecordError as error:
            raise RecordError(f"{name}, group {group}: {error}") from error
        return found
