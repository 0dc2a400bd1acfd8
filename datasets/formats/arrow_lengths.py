"""Lengths of a table's records: elements of their lists, or whole numbers that say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from datasets.formats.arrow_roles import Roles


def find_lengths(schema: Any, roles: Roles, asked: str | None, *, where: str) -> str | None:
    """The column that says how long records are.

    Args:
        schema: A ``pyarrow.Schema``.
        roles: What its columns become.
        asked: Its name; None: the column of the field ``tokens``, if that holds lists.
        where: The storage, for messages.

    Raises:
        ValueError: The column asked for is not there, or cannot say so.
    """
    if asked is None:
        named = (column for column, field in roles.fields.items() if field == "tokens")
        column = next(named, None)
        return column if column is not None and _is_list(schema.field(column).type) else None
    if asked not in schema.names:
        raise ValueError(
            f"{where}: no column {asked!r} for length_column; columns: {', '.join(schema.names)}"
        )
    kind = schema.field(asked).type
    import pyarrow as pa

    if not (_is_list(kind) or pa.types.is_integer(kind)):
        raise ValueError(
            f"{where}: length_column {asked!r} is {kind}, expected lists or whole numbers"
        )
    return asked


def row_lengths(column: Any) -> NDArray[np.int64]:
    """Length of each row of a validated column, int64 [n]; 0 where there is none."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    values = column if pa.types.is_integer(column.type) else pc.list_value_length(column)
    return np.asarray(pc.fill_null(values.cast(pa.int64()), 0), np.int64)


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
