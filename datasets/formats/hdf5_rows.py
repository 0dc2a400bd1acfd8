"""HDF5 files whose arrays have a sample per row: what each array is for, and their index."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.annotations.label_columns import column_ids
from datasets.formats.hdf5_arrays import DAMAGE, Array, OpenedFile
from datasets.formats.hdf5_found import FoundArray, FoundFile
from datasets.formats.hdf5_objects import (
    BESIDE_ENDINGS,
    CLASS_NAMES,
    KEY_NAMES,
    SHAPE_ENDING,
)
from datasets.formats.hdf5_reader import ArrayReader
from datasets.formats.hdf5_tables import Column, holds_of
from datasets.formats.hdf5_texts import Opened, refuse_twice, texts_of
from datasets.index import write_index

FIELD_NAMES = {"images": "image", "labels": "label", "masks": "mask"}
_RESERVED = ("index", "key", "position", "epoch", "valid")
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def field_columns(
    file: FoundFile, fields: Mapping[str, str] | None, *, where: str
) -> dict[str, Column]:
    """The columns of a file by field, ``image`` and ``label`` first.

    Args:
        file: What is in it.
        fields: Paths by field; None: all its arrays, by their names.
        where: The storage and the file, for messages.

    Raises:
        ValueError: There are none, or they do not fit together.
    """
    arrays = {found.name: found for found in file.arrays}
    if fields is None:
        many = {} if file.packed else FIELD_NAMES
        named = {many.get(name, name): name for name in arrays if not _is_beside(name, arrays)}
        if len(named) < sum(not _is_beside(name, arrays) for name in arrays):
            raise ValueError(
                f"{where}: two datasets would be one field, among {', '.join(arrays)}; name those "
                f"to read: dataset.storage.fields={{image: images}}"
            )
    else:
        named = dict(fields)
    columns = {}
    for field in sorted(named, key=place_of):
        found = arrays[named[field]]
        check_name(field, found.name, where)
        shapes, missing = (arrays.get(f"{found.name}{ending}") for ending in BESIDE_ENDINGS)
        holds = _packed(found).get("holds") or holds_of(field, found.array)
        columns[field] = Column(
            found.array,
            holds,
            None if shapes is None else shapes.array,
            None if missing is None else missing.array,
        )
    if file.packed:
        return columns
    if not columns:
        raise ValueError(f"{where}: no dataset in there is a field, among {', '.join(arrays)}")
    _check_lengths(columns, where)
    return columns


def key_array(file: FoundFile, columns: Mapping[str, Column], *, where: str) -> Array | None:
    """The array of the keys, if the file has one."""
    count = next((column.array.shape[0] for column in columns.values()), None)
    for found in file.arrays:
        if found.name in KEY_NAMES:
            keys = found.array
            is_number = keys.type.kind == "number" and keys.type.native.kind in "iu"
            if len(keys.shape) != 1 or not (is_number or keys.type.kind in ("text", "long_text")):
                raise ValueError(f"{where}: {found.name!r} holds no keys, expected text or numbers")
            if count is not None and keys.shape[0] != count:
                raise ValueError(
                    f"{where}: {found.name} has {keys.shape[0]:,} rows and the fields have "
                    f"{count:,}, expected the same number"
                )
            return keys
    return None


def write_row_index(
    path: Path,
    columns: Sequence[Mapping[str, Column]],
    keys: Sequence[Array | None],
    counts: Sequence[int],
    reader: ArrayReader,
    opened: Opened,
    *,
    class_names: Sequence[str] | None,
    classes: Sequence[str] | None,
    metadata: dict[str, Any],
    where: str,
) -> None:
    """Write the index of records that are rows.

    Args:
        path: The index to write.
        columns: Columns by field of each file.
        keys: The keys of each file; None: row numbers.
        counts: Rows of each file.
        reader: Reads arrays.
        opened: Gives a file by number.
        class_names: Names of the classes that the files say.
        classes: Class names by id that are given.
        metadata: What else is kept.
        where: The storage, for messages.

    Raises:
        ValueError: Labels or keys cannot be used.
    """
    count = sum(counts)
    if count == 0:
        raise ValueError(f"{where}: the datasets have no rows, expected one per sample")
    index: dict[str, NDArray[Any]] = {
        "size_bytes": np.concatenate(
            [
                _sizes(each, rows, reader, opened(n), where)
                for n, (each, rows) in enumerate(zip(columns, counts, strict=True))
            ]
        )
    }
    names = None
    if "label" in columns[0]:
        labels: list[Any] = []
        for number, each in enumerate(columns):
            labels.append(_labels(each["label"], reader, opened(number), where=f"{where}: label"))
        as_names = isinstance(labels[0], list)
        values = list(itertools.chain(*labels)) if as_names else np.concatenate(labels)
        index["label"], names = column_ids(
            values, names=class_names, classes=classes, where=f"{where}: label"
        )
    if all("image" in each and len(each["image"].array.shape) == 4 for each in columns):
        for axis, name in ((1, "height"), (2, "width")):
            lengths = [each["image"].array.shape[axis] for each in columns]
            index[name] = np.repeat(np.array(lengths, np.int32), counts)
    named: dict[str, Any] = {"key_pattern": "{}", "count": count}
    if keys[0] is not None:
        texts: list[Any] = []
        for number, array in enumerate(keys):
            assert array is not None
            texts += texts_of(reader, opened(number), array, where=f"{where}: keys", raw=True)
        refuse_twice(texts, where=where)
        named = {"keys": texts}
    about = [[n, c.array.type.dtype, c.array.shape[1:]] for n, c in columns[0].items()]
    write_index(
        path, **named, columns=index, class_names=names, content=repr(about), metadata=metadata
    )


def _labels(column: Column, reader: ArrayReader, file: OpenedFile, *, where: str) -> Any:
    """Labels of a file: integers [N], or names."""
    array = column.array
    if array.type.kind in ("text", "long_text") and len(array.shape) == 1:
        return texts_of(reader, file, array, where=where)
    if array.type.kind != "number" or array.type.native.kind not in "iub" or len(array.shape) != 1:
        raise ValueError(
            f"{where} is {array.type.kind} {array.type.native} {list(array.shape)}, expected "
            f"integers [N], class ids from 0 on, or names; give it another name: "
            f"dataset.storage.fields={{target: labels}}"
        )
    try:
        return reader.whole(file, array)
    except DAMAGE as error:
        raise ValueError(f"{where}: {error}; copy the file again") from None


def _sizes(
    columns: Mapping[str, Column], count: int, reader: ArrayReader, file: OpenedFile, where: str
) -> NDArray[np.int64]:
    """Bytes of each row's values."""
    sizes = np.zeros(count, np.int64)
    for name, column in columns.items():
        array = column.array
        if array.type.kind not in ("list", "long_text"):
            sizes += array.row_bytes
            continue
        try:
            elements = reader.whole(file, array)
        except DAMAGE as error:
            raise ValueError(f"{where}: {name}: {error}; copy the file again") from None
        sizes += elements["f0"].astype(np.int64) * np.dtype(array.type.dtype).itemsize
    return sizes


