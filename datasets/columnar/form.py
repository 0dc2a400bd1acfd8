"""Interface of files that are tables: their schema and rows, and reading a group."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from numpy.typing import NDArray

from penstock.core.sample import RecordError
from penstock.datasets.files.access import RangeFile
from penstock.datasets.records.file_storage import Form
from penstock.datasets.records.table import Table, numbered


class TableFile(ABC):
    """One open file of a table; threads share it, and its methods raise RecordError."""

    schema: Any  # a ``pyarrow.Schema``
    counts: list[int]  # rows of each group
    content: list[int]  # numbers that change with the content

    @abstractmethod
    def read(self, group: int, columns: Sequence[str]) -> tuple[Any, int]:
        """Return columns of a group, a validated ``pyarrow.Table``, and its size in bytes."""

    def column(self, name: str) -> Any:
        """Read a column of all groups, a ``pyarrow.ChunkedArray``."""
        import pyarrow as pa

        columns = [self.read(group, [name])[0].column(name) for group in range(len(self.counts))]
        if list(map(len, columns)) != self.counts:
            raise RecordError(f"column {name!r} has other numbers of rows than its groups")
        chunks = [chunk for column in columns for chunk in column.chunks]
        return pa.chunked_array(chunks, self.schema.field(name).type)

    def may_have_nulls(self, group: int, name: str) -> bool:
        """Return False if a column lacks nulls in a group, as known without its values."""
        return True

    def has_nulls(self, name: str) -> bool:
        """Return whether a column has a null in any group."""
        from penstock.datasets.columnar.schema import has_nulls

        for group in range(len(self.counts)):
            with suppress(RecordError):  # rows of a damaged group are bad records
                if self.may_have_nulls(group, name):
                    column = self.read(group, [name])[0].column(name)
                    if any(map(has_nulls, column.chunks)):
                        return True
        return False


@dataclass(frozen=True, repr=False)
class TableForm(Form):
    """A format whose files are tables; see `TableStorage` for the options."""

    open: ClassVar[Any]  # makes a `TableFile` of a `RangeFile` and its size in bytes
    image_names: ClassVar[tuple[str, ...]] = ("image",)  # usual ones of the image's column
    always: ClassVar[tuple[str, ...]] = ()  # columns to read in addition to the named ones

    twice = "take a column whose values differ: dataset.storage.key_column"

    image_column: str | None = None
    label_column: str | None = None
    key_column: str | None = None
    length_column: str | None = None
    columns: Sequence[str] | None = None

    def scan(self, file: RangeFile, file_bytes: int, name: str, max_bytes: int) -> Table:
        from penstock.datasets.columnar import schema as schemas

        opened: TableFile = type(self).open(file, file_bytes)
        schema, count = opened.schema, sum(opened.counts)
        roles = schemas.find_roles(schema, self)
        kinds = {name: schema.field(name).type for name in schema.names if name in roles.fields}
        plain: dict[str, bool] = {}
        floats: list[str] = []
        for column, kind in {} if roles.packed else kinds.items():
            if schemas.is_column(kind) and column != roles.paths:
                plain[column] = schemas.is_text(schemas.element_type(kind))
            if schemas.holds_whole_numbers(kind) and opened.has_nulls(column):
                floats.append(column)
        columns: dict[str, NDArray[Any]] = {}
        keys: Any = numbered(count)
        classes: Sequence[str] | None = None
        declared = False
        if roles.key is not None:
            keys = schemas.read_keys(opened.column(roles.key), roles.key)
        if roles.label is not None and count:
            columns["label"], classes = schemas.read_labels(opened.column(roles.label), roles.label)
            names = schemas.hub_classes(schema).get(roles.label)
            if declared := classes is None and names is not None:
                classes = names
        length = self.length_column
        if length is None and "tokens" in kinds and schemas.is_list(kinds["tokens"]):
            length = "tokens"
        if length is not None:
            given = self.length_column is not None
            columns["length"] = schemas.read_lengths(opened.column(length), length, nulls=not given)
        common = {"label": roles.label, "key": roles.key}  # what all files must have
        common |= {column: str(kind) for column, kind in kinds.items()}
        meta = {
            "keyed": roles.key is not None,
            "groups": opened.counts,
            "content": opened.content,
            "roles": asdict(replace(roles, floats=floats)),
            "layout": common,
            "plain": plain,  # columns of numbers or texts, and whether they are texts
            "declares_classes": declared,
        }
        return Table(keys, columns, classes, meta)


@contextmanager
def damage() -> Iterator[None]:
    """Raise the library's errors about data as `RecordError`.

    For damage the library may raise OSError too, then without an error number.
    """
    import pyarrow as pa

    try:
        yield
    except RecordError:
        raise
    except (OSError, pa.ArrowException, ValueError, LookupError, OverflowError) as error:
        # A size of terabytes comes from a damaged number.
        is_huge = re.search("malloc of size ([0-9]{13,})", str(error))
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if isinstance(error, pa.ArrowMemoryError) and not is_huge:
            raise
        said = " ".join(str(error).split())[:300]
        raise RecordError(f"damaged: cannot be read ({said}); copy the file again") from error
