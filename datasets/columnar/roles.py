"""Find the image, the label and the key of a table by its schema.

The public hubs write image columns as structs of ``bytes`` and ``path``, and what their columns
mean as JSON under the schema's key ``huggingface``; tables of others have columns with names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.core.json_text import parse_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


PACKED = b"penstock"
"""The key of the metadata that says what the columns of a packed table hold."""

_RESERVED = ("index", "key", "position")


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of a table's columns.

    Attributes:
        fields: Field name by column, for the columns that are read with a record.
        images: Those of them that are image structs, of which only the bytes are read.
        label: The column of labels, or None.
        class_names: Class names by number, where the schema says them.
        key: The column of keys, or None.
        kinds: What the columns of a packed table hold, by name; empty for a table of others.
        paths: The column of the field ``image`` where it holds the paths of files, or None.
        floats: Columns of whole numbers, or lists of them, that have nulls: they become floats.
    """

    fields: dict[str, str]
    images: frozenset[str]
    label: str | None
    class_names: tuple[str, ...] | None
    key: str | None
    kinds: dict[str, str] = field(default_factory=dict)
    paths: str | None = None
    floats: frozenset[str] = frozenset()

    @property
    def leaves(self) -> list[str]:
        """The columns as a reader of single leaves wants them named."""
        return [f"{name}.bytes" if name in self.images else name for name in self.fields]


def find_roles(
    schema: Any,
    *,
    image_column: str | None,
    label_column: str | None,
    key_column: str | None,
    columns: Sequence[str] | None,
    where: str,
) -> Roles:
    """Find the roles of a schema's columns.

    Args:
        schema: A ``pyarrow.Schema``.
        image_column: The image, or the path of its file; None: ``image``, or the only column of
            images.
        label_column: The labels; None: ``label``, or the only one that the hub's metadata calls
            class labels, if these are whole numbers or text; empty: none.
        key_column: The keys; None: ``key``, if there is one, else the paths of images.
        columns: The columns that are read at all; None: all.
        where: The storage, for messages.

    Raises:
        ValueError: A column that is not there, or cannot be what it is said to be.
    """
    if key_column is None and "key" in schema.names:
        key_column = "key"
    asked = [c for c in (image_column, label_column, key_column) if c]
    for name in (*asked, *(columns or ())):
        if name not in schema.names:
            raise ValueError(
                f"{where}: no column {name!r}; columns: {', '.join(schema.names) or 'none'}"
            )
    features = hub_features(schema)
    kinds = packed_kinds(schema)
    always = [name for name, kind in kinds.items() if kind == "rest"]
    taken = set(schema.names if columns is None else [*columns, *asked, *always])
    names = [name for name in schema.names if name in taken]
    for name in names:
        if schema.get_field_index(name) < 0:  # so the library says it of both
            raise ValueError(
                f"{where}: column {name!r} stands twice, or its name is damaged; rename one"
            )
    images = frozenset(name for name in names if _is_image(schema.field(name).type))
    image = image_column or _only(names, images, preferred="image")
    paths = image if image and not kinds and is_text(_plain(schema.field(image).type)) else None
    if image is not None and not (paths or _holds_bytes(schema.field(image).type, image in images)):
        raise ValueError(
            f"{where}: column {image!r} is {schema.field(image).type}, expected an image's bytes, "
            f"pixels or path; name another image_column, or leave it out of columns"
        )
    marked = {name for name in names if features.get(name, {}).get("_type") == "ClassLabel"}
    label: Any = label_column
    if label is None:
        label = _only(names, marked, preferred="label")
    if label and not _is_label(schema.field(label).type):
        if label_column is not None:
            raise ValueError(
                f"{where}: label_column {label!r} is {schema.field(label).type}, expected whole "
                f"numbers or text"
            )
        label = None
    key_column = key_column or paths
    fields = {name: name for name in names if name == paths or name not in (label, key_column)}
    if image is not None and image != "image":
        if "image" in fields:
            raise ValueError(
                f"{where}: image_column {image!r} becomes the field 'image', and there is a "
                f"column of that name; leave that out by columns"
            )
        fields[image] = "image"
    for name in fields:
        if name in _RESERVED:
            raise ValueError(
                f"{where}: column {name!r} has a name that samples use for something else; leave "
                f"it out by columns, or take it as key_column"
            )
    class_names = features.get(label, {}).get("names") if label in marked else None
    return Roles(fields, images, label or None, None if class_names is None else tuple(class_names),
                 key_column, kinds, paths)  # fmt: skip


