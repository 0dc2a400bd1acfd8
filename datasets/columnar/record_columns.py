"""Store the fields of records as columns of a table.

Sample records decide the columns of all parts. Other fields, and values that do not fit, are packed
into one more column of bytes. A null means that the record lacks the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from sys import getsizeof
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.parts import PackPlan
from penstock.core.record_codec import pack_fields
from penstock.core.sample import Record

PACKED = b"penstock"  # metadata key of packed tables
REST = "penstock_rest"
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = ("key", "label", "index", "position", REST)
_GROUP_BYTES = 64 << 20


class RecordTable:
    """The schema of a table of records, which the public hub's package can open, and its rows."""

    def __init__(self, plan: PackPlan) -> None:
        self._types = plan_columns(plan.samples)
        columns = {"key": pa.string()}
        images = [name for name, kind in self._types.items() if kind == _IMAGE]
        features: dict[str, Any] = {name: {"_type": "Image"} for name in images}
        if any("label" in record.fields for record in plan.samples):
            columns["label"] = pa.int64()
            if plan.class_names is not None:
                features["label"] = {"names": plan.class_names, "_type": "ClassLabel"}
        hub = json.dumps({"info": {"features": features}})
        self.schema = pa.schema(
            {**columns, **self._types, REST: pa.binary()},
            metadata={"huggingface": hub, PACKED: "1"},
        )

    def batches(self, records: Iterable[Record], *, rows: int) -> Iterator[Any]:
        """Yield ``pyarrow.RecordBatch`` of at most `rows` records and some 64 MB."""
        held: list[dict[str, Any]] = []
        size_bytes = 0
        for record in records:
            held.append(split_fields(record, self._types))
            size_bytes += sum(getattr(v, "nbytes", getsizeof(v)) for v in record.fields.values())
            if len(held) == rows or size_bytes >= _GROUP_BYTES:
                yield pa.RecordBatch.from_pylist(held, self.schema)
                held, size_bytes = [], 0
        if held:
            yield pa.RecordBatch.from_pylist(held, self.schema)


def plan_columns(samples: Sequence[Record]) -> dict[str, pa.DataType]:
    """Return the type of each column, for fields whose samples have one type."""
    found: dict[str, list[Any]] = {}
    for record in samples:
        for name, value in record.fields.items():
            found.setdefault(name, []).append(_type_of(name, _plain(value)))
    return {
        name: kind
        for name, (kind, *kinds) in found.items()
        if kind is not None and all(other == kind for other in kinds)
        if name not in _RESERVED and _NAME.fullmatch(name)
    }


def split_fields(record: Record, columns: dict[str, pa.DataType]) -> dict[str, Any]:
    """Return the values of a record by column, with the fields that do not fit as `REST`."""
    rest = {name: _plain(value) for name, value in record.fields.items() if name != "label"}
    values: dict[str, Any] = {"key": record.key, "label": record.fields.get("label")}
    for name, kind in columns.items():
        if name in rest and _type_of(name, rest[name]) == kind:
            value = rest.pop(name)
            values[name] = {"bytes": value, "path": record.key} if kind == _IMAGE else value
    if rest:
        values[REST] = pack_fields(rest, key=record.key)
    return values


def _type_of(name: str, value: Any) -> pa.DataType | None:
    """Return the type of the column that stores a value unchanged, or None."""
    if isinstance(value, np.ndarray):
        is_plain = value.dtype.kind in "biuf" and value.dtype.itemsize <= 8 and value.dtype.isnative
        return pa.list_(pa.from_numpy_dtype(value.dtype)) if is_plain and value.ndim == 1 else None
    if isinstance(value, bytes):
        return _IMAGE if name == "image" else pa.binary()
    try:
        return pa.scalar(value).type if type(value) in (str, bool, int, float) else None
    except (UnicodeError, OverflowError, pa.ArrowInvalid):  # no UTF-8, or too large
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return bytes(value) if isinstance(value, bytearray | memoryview) else value
