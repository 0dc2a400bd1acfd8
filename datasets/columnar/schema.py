"""Find the image, the label and the key of a table, and read what the index needs of them.

The public hubs write image columns as structs of ``bytes`` and ``path``, and class names as JSON
into the schema's key ``huggingface``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from penstock.core.json_text import parse_json
from penstock.datasets.columnar.images import check_fields
from penstock.datasets.columnar.record_columns import PACKED, REST

if TYPE_CHECKING:
    from penstock.datasets.columnar.form import TableForm


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of a table's columns."""

    fields: Mapping[str, str]  # field names by column, of the columns to read
    label: str | None
    key: str | None
    packed: bool  # a null means that the record lacks the field; `REST` holds more fields
    paths: str | None  # the column of the field ``image`` if it holds paths
    floats: Collection[str] = ()  # of integers, or lists of these, with nulls: become floats


def find_roles(schema: Any, form: TableForm) -> Roles:
    """Find the roles of a schema's columns by the options of a form."""
    key = form.key_column or ("key" if "key" in schema.names else None)
    named = [name for name in (form.image_column, form.label_column, key) if name]
    packed = PACKED in (schema.metadata or {})
    columns = schema.names if form.columns is None else form.columns
    taken = {*columns, *named, *form.always, REST}
    names = [name for name in schema.names if name in taken]
    length = [form.length_column] if form.length_column else []
    for name in (*named, *length, *names, *([] if packed else columns)):  # fields within `REST`
        if (count := schema.names.count(name)) != 1:
            raise ValueError(
                f"{count or 'no'} column {name!r}, expected one; columns: {', '.join(schema.names)}"
            )
    kinds = {name: schema.field(name).type for name in names}
    images = [name for name in names if is_image(kinds[name])]
    image = form.image_column or _choose(names, form.image_names, images)
    paths = image if image and not packed and is_text(_plain(kinds[image])) else None
    if image and not paths and not _holds_image(kinds[image]):
        said = f"column {image!r} is {kinds[image]}, expected an image's bytes, pixels or path"
        raise ValueError(f"{said}; name another image_column, or leave it out of columns")
    label = form.label_column
    if label is None:
        classes = [name for name in hub_classes(schema) if name in names]
        label = _choose(names, ("label",), classes)
        label = label if label and _is_label(kinds[label]) else None
    elif label and not _is_label(kinds[label]):
        raise ValueError(f"label column {label!r} is {kinds[label]}, expected integers or text")
    key = key or paths
    fields = {name: name for name in names if name == paths or name not in (label, key)}
    check_fields([name for name in fields if name != image], ["image"] if image else [])
    if image is not None:
        fields[image] = "image"
    return Roles(fields, label or None, key, packed, paths)


def hub_classes(schema: Any) -> dict[str, Sequence[str]]:
    """Return class names by column from the public hubs' metadata."""
    try:
        features = parse_json(schema.metadata[b"huggingface"])["info"]["features"]
        kinds = {name: each for name, each in features.items() if isinstance(each, dict)}
        return {n: each["names"] for n, each in kinds.items() if each.get("_type") == "ClassLabel"}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _choose(names: Sequence[str], usual: Sequence[str], others: Sequence[str]) -> str | None:
    """Return the first `usual` name among `names`, or the only one of `others`."""
    found = next((name for name in usual if name in names), None)
    return found or (others[0] if len(others) == 1 else None)


def is_image(kind: Any) -> bool:
    """Return whether an Arrow type is the public hubs' struct of an image."""
    names = {field.name for field in kind} if types.is_struct(kind) else set()
    return "bytes" in names <= {"bytes", "path"} and is_bytes(kind.field("bytes").type)


def _holds_image(kind: Any) -> bool:
    return is_bytes(kind) or types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType)


def _is_label(kind: Any) -> bool:
    kind = _plain(kind)
    return bool(types.is_integer(kind) or types.is_boolean(kind) or is_text(kind))


def _plain(kind: Any) -> Any:
    return kind.value_type if types.is_dictionary(kind) else kind


def is_bytes(kind: Any) -> bool:
    """Return whether values of an Arrow type are bytes."""
    return str(kind) in ("binary", "large_binary", "binary_view")


def is_text(kind: Any) -> bool:
    """Return whether values of an Arrow type are texts."""
    return str(kind) in ("string", "large_string", "string_view")


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
    """Return whether an array, or a list in it, has a null; null lists make a record bad."""
    column = getattr(column, "storage", column)
    if not is_list(column.type):
        return bool(column.null_count)
    fixed = types.is_fixed_size_list(column.type)
    return bool(fixed and column.null_count) or has_nulls(column.flatten())


def is_column(kind: Any) -> bool:
    """Return whether values of an Arrow type are texts, or Python's own bool, int and float."""
    number = types.is_integer(kind) or types.is_boolean(kind) or types.is_floating(kind)
    return is_text(_plain(kind)) or bool(number and kind not in (pa.uint64(), pa.float16()))


def read_lengths(column: Any, name: str, *, nulls: bool) -> NDArray[np.int64]:
    """Return the length of each row, int64 [n]; an allowed null has the length 0."""
    if not nulls:
        column = _filled(column, "length", f"length_column {name!r}")
    if is_list(column.type):
        column = pc.list_value_length(column)
    elif not types.is_integer(column.type):
        kind = column.type
        raise ValueError(f"length_column {name!r} is {kind}, expected lists or whole numbers")
    return np.asarray(pc.fill_null(column.cast(pa.int64()), 0), np.int64)


def read_labels(column: Any, name: str) -> tuple[NDArray[np.int64], Sequence[str] | None]:
    """Return the labels of a column, int64 [n], and the names of texts, or None for numbers."""
    column = _filled(column, "label", f"column {name!r}")
    if not is_text(column.type):
        return column.cast(pa.int64()).to_numpy(), None
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()


def read_keys(column: Any, name: str) -> list[bytes]:
    """Encode keys: text, bytes or integers."""
    column = _filled(column, "key", f"column {name!r}")
    if types.is_integer(column.type):
        column = column.cast(pa.string())
    if not is_text(column.type) and not is_bytes(column.type):
        raise ValueError(f"key {name!r} is {column.type}, expected text, bytes or whole numbers")
    keys: list[bytes] = column.cast(pa.large_binary()).to_pylist()
    return keys


def _filled(column: Any, what: str, name: str) -> Any:
    """Return a column without nulls, decoded from its dictionary."""
    if types.is_dictionary(kind := column.type):
        # The library cannot decode views of texts, which polars writes.
        value = pa.large_string() if is_text(kind.value_type) else kind.value_type
        column = column.cast(pa.dictionary(kind.index_type, value, kind.ordered)).cast(value)
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise ValueError(
            f"{name} lacks a {what} in record {row} ({column.null_count:,} in all); fill it in, or "
            f"choose another column by dataset.storage.{what}_column"
        )
    return column
