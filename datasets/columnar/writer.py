"""Write records into the rows of tables, a file for each part, for Parquet and Arrow."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from penstock.core.contracts import Writer
from penstock.core.parts import PackPlan, Part, Written
from penstock.core.sample import Record
from penstock.datasets.columnar.record_columns import (
    PACKED,
    REST,
    FieldColumn,
    plan_columns,
    split_fields,
)

_GROUP_BYTES = 64 << 20


class RecordTable:
    """The schema of a table of records, and the conversion of records to its rows.

    Columns are ``key``, ``label`` and one for each field. The hub's metadata marks the image
    column and names the classes, so that the hub's package can open the files.
    """

    def __init__(self, plan: PackPlan) -> None:
        import pyarrow as pa

        self._has_label = any("label" in record.fields for record in plan.samples)
        self._columns = plan_columns(plan.samples)
        fields = [("key", pa.string())]
        kinds = {"key": "text"}
        features: dict[str, Any] = {}
        if self._has_label:
            fields.append(("label", pa.int64()))
            kinds["label"] = "int"
            if plan.class_names is not None:
                features["label"] = {"names": plan.class_names, "_type": "ClassLabel"}
        for column in self._columns:
            fields.append((column.name, _type(column)))
            kinds[column.name] = column.kind
            if column.kind == "file":
                features[column.name] = {"_type": "Image"}
        fields.append((REST, pa.binary()))
        kinds[REST] = "rest"
        metadata = {
            "huggingface": json.dumps({"info": {"features": features}}),
            PACKED: json.dumps({"version": 1, "kinds": kinds}),
        }
        self.schema = pa.schema(fields, metadata=metadata)

    def batches(self, records: Iterable[Record], *, rows: int) -> Iterator[Any]:
        """Yield ``pyarrow.RecordBatch`` of at most `rows` records and some 64 MB.

        Raises:
            ValueError: A field's type is unsupported.
        """
        held: list[dict[str, Any]] = []
        size_bytes = 0
        for record in records:
            values = split_fields(record.fields, self._columns, key=record.key)
            values["key"] = record.key
            if self._has_label:
                values["label"] = record.fields.get("label")
            held.append(values)
            size_bytes += sum(map(_size, values.values()))
            if len(held) == rows or size_bytes >= _GROUP_BYTES:
                yield self._batch(held)
                held, size_bytes = [], 0
        if held:
            yield self._batch(held)

    def _batch(self, rows: Sequence[dict[str, Any]]) -> Any:
        import pyarrow as pa

        columns = {column.name: column for column in self._columns}
        arrays = []
        for field in self.schema:
            values = [row.get(field.name) for row in rows]
            column = columns.get(field.name)
            if column is not None and column.kind == "file":
                keys = [row["key"] for row in rows]
                values = [
                    None if value is None else {"bytes": value, "path": key}
                    for value, key in zip(values, keys, strict=True)
                ]
            if column is not None and column.kind == "array":
                arrays.append(_lists(values, column, field.type))
            else:
                arrays.append(pa.array(values, field.type))
        return pa.record_batch(arrays, schema=self.schema)


def _type(column: FieldColumn) -> Any:
    import pyarrow as pa

    if column.kind == "file":
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    if column.kind == "array":
        kind = pa.from_numpy_dtype(np.dtype(column.dtype))
        for length in reversed(column.inner):
            kind = pa.list_(kind, length)
        return pa.list_(kind)
    types = {"text": pa.string(), "json": pa.string(), "bool": pa.bool_(), "int": pa.int64(),
             "float": pa.float64()}  # fmt: skip
    return types.get(column.kind, pa.binary())


def _lists(values: Sequence[Any], column: FieldColumn, kind: Any) -> Any:
    """Convert arrays, or None, to nested lists."""
    import pyarrow as pa

    dtype = np.dtype(column.dtype)
    given = [np.ascontiguousarray(v, dtype).reshape(-1) for v in values if v is not None]
    flat = pa.array(np.concatenate(given) if given else np.zeros(0, dtype))
    kinds = [kind.value_type]
    while len(kinds) < len(column.inner):
        kinds.append(kinds[-1].value_type)
    for fixed in reversed(kinds[: len(column.inner)]):
        flat = pa.FixedSizeListArray.from_arrays(flat, fixed.list_size)
    lengths = np.array([0 if value is None else len(value) for value in values], np.int64)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    gone = np.array([value is None for value in values] + [False])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32(), mask=gone), flat)


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    return len(value) if isinstance(value, bytes | str) else 8


class TableWriter(Writer):
    """Writes a folder of files, each complete with its part; see `core.contracts.Writer`.

    Attributes:
        ending: Ending of the files.
        group_rows: Records of a group, the format's unit of reading.
        part_records: Maximum records of a file.
    """

    ending: ClassVar[str]
    group_rows: int
    part_records: int

    @abstractmethod
    def _open_file(self, path: Path, schema: Any) -> AbstractContextManager[Callable[[Any], None]]:
        """Create a file; return a function that writes record batches of a ``pyarrow.Schema``."""

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Check that the format can store the samples."""
        list(RecordTable(plan).batches(plan.samples, rows=self.group_rows))

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write a file, if any record of the part is readable."""
        table = RecordTable(plan)
        name = f"part-{part.number:05d}-of-{len(plan.parts):05d}{self.ending}"
        rows = 0
        with self._open_file(folder / name, table.schema) as write:
            for batch in table.batches(records, rows=self.group_rows):
                write(batch)
                rows += len(batch)
        if not rows:
            (folder / name).unlink()
        return Written(files=(name,) if rows else ())
