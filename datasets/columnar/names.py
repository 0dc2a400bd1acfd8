"""Find the image, the label and the key of a table by its columns' names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

_IMAGE_COLUMNS = ("image", "file_name", "filename", "path")
_RESERVED = ("index", "key", "position")


@dataclass(frozen=True, slots=True)
class ColumnRoles:
    """The roles of a table's columns.

    Attributes:
        places: The place of every column in a row, by name.
        image: The column of the images or of their paths, or None.
        label: The column of the labels, or None.
        key: The column of the keys, or None.
        fields: The columns that become fields of their names.
    """

    places: dict[str, int]
    image: str | None
    label: str | None
    key: str | None
    fields: tuple[str, ...]


def find_roles(
    names: Sequence[str],
    *,
    image_column: str | None,
    label_column: str | None,
    key_column: str | None,
    columns: Sequence[str] | None,
    types: Collection[str] = (),
    where: str,
) -> ColumnRoles:
    """Find the roles of columns by their names.

    Args:
        names: All columns, in order.
        image_column: The images; None: ``image``, ``file_name``, ``filename`` or ``path``,
            whichever there is first.
        label_column: The labels; None: ``label``, if there is one; empty: none.
        key_column: The keys; None: ``key``, if there is one.
        columns: The other columns that are taken; None: all.
        types: Columns whose types a config says, which must be among the fields.
        where: The storage, for messages.

    Raises:
        ValueError: A column that is not there, or a name that is not free.
    """
    for wanted in (image_column, label_column, key_column, *(columns or ())):
        if wanted and wanted not in names:
            raise ValueError(f"{where}: no column {wanted!r}; columns: {', '.join(names)}")
    image = image_column or next((name for name in _IMAGE_COLUMNS if name in names), None)
    label = label_column
    if label is None and "label" in names:
        label = "label"
    key = key_column or ("key" if "key" in names else None)
    taken = names if columns is None else columns
    fields = tuple(name for name in taken if name not in (image, label, key))
    for name in fields:
        if name in _RESERVED or (name == "image" and image) or (name == "label" and label):
            raise ValueError(
                f"{where}: column {name!r} has a name that samples use for something else; leave "
                f"it out by dataset.storage.columns, or say what it is: "
                f"dataset.storage.key_column={name}"
            )
    for name in types:
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise ValueError(f"{where}: types: no field {name!r}; fields: {known}")
    places = {name: place for place, name in enumerate(names)}
    return ColumnRoles(places, image, label or None, key, fields)
