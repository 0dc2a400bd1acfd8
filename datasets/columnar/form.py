"""Interface of files that are tables: their schema and rows, and reading a group."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import RecordError
from penstock.datasets.files.access import RangeFile
from penstock.datasets.records.file_storage import Form
from penstock.datasets.records.table import Table, numbered

if TYPE_CHECKING:
    from penstock.datasets.columnar.group import Group
    from penstock.datasets.columnar.schema import Roles


class RowError(ValueError):
    """A value of a row is missing; the message says which one."""

    def __init__(self, row: int, said: str) -> None:
        super().__init__(said)
        self.row = row


class TableFile:
    """One open file of a table; threads share it, and its methods raise RecordError.

    Attributes:
        schema: Its ``pyarrow.Schema``.
        num_groups: Number of its groups of rows.
        counts: Rows of each group.
        content: Numbers that change with the content.
        size_bytes: Memory of the open file.
    """

    schema: Any
    num_groups: int
    counts: list[int]
    content: list[int]
    size_bytes: int

    @abstractmethod
    def read(
        self, group: int, columns: Sequence[str], images: Collection[str] = ()
    ) -> tuple[Any, int]:
        """Return columns of a group, a validated ``pyarrow.Table``, and its size in bytes.

        Of the image structs, only the bytes are read.
        """

    def column(self, name: str) -> Any:
        """Read a column of all groups, a ``pyarrow.ChunkedArray``."""
        import pyarrow as pa

        chunks = []
        for group, rows in enumerate(self.counts):
            column = self.read(group, [name])[0].column(name)
            if len(column) != rows:
                raise RecordError(f"column {name!r} has {len(column):,} of {rows:,} rows")
            chunks += column.chunks
        return pa.chunked_array(chunks, self.schema.field(name).type)

    def has_nulls(self, group: int, name: str) -> bool:
        """Return whether a column has a null in a group."""
        from penstock.datasets.columnar.schema import has_nulls

        return any(map(has_nulls, self.read(group, [name])[0].column(name).chunks))


@dataclass(frozen=True, repr=False)
class TableForm(Form):
    """A format whose files are tables; see `TableStorage` for the options.

    Attributes:
        group_name: The format's name for a group of rows.
    """

    group_name: ClassVar[str]

    image_column: str | None = None
    label_column: str | None = None
    key_column: str | None = None
    length_column: str | None = None
    columns: Sequence[str] | None = None

    @abstractmethod
    def open(self, file: RangeFile, file_bytes: int) -> TableFile:
        """Open a file; raises RecordError for a damaged one."""

    def roles(self, schema: Any) -> Roles:
        """Find the roles of the columns."""
        from penstock.datasets.columnar.schema import find_roles

        return find_roles(
            schema,
            image_column=self.image_column,
            label_column=self.label_column,
            key_column=self.key_column,
            columns=self.columns,
        )

    def scan(self, file: RangeFile, file_bytes: int, name: str, max_bytes: int) -> Table:
        """Read labels, keys and lengths of a file, and the places of its nulls."""
        from penstock.datasets.columnar import schema as schemas

        opened = self.open(file, file_bytes)
        schema, count, groups = opened.schema, sum(opened.counts), range(opened.num_groups)
        roles = self.roles(schema)
        length = schemas.find_lengths(schema, roles, self.length_column)
        named = [n for n in (*roles.fields, roles.label, roles.key) if n is not None]
        kinds = {name: schema.field(name).type for name in named}
        floats = set()
        for column in () if roles.kinds else roles.fields:
            if schemas.holds_whole_numbers(kinds[column]):
                for group in groups:
                    with suppress(RecordError):  # rows of a damaged group are bad records
                        if opened.has_nulls(group, column):
                            floats.add(column)
                            break
        columns: dict[str, NDArray[Any]] = {}
        keys: Any = numbered(count)
        classes: tuple[str, ...] | None = None
        declared = False
        if roles.key is not None:
            keys = _keys(opened.column(roles.key), repr(roles.key))
        if roles.label is not None and count:
            columns["label"], classes = _labels(opened.column(roles.label), roles)
            declared = classes is not None and list(classes) == list(roles.class_names or ())
        if length is not None:
            columns["length"] = self._lengths(opened.column(length))
        others = {*roles.images, *roles.kinds, roles.paths}
        plain = [c for c in roles.fields if c not in others and schemas.is_column(kinds[c])]
        meta = {
            "keyed": roles.key is not None,
            "groups": opened.counts,
            "content": opened.content,
            "roles": asdict(replace(roles, class_names=None, floats=sorted(floats))),
            "types": {column: str(kind) for column, kind in kinds.items()},
            "plain": plain,  # columns of numbers or texts
            "declares_classes": declared,
            "paths": None if roles.paths is None else opened.column(roles.paths).to_pylist(),
        }
        return Table(keys, columns, classes, meta)

    def _lengths(self, column: Any) -> NDArray[np.int64]:
        """Return the length of each row, int64 [n]."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.length_column is not None and column.null_count:
            row = column.is_null().index(True).as_py()
            raise ValueError(
                f"length_column {self.length_column!r} is null in record {row}, expected "
                f"a length in every row; fill it in, or set "
                f"dataset.storage.length_column to another column"
            )
        if not pa.types.is_integer(column.type):
            column = pc.list_value_length(column)
        return np.asarray(pc.fill_null(column.cast(pa.int64()), 0), np.int64)

    def read_group(
        self, file: TableFile, group: int, meta: Mapping[str, Any], max_bytes: int
    ) -> tuple[Group, int]:
        """Read a group; return it and its size in bytes."""
        from penstock.datasets.columnar.group import Group
        from penstock.datasets.columnar.schema import Roles

        roles, counts = Roles(**meta["roles"]), meta["groups"]
        if group < file.num_groups:
            table, size_bytes = file.read(group, list(roles.fields), roles.images)
            if table.num_rows == counts[group]:
                return Group(table, roles, max_bytes), size_bytes
        raise RecordError("it is not what it was when the index was made")


def _labels(column: Any, roles: Roles) -> tuple[NDArray[np.int64], tuple[str, ...] | None]:
    """Return the labels of a column, int64 [n], and their names, or None for plain numbers."""
    import pyarrow as pa

    from penstock.datasets.columnar.schema import is_text

    column = _plain(column, "label", repr(roles.label))
    if not is_text(column.type):
        names = roles.class_names
        return column.cast(pa.int64()).to_numpy(), None if names is None else tuple(names)
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), tuple(encoded.dictionary.to_pylist())


def _keys(column: Any, name: str) -> list[bytes]:
    """Encode keys: text, bytes or integers."""
    import pyarrow as pa

    from penstock.datasets.columnar.schema import is_bytes, is_text

    column = _plain(column, "key", name)
    if pa.types.is_integer(column.type):
        return [b"%d" % value for value in column.to_pylist()]
    if is_text(column.type):
        return [value.encode() for value in column.to_pylist()]
    if not is_bytes(column.type):
        raise ValueError(
            f"key_column {name} is {column.type}, expected text, bytes or whole numbers"
        )
    keys: list[bytes] = column.to_pylist()
    return keys


def _plain(column: Any, what: str, name: str) -> Any:
    """Return a column without nulls, decoded from its dictionary."""
    if column.null_count:
        raise RowError(
            column.is_null().index(True).as_py(),
            f"column {name} has no {what} ({column.null_count:,} in all); fill it in, or leave the "
            f"column out by columns",
        )
    return column.cast(getattr(column.type, "value_type", column.type))
