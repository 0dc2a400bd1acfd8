"""Rows of Arrow data as the fields of records: numbers, text, bytes, and arrays of numbers."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import RecordError, too_large
from penstock.datasets.columnar.record_columns import restore, restore_rest
from penstock.datasets.columnar.roles import Roles, element_type, is_bytes, is_list, is_text
from penstock.datasets.records.labels import column_ids, refuse_twice

Row = dict[str, Any] | str
"""The fields of a record, or why it has none."""


def read_rows(
    batch: Any,
    rows: Sequence[int],
    roles: Roles,
    wanted: Collection[str] | None = None,
    *,
    max_bytes: int,
) -> list[Row]:
    """Return the fields of some rows.

    Args:
        batch: A ``pyarrow.RecordBatch`` with validated arrays.
        rows: Row numbers, [n].
        roles: The roles of the columns.
        wanted: Names of the wanted fields without a column of their own; None for all.
        max_bytes: The largest size of a record.

    Returns:
        The fields of each row, copied out of the batch; or the cause, if the row is bad.
    """
    found: list[Row] = [{} for _ in rows]
    if batch.get_total_buffer_size() > max_bytes:  # which takes no time; `nbytes` 20 us and more
        sizes = (batch.slice(row, 1).nbytes for row in rows)
        found = [too_large(size, max_bytes) if size > max_bytes else {} for size in sizes]
    for column, name in roles.fields.items():
        array = batch.column(batch.schema.get_field_index(column))
        as_float = column in roles.floats
        value_of = _reader(array, is_image=column in roles.images, as_float=as_float)
        kind: Any = roles.kinds.get(column)
        for n, row in enumerate(rows):
            fields = found[n]
            if isinstance(fields, str) or (kind is not None and not array[row].is_valid):
                continue  # in a packed table, what is null is a field that the record lacks
            try:
                value = value_of(row)
                if kind == "rest":
                    fields.update(restore_rest(value, wanted))
                else:
                    fields[name] = value if kind is None else restore(value, kind)
            except ValueError as error:
                found[n] = f"column {column!r}: {error}"
    return found


def _reader(array: Any, *, is_image: bool, as_float: bool) -> Callable[[int], Any]:
    """Choose the function that reads a row of `array`; it raises ValueError for a bad value.

    Args:
        array: A column of a record batch.
        is_image: Whether it holds image structs.
        as_float: Whether whole numbers become floats, because the column has nulls.
    """
    import pyarrow as pa

    if isinstance(array.type, pa.FixedShapeTensorType):
        shape, storage = array.type.shape, array.storage
        return lambda row: _list_value(storage[row], as_float).reshape(shape)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if is_image:
        return lambda row: _image_bytes(array, row)
    if pa.types.is_temporal(array.type):
        # A number in the column's own unit: collates make a tensor of it.
        width = pa.int64() if array.type.bit_width == 64 else pa.int32()
        array = array.view(width)
    elif pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    if is_list(array.type):
        return lambda row: _list_value(array[row], as_float)
    if as_float or pa.types.is_floating(element_type(array.type)):
        return lambda row: _float_value(array[row].as_py())
    return lambda row: array[row].as_py()


def _float_value(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _image_bytes(array: Any, row: int) -> bytes:
    if array[row].is_valid:
        value = array.field("bytes")[row].as_py()
        if value is not None:
            return bytes(value)
    raise ValueError(
        "has no image in it, at most the path of a file elsewhere; write the images' bytes"
    )


def _list_value(scalar: Any, as_float: bool) -> Any:
    """Return a list of numbers as an array with an axis for each level; another list as it is.

    Raises:
        ValueError: A list of numbers of variable length is null.
    """
    import pyarrow as pa

    if not _is_number(element_type(scalar.type)):
        return scalar.as_py()
    values = scalar.values
    if values is None:
        if pa.types.is_fixed_size_list(scalar.type):
            return _all_missing(scalar.type, as_float)
        raise ValueError(
            "is null, expected a list of numbers; fill it in, or list the other columns in "
            "dataset.storage.columns"
        )
    kind, shape = values.type, [len(values)]
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        values = _without_null_lists(values)
        values, kind = values.flatten(), kind.value_type
    if is_list(kind):
        parts = [_list_value(value, as_float) for value in values]
        if len({part.shape for part in parts}) > 1:
            return parts if len(shape) == 1 else scalar.as_py()
        if parts:
            return np.stack(parts).reshape(*shape, *parts[0].shape)
        return np.zeros((*shape, 0), _number_type(kind, as_float))
    if pa.types.is_dictionary(kind):
        values = values.dictionary_decode()
    if as_float:
        values = values.cast(pa.float64(), safe=False)
    return np.array(values.to_numpy(zero_copy_only=False)).reshape(shape)


def _without_null_lists(values: Any) -> Any:
    """Replace the null lists of a fixed-size list array by lists of nulls."""
    import pyarrow as pa

    if not values.null_count:
        return values
    nulls = pa.array([[None] * values.type.list_size], values.type)
    places = np.where(values.is_null().to_numpy(zero_copy_only=False), len(values),
                      np.arange(len(values)))  # fmt: skip
    return pa.concat_arrays([values, nulls]).take(pa.array(places))


def _all_missing(kind: Any, as_float: bool) -> NDArray[Any]:
    """Return the array of a null list of fixed size: NaN everywhere."""
    import pyarrow as pa

    shape = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    if is_list(kind):
        raise ValueError("is null, expected a list of numbers; fill it in")
    return np.full(shape, np.nan, _number_type(kind, as_float))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _number_type(kind: Any, as_float: bool) -> np.dtype[Any]:
    return np.dtype(np.float64 if as_float else element_type(kind).to_pandas_dtype())


def label_ids(
    column: Any, roles: Roles, classes: Sequence[str] | None, *, where: str
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Class ids of a column of labels, a ``pyarrow.ChunkedArray``.

    Raises:
        ValueError: A record has none, or one that cannot be; see `column_ids`.
    """
    import pyarrow as pa

    where = f"{where}: column {roles.label!r}"
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    _refuse_nulls(column, "label", where=where)
    if is_text(column.type):
        return column_ids(column.to_pylist(), classes=classes, where=where)
    values = column.cast(pa.int64()).to_numpy()
    return column_ids(values, names=roles.class_names, classes=classes, where=where)


