"""Find the image, the label and the key of a table by its schema.

The public hubs write image columns as structs of ``bytes`` and ``path``. The schema's key
``huggingface`` holds the meaning of their columns as JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types

from penstock.core.json_text import parse_json
from penstock.datasets.columnar.record_columns import PACKED

_RESERVED = ("index", "key", "position")


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of a table's columns.

    Attributes:
        fields: Field names by column, of the columns to read.
        images: The image structs among them.
        label: The column of labels, or None.
        class_names: Class names by number, from the schema.
        key: The column of keys, or None.
        kinds: Kinds of the columns of a packed table; empty for other tables.
        paths: The column of the field ``image`` if it holds paths, or None.
        floats: Columns of integers, or lists of integers, with nulls, which become floats.
    """

    fields: Mapping[str, str]
    images: Collection[str]
    label: str | None
    class_names: Sequence[str] | None
    key: str | None
    kinds: Mapping[str, str]
    paths: str | None
    floats: Collection[str] = ()


def find_roles(
    schema: Any,
    *,
    image_column: str | None,
    label_column: str | None,
    key_column: str | None,
    columns: Sequence[str] | None,
) -> Roles:
    """Find the roles of a schema's columns; see `TableStorage` for the arguments.

    Raises:
        ValueError: A column is missing, or its type does not fit its role.
    """
    if key_column is None and "key" in schema.names:
        key_column = "key"
    named = [c for c in (image_column, label_column, key_column) if c]
    for name in (*named, *(columns or ())):
        if name not in schema.names:
            raise ValueError(f"no column {name!r}; columns: {', '.join(schema.names) or 'none'}")
    features, kinds = _hub_features(schema), _packed_kinds(schema)
    always = [name for name, kind in kinds.items() if kind == "rest"]
    taken = set(schema.names if columns is None else [*columns, *named, *always])
    names = [name for name in schema.names if name in taken]
    for name in names:
        if schema.get_field_index(name) < 0:  # the library returns -1 for duplicate names
            raise ValueError(f"column {name!r} stands twice, or its name is damaged; rename one")
    images = tuple(name for name in names if _is_image(schema.field(name).type))
    image = image_column or _only(names, images, preferred="image")
    paths = image if image and not kinds and is_text(_plain(schema.field(image).type)) else None
    if image and not paths and not _holds_image(schema.field(image).type):
        raise ValueError(
            f"column {image!r} is {schema.field(image).type}, expected an image's bytes, "
            f"pixels or path; name another image_column, or leave it out of columns"
        )
    marked = [name for name in names if features.get(name, {}).get("_type") == "ClassLabel"]
    label = label_column
    if label is None:
        label = _only(names, marked, preferred="label")
    if label and not _is_label(schema.field(label).type):
        if label_column is not None:
            raise ValueError(
                f"label_column {label!r} is {schema.field(label).type}, expected whole "
                f"numbers or text"
            )
        label = None
    key_column = key_column or paths
    fields = {name: name for name in names if name == paths or name not in (label, key_column)}
    if image is not None and image != "image":
        if "image" in fields:
            raise ValueError(
                f"image_column {image!r} becomes the field 'image', and there is a "
                f"column of that name; leave that out by columns"
            )
        fields[image] = "image"
    for name in fields:
        if name in _RESERVED:
            raise ValueError(
                f"column {name!r} has a name that samples use for something else; leave "
                f"it out by dataset.storage.columns, or type dataset.storage.key_column={name}"
            )
    class_names = features.get(str(label), {}).get("names") if label in marked else None
    return Roles(fields, images, label or None, class_names, key_column, kinds, paths)


def _packed_kinds(schema: Any) -> dict[str, str]:
    """Read the kinds of a packed table's columns, by name; empty for other tables."""
    try:
        kinds = parse_json((schema.metadata or {})[PACKED])["kinds"]
        return {str(name): str(kinds[name]) for name in schema.names}
    except (KeyError, ValueError, TypeError):
        return {}


def _hub_features(schema: Any) -> dict[str, dict[str, Any]]:
    """Read the public hubs' metadata of each column."""
    try:
        features = parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: value for name, value in features.items() if isinstance(value, dict)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _only(names: Sequence[str], candidates: Sequence[str], preferred: str) -> str | None:
    if preferred in names:
        return preferred
    return candidates[0] if len(candidates) == 1 else None


def _is_image(kind: Any) -> bool:
    if not types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        return False
    names = {kind.field(i).name for i in range(kind.num_fields)}
    return names <= {"bytes", "path"} and is_bytes(kind.field("bytes").type)


def _holds_image(kind: Any) -> bool:
    extended = isinstance(kind, pa.BaseExtensionType)
    return _is_image(kind) or is_bytes(kind) or types.is_nested(kind) or extended


def _is_label(kind: Any) -> bool:
    kind = _plain(kind)
    return bool(types.is_integer(kind) or types.is_boolean(kind) or is_text(kind))


def _plain(kind: Any) -> Any:
    return kind.value_type if types.is_dictionary(kind) else kind


def is_bytes(kind: Any) -> bool:
    """Return whether values of an Arrow type are bytes."""
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def is_text(kind: Any) -> bool:
    """Return whether values of an Arrow type are texts."""
    return bool(types.is_string(kind) or types.is_large_string(kind))


def is_list(kind: Any) -> bool:
    """Return whether values of an Arrow type are lists."""
    fixed = types.is_fixed_size_list(kind)
    return bool(fixed or types.is_list(kind) or types.is_large_list(kind))


def element_type(kind: Any) -> Any:
    """Return the type of the values inside extension types, dictionaries and lists."""
    kind = getattr(kind, "storage_type", kind)
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    return kind


def holds_whole_numbers(kind: Any) -> bool:
    """Return whether an Arrow type holds integers, bools or times, or lists of these."""
    kind = element_type(kind)
    return bool(types.is_integer(kind) or types.is_boolean(kind) or types.is_temporal(kind))


def has_nulls(column: Any) -> bool:
    """Return whether a validated Arrow array, or a list in it at any depth, has a null.

    Ignores a null list of variable length, because its record is damaged.
    """
    column = getattr(column, "storage", column)
    if not is_list(column.type):
        return bool(column.null_count)
    fixed = types.is_fixed_size_list(column.type)
    return bool(fixed and column.null_count) or has_nulls(column.flatten())


def is_column(kind: Any) -> bool:
    """Return whether values of an Arrow type are texts, or Python's own bool, int and float."""
    number = types.is_integer(kind) or types.is_boolean(kind) or types.is_floating(kind)
    return is_text(_plain(kind)) or bool(number and kind not in (pa.uint64(), pa.float16()))


def find_lengths(schema: Any, roles: Roles, named: str | None) -> str | None:
    """Find the column of the records' lengths.

    Args:
        schema: A ``pyarrow.Schema``.
        roles: The roles of its columns.
        named: Its name; None: the column of the field ``tokens``, if that holds lists.

    Raises:
        ValueError: The named column is missing, or holds neither lists nor integers.
    """
    if named is None:
        column = next((column for column, field in roles.fields.items() if field == "tokens"), None)
        return column if column is not None and is_list(schema.field(column).type) else None
    if named not in schema.names:
        columns = ", ".join(schema.names)
        raise ValueError(f"no column {named!r} for length_column; columns: {columns}")
    kind = schema.field(named).type
    if not (is_list(kind) or types.is_integer(kind)):
        raise ValueError(f"length_column {named!r} is {kind}, expected lists or whole numbers")
    return named
