"""A table in several Parquet or Arrow files: its index, and its rows as records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.data_files import DataFiles
from datasets.formats.arrow_roles import Roles
from datasets.formats.arrow_values import Row, key_texts, label_ids
from datasets.index import Index, write_index
from datasets.row_groups import RowGroups
from datasets.sample import BadRecord, Record


@dataclass(frozen=True, slots=True)
class ArrowTable:
    """What is known of a table without reading a record.

    Attributes:
        index: Key and label of every row.
        files: Its files.
        groups: Where the rows lie in them.
        roles: What its columns become.
    """

    index: Index
    files: DataFiles
    groups: RowGroups
    roles: Roles

    @classmethod
    def of(cls, index: Index, files: DataFiles) -> ArrowTable:
        """The table that `write_table_index` wrote the index of."""
        about = index.metadata
        roles = Roles(about["fields"], frozenset(about["images"]), None, None, None, about["kinds"])
        return cls(index, files, RowGroups(about["groups"]), roles)

    def records(self, indices: NDArray[np.int64], rows: list[Row]) -> list[Record | BadRecord]:
        """Rows, as read at `indices`, int64 [n], with their keys and labels."""
        keys = self.index.keys(indices)
        labels: list[int | None] = [None] * len(rows)
        if "label" in self.index.columns:
            labels = self.index.values("label", indices).tolist()
        records: list[Record | BadRecord] = []
        for i, key, label, row in zip(indices.tolist(), keys, labels, rows, strict=True):
            if isinstance(row, str):
                records.append(BadRecord(i, key, row))
            else:
                records.append(Record(i, key, row if label is None else {**row, "label": label}))
        return records


@dataclass(slots=True)
class FoundTable:
    """What a look through the files of a table finds, file by file.

    Attributes:
        roles: What the columns become.
        schema: The schema of the first file, a ``pyarrow.Schema``.
        groups: Rows of every group.
        sizes: What tells the content of a group or file from another's.
        labels: Arrays of the label column, in order.
        keys: Arrays of the key column, in order.
        lengths: Elements of each record's list, int64 arrays, in order.
    """

    roles: Roles
    schema: Any
    groups: list[list[int]] = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    lengths: list[NDArray[np.int64]] = field(default_factory=list)

    def refuse_other_columns(self, schema: Any, *, where: str) -> None:
        """Raise ValueError if a file lacks a column, or has it with another type."""
        for name in (*self.roles.fields, self.roles.label, self.roles.key):
            if name is None:
                continue
            found = schema.field(name).type if name in schema.names else None
            if found != self.schema.field(name).type:
                raise ValueError(
                    f"{where}: column {name!r} is {found or 'missing'}, and "
                    f"{self.schema.field(name).type} in the first file; write all files with the "
                    f"same columns"
                )


def write_table_index(
    path: Path, files: DataFiles, found: FoundTable, classes: Sequence[str] | None, *, where: str
) -> None:
    """Write the index of a table.

    Args:
        path: The index to write.
        files: The table's files.
        found: What is in them.
        classes: Class names by id, or None for those found.
        where: The storage, for messages.

    Raises:
        ValueError: There is no row, or the labels or keys cannot be used.
    """
    import pyarrow as pa

    roles, count = found.roles, sum(map(sum, found.groups))
    if count == 0:
        raise ValueError(f"{where}: no row in {len(files.names)} files; nothing to read")
    columns: dict[str, NDArray[Any]] = {}
    class_names = None
    if roles.label is not None:
        labels = pa.chunked_array(found.labels)
        columns["label"], class_names = label_ids(labels, roles, classes, where=where)
    if found.lengths:
        columns["length"] = np.concatenate(found.lengths)
    named: dict[str, Any] = {"key_pattern": "{:08d}", "count": count}
    if roles.key is not None:
        keys = pa.chunked_array(found.keys)
        named = {"keys": key_texts(keys, where=f"{where}: key_column {roles.key!r}")}
    write_index(
        path,
        **named,
        columns=columns,
        class_names=class_names,
        content=repr([found.groups, found.sizes, sorted(roles.fields.items())]),
        metadata={
            "files": files.recipe,
            "groups": found.groups,
            "fields": roles.fields,
            "images": sorted(roles.images),
            "kinds": roles.kinds,
        },
    )
