"""HDF5 files with a group per sample: their fields, and the index of where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.annotations.label_columns import column_ids
from datasets.formats.hdf5_arrays import DAMAGE, Array, ArrayType
from datasets.formats.hdf5_found import FoundFile
from datasets.formats.hdf5_reader import ArrayReader
from datasets.formats.hdf5_rows import (
    FIELD_NAMES,
    check_name,
    element_bytes,
    place_of,
)
from datasets.formats.hdf5_tables import value_of
from datasets.formats.hdf5_texts import Opened, refuse_twice
from datasets.index import write_index

_PARTS = frozenset(("train", "val", "valid", "validation", "test"))


def write_sample_index(
    path: Path,
    files: Sequence[FoundFile],
    types: Sequence[ArrayType],
    fields: Mapping[str, str] | None,
    reader: ArrayReader,
    opened: Opened,
    *,
    class_names: Sequence[str] | None,
    classes: Sequence[str] | None,
    metadata: dict[str, Any],
    where: str,
) -> None:
    """Write the index of records that are groups.

    Its columns: see `datasets.formats.hdf5_tables.SampleTable`; ``axes`` is in the metadata.

    Raises:
        ValueError: Labels or keys cannot be used.
    """
    keys = [name for file in files for name, _ in file.samples]
    if set(keys) <= _PARTS:
        raise ValueError(
            f"{where}: its groups are {' and '.join(keys)}, which are parts and no samples; name "
            f"one: dataset.storage.path=data.h5/{keys[0]}"
        )
    refuse_twice(keys, where=where)
    rows = {(n, name): row for row, (n, name) in enumerate(_samples(files))}
    given = None if fields is None else {path: field for field, path in fields.items()}
    arrays: dict[str, dict[int, Array]] = {}
    for number, file in enumerate(files):
        for found in file.arrays:
            assert found.sample is not None
            field = given[found.name] if given else FIELD_NAMES.get(found.name, found.name)
            check_name(field, found.name, where)
            mine = arrays.setdefault(field, {})
            row = rows[number, found.sample]
            if row in mine:
                raise ValueError(f"{where}: {found.sample!r} has the field {field!r} twice")
            mine[row] = found.array
    arrays = {field: arrays[field] for field in sorted(arrays, key=place_of)}
    count = len(keys)
    numbers = np.repeat(
        np.arange(len(files), dtype=np.int32), [len(file.samples) for file in files]
    )
    index: dict[str, NDArray[Any]] = {":file": numbers}
    names = None
    labels = _labels(files, arrays.pop("label", None), keys, reader, opened, numbers, where)
    if labels is not None:
        index["label"], names = column_ids(
            labels, names=class_names, classes=classes, where=f"{where}: label"
        )
    if not arrays:
        raise ValueError(f"{where}: no dataset in the groups of its samples, such as {keys[0]!r}")
    sizes = np.zeros(count, np.int64)
    axes = {}
    for field, mine in arrays.items():
        axes[field] = max(len(array.shape) for array in mine.values())
        index |= _columns(field, mine, axes[field], types, count)
        sizes[list(mine)] += [element_bytes(array) for array in mine.values()]
    index["size_bytes"] = sizes
    index |= _image_sizes(arrays.get("image", {}), count)
    write_index(
        path,
        keys=keys,
        columns=index,
        class_names=names,
        content=repr([list(axes.items()), types]),
        metadata={**metadata, "axes": axes},
    )


def _samples(files: Sequence[FoundFile]) -> list[tuple[int, str]]:
    return [(number, name) for number, file in enumerate(files) for name, _ in file.samples]


def _columns(
    field: str, arrays: Mapping[int, Array], axes: int, types: Sequence[ArrayType], count: int
) -> dict[str, NDArray[Any]]:
    numbers = {id(kind): number for number, kind in enumerate(types)}
    columns: dict[str, NDArray[Any]] = {
        f"{field}:type": np.full(count, -1, np.int32),
        f"{field}:first": np.zeros(count, np.int64),
        f"{field}:axes": np.zeros(count, np.int32),
    }
    for axis in range(axes):
        columns[f"{field}:length{axis}"] = np.zeros(count, np.int64)
        columns[f"{field}:chunk{axis}"] = np.zeros(count, np.int64)
    for row, array in arrays.items():
        columns[f"{field}:type"][row] = numbers[id(array.type)]
        columns[f"{field}:first"][row] = array.first
        columns[f"{field}:axes"][row] = len(array.shape)
        for axis, length in enumerate(array.shape):
            columns[f"{field}:length{axis}"][row] = length
            columns[f"{field}:chunk{axis}"][row] = array.chunks[axis] if array.chunks else 0
    return columns


def _labels(
    files: Sequence[FoundFile],
    arrays: Mapping[int, Array] | None,
    keys: Sequence[str],
    reader: ArrayReader,
    opened: Opened,
    numbers: NDArray[np.int32],
    where: str,
) -> Any:
    """Labels of all samples, integers [N] or names; None where there are none."""
    labels: list[Any] = [label for file in files for _, label in file.samples]
    for row, array in (arrays or {}).items():
        try:
            labels[row] = value_of(reader, opened(int(numbers[row])), "label", array)
        except DAMAGE as error:
            raise ValueError(f"{where}: {keys[row]}: label: {error}; copy it again") from None
    if all(label is None for label in labels):
        return None
    kinds = {type(label) for label in labels}
    if kinds == {str}:
        return labels
    if kinds <= {int, bool}:
        return np.array(labels, np.int64)
    wrong = next(n for n, label in enumerate(labels) if type(label) is not type(labels[0]))
    wrong = wrong if len(kinds) > 1 else 0
    raise ValueError(
        f"{where}: label of {keys[wrong]!r} is {labels[wrong]!r:.40}, expected one class id or "
        f"name for every sample"
    )


def _image_sizes(images: Mapping[int, Array], count: int) -> dict[str, NDArray[Any]]:
    """Heights and widths of decoded images."""
    decoded = [len(a.shape) == 3 and a.type.kind == "number" for a in images.values()]
    if len(decoded) < count or not all(decoded):
        return {}
    shapes = np.array([images[row].shape for row in range(count)], np.int32)
    return {"height": shapes[:, 0], "width": shapes[:, 1]}