def key_texts(column: Any, *, where: str) -> list[bytes]:
    """Keys of a column of text, bytes or whole numbers, a ``pyarrow.ChunkedArray``.

    Raises:
        ValueError: One is missing or stands twice, or the column is of another type.
    """
    import pyarrow as pa

    _refuse_nulls(column, "key", where=where)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_integer(column.type):
        keys = [b"%d" % value for value in column.to_pylist()]
    elif is_text(column.type):
        keys = [value.encode() for value in column.to_pylist()]
    elif is_bytes(column.type):
        keys = column.to_pylist()
    else:
        raise ValueError(f"{where} is {column.type}, expected text, bytes or whole numbers")
    refuse_twice(keys, where=where)
    return keys


def _refuse_nulls(column: Any, what: str, *, where: str) -> None:
    if column.null_count:
        row = next(i for i, value in enumerate(column) if not value.is_valid)
        raise ValueError(
            f"{where}: record {row} has no {what} ({column.null_count:,} in all); fill it in, or "
            f"leave the column out by columns"
        )


@contextlib.contextmanager
def damage() -> Iterator[None]:
    """Raise `RecordError` for whatever the library finds wrong with the data.

    It raises OSError for damage too, then without an error number; one of the disk passes.
    """
    import pyarrow as pa

    try:
        yield
    except RecordError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise
        raise RecordError(_one_line(error)) from error
    except pa.ArrowMemoryError as error:
        # A size that nobody has was never one: it is damaged.
        asked = re.search("malloc of size ([0-9]{13,})", str(error))
        if asked is None:
            raise
        raise RecordError(_one_line(error)) from error
    except (pa.ArrowException, ValueError, KeyError, IndexError, OverflowError) as error:
        raise RecordError(_one_line(error)) from error


def _one_line(error: Exception) -> str:
    return f"cannot be read ({' '.join(str(error).split())[:300]})"