def _check_lengths(columns: Mapping[str, Column], where: str) -> None:
    first = next(iter(columns))
    for field, column in columns.items():
        array = column.array
        if not array.shape:
            raise ValueError(
                f"{where}: {field} is one value, expected an axis of samples first; name the "
                f"datasets to read: dataset.storage.fields={{image: images}}"
            )
        if array.shape[0] != columns[first].array.shape[0]:
            raise ValueError(
                f"{where}: {first} has {columns[first].array.shape[0]:,} rows and {field} has "
                f"{array.shape[0]:,}, expected the same number"
            )
        if array.type.kind != "number" and len(array.shape) != 1:
            raise ValueError(f"{where}: {field} has {len(array.shape)} axes of texts, expected one")
        beside = column.shapes
        if beside is not None and (beside.shape[:1] != array.shape[:1] or len(beside.shape) != 2):
            raise ValueError(f"{where}: {field}{SHAPE_ENDING} does not fit {field}")
        if field == "image" and array.type.kind == "number":
            _check_images(array, where)


def _check_images(array: Array, where: str) -> None:
    shape, dtype = array.shape, array.type.native
    if dtype == np.uint8 and len(shape) == 4 and shape[-1] in (1, 3, 4):
        return
    remedy = "save them so, or give the field another name: dataset.storage.fields={array: images}"
    if dtype == np.uint8 and len(shape) == 4 and shape[1] in (1, 3, 4):
        remedy = "put the channels last: images.transpose(0, 2, 3, 1)"
    elif dtype == np.uint8 and len(shape) == 3:
        remedy = "give them an axis of channels: images[..., None]"
    raise ValueError(
        f"{where}: images are {dtype} {list(shape)}, expected uint8 [N, H, W, C] with 1, 3 or 4 "
        f"channels; {remedy}"
    )


def check_name(field: str, named: str, where: str) -> None:
    """Raise ValueError for a name that no field may have; `named` is what would give it."""
    if field in _RESERVED or not _FIELD.fullmatch(field):
        raise ValueError(
            f"{where}: {named} would be a field {field!r}, expected a name of letters, digits and "
            f"_ that is none of {', '.join(_RESERVED)}; name the datasets to read: "
            f"dataset.storage.fields={{image: images}}"
        )


def _is_beside(name: str, arrays: Mapping[str, FoundArray]) -> bool:
    """Whether a dataset is no field: keys, names of classes, the shapes of another."""
    if name in KEY_NAMES:
        return True
    if name in CLASS_NAMES:
        return arrays[name].array.type.kind in ("text", "long_text")
    stem, dot, ending = name.rpartition(".")
    return stem in arrays and dot + ending in BESIDE_ENDINGS


def _packed(found: FoundArray) -> dict[str, Any]:
    try:
        about = json.loads(found.packed or "{}")
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}


def place_of(field: str) -> tuple[int, str]:
    """Where a field stands among others."""
    order = ("image", "label")
    return (order.index(field) if field in order else len(order)), field


def element_bytes(array: Array) -> int:
    """Size of all elements of an array."""
    return math.prod(array.shape) * array.type.element.itemsize