def packed_kinds(schema: Any) -> dict[str, str]:
    """Read the kinds of a packed table's columns, by name; empty for a table of others."""
    try:
        kinds = parse_json((schema.metadata or {})[PACKED])["kinds"]
        return {str(name): str(kinds[name]) for name in schema.names}
    except (KeyError, ValueError, TypeError):
        return {}


def hub_features(schema: Any) -> dict[str, dict[str, Any]]:
    """Read the public hubs' metadata of each column; empty where there is none."""
    try:
        about = parse_json((schema.metadata or {})[b"huggingface"])
        features = about["info"]["features"]
        return {name: value for name, value in features.items() if isinstance(value, dict)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _only(names: Sequence[str], candidates: frozenset[str] | set[str], preferred: str) -> Any:
    if preferred in names:
        return preferred
    return next(iter(candidates)) if len(candidates) == 1 else None


def _is_image(kind: Any) -> bool:
    import pyarrow as pa

    if not pa.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        return False
    names = {kind.field(i).name for i in range(kind.num_fields)}
    return names <= {"bytes", "path"} and is_bytes(kind.field("bytes").type)


def is_bytes(kind: Any) -> bool:
    """Whether values of an Arrow type are bytes."""
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_text(kind: Any) -> bool:
    """Whether values of an Arrow type are texts."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _holds_bytes(kind: Any, is_struct: bool) -> bool:
    import pyarrow as pa

    return is_struct or is_bytes(kind) or pa.types.is_nested(kind) or hasattr(kind, "storage_type")


def _is_label(kind: Any) -> bool:
    import pyarrow as pa

    kind = _plain(kind)
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or is_text(kind))


def _plain(kind: Any) -> Any:
    """The type of the values that a dictionary of them has."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def find_lengths(schema: Any, roles: Roles, asked: str | None, *, where: str) -> str | None:
    """The column that says how long records are.

    Args:
        schema: A ``pyarrow.Schema``.
        roles: What its columns become.
        asked: Its name; None: the column of the field ``tokens``, if that holds lists.
        where: The storage, for messages.

    Raises:
        ValueError: The requested column is missing, or holds neither lists nor integers.
    """
    if asked is None:
        named = (column for column, field in roles.fields.items() if field == "tokens")
        column = next(named, None)
        return column if column is not None and is_list(schema.field(column).type) else None
    if asked not in schema.names:
        raise ValueError(
            f"{where}: no column {asked!r} for length_column; columns: {', '.join(schema.names)}"
        )
    kind = schema.field(asked).type
    import pyarrow as pa

    if not (is_list(kind) or pa.types.is_integer(kind)):
        raise ValueError(
            f"{where}: length_column {asked!r} is {kind}, expected lists or whole numbers"
        )
    return asked


def holds_whole_numbers(kind: Any) -> bool:
    """Return whether an Arrow type is one of integers, bools or times, or of lists of them."""
    import pyarrow as pa

    kind = element_type(kind)
    types = pa.types
    return bool(types.is_integer(kind) or types.is_boolean(kind) or types.is_temporal(kind))


def element_type(kind: Any) -> Any:
    """Return the type of the values inside extension types, dictionaries and lists."""
    kind = getattr(kind, "storage_type", kind)
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    return kind


def has_nulls(column: Any) -> bool:
    """Return whether a validated Arrow array, or a list in it at any depth, has a null.

    A null list of variable length does not count: its record is damaged.
    """
    import pyarrow as pa

    column = getattr(column, "storage", column)
    if not is_list(column.type):
        return bool(column.null_count)
    fixed = pa.types.is_fixed_size_list(column.type)
    return bool(fixed and column.null_count) or has_nulls(column.flatten())


def row_lengths(column: Any) -> NDArray[np.int64]:
    """Return the length of each row of a validated column, int64 [n]; 0 for a null."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    values = column if pa.types.is_integer(column.type) else pc.list_value_length(column)
    return np.asarray(pc.fill_null(values.cast(pa.int64()), 0), np.int64)


def is_list(kind: Any) -> bool:
    """Whether values of an Arrow type are lists."""
    import pyarrow as pa

    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
