"""Group array files into shards of the same samples."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import check_field, field_name, field_place, same_count
from penstock.core.sample import RecordError

if TYPE_CHECKING:
    from penstock.datasets.files.data_files import DataFiles

_NUMBERED = re.compile(r"(?:(?P<field>[A-Za-z_]\w*?)[-_.]?)?(?P<number>\d+(?:-of-\d+)?)")
UNNAMED = "array"
"""The field of files that are named by a number alone."""

Columns = Mapping[str | None, Any]
"""Columns of a file by name; the key None means the only column of a file named after its field."""
Form = list[Any] | None
"""Type and shape of each value of a field, as JSON; None if it is not an array."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Files that contain the same samples; its attributes are JSON.

    `places` has the number of the file and the name of its column, by field. `forms` has type and
    shape by field.
    """

    name: str
    count: int
    places: dict[str, list[Any]]
    forms: dict[str, Form]
    size_bytes: int


class Unread(NamedTuple):
    """A compressed column; `read` returns its array, or raises ValueError if it is damaged."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]]

    @property
    def nbytes(self) -> int:
        """Return the size of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


class _Column(NamedTuple):
    rows: int
    form: Form
    size_bytes: int


def _described(column: Any) -> _Column:
    if not isinstance(column, np.ndarray | Unread):
        return _Column(len(column), None, 0)
    count, *shape = column.shape
    return _Column(count, [column.dtype.str, shape], column.nbytes)


def find_shards(
    files: DataFiles,
    load: Callable[[int], Columns],
    *,
    fields: Sequence[str] = (),
    where: str,
) -> list[Shard]:
    """Group files into shards: a file of several columns, or files with matching names."""
    found = [
        {key: _described(column) for key, column in load(at).items()}
        for at in range(len(files.names))
    ]
    single = [at for at, columns in enumerate(found) if None in columns]
    names = [files.names[at] for at in single]
    groups = {"": {field: at for at, field in enumerate(fields)}}
    shards: list[tuple[str, dict[str, list[Any]]]] = []
    for name, group in (groups if fields else _grouped(names, where)).items():
        if group:
            places: dict[str, list[Any]] = {f: [single[n], None] for f, n in group.items()}
            shards.append((name or names[next(iter(group.values()))], places))
    for at, columns in enumerate(found):
        if None not in columns:
            places = {}
            for key in filter(None, columns):
                field = field_name(key)
                check_field(field, f"{files.names[at]}: {key!r}", where=where, taken=("key",))
                places[field] = [at, key]
            shards.append((files.names[at], places))
    made = [_shard(name, places, found, files, where) for name, places in shards]
    if not sum(shard.count for shard in made):
        raise ValueError(f"{where}: the arrays are empty, expected a row per sample")
    first = made[0]
    for shard in made:
        for field in first.forms.keys() ^ shard.forms.keys():
            having, lacking = (first, shard) if field in first.forms else (shard, first)
            raise ValueError(
                f"{where}: {having.name} has the field {field!r} and {lacking.name} has not; "
                f"expected the same fields in all, such as images_000 and labels_000 beside "
                f"images_001 and labels_001"
            )
    return made


def _grouped(names: Sequence[str], where: str) -> dict[str, dict[str, int]]:
    """Return the number of the file by field and shard.

    ``images_007.npy``, ``images/007.npy`` and ``007/images.npy`` are the field ``image`` of the
    shard ``007``; ``007.npy`` is the field ``array``.
    """
    found: dict[tuple[str, int, str], dict[str, int]] = {}
    for at, name in enumerate(names):
        folder, base = os.path.split(name)
        stem = os.path.splitext(base)[0]
        match = _NUMBERED.fullmatch(stem)
        if match is None:
            shard, field = (folder, -1, ""), stem
        else:
            number = match["number"]
            shard, field = (folder, int(number.partition("-")[0]), number), match["field"]
            if field is None:
                above, field = os.path.split(folder)
                shard, field = (above, *shard[1:]), field or UNNAMED
        field = field_name(field)
        check_field(field, name, where=where, taken=("key",))
        files = found.setdefault(shard, {})
        if field in files:
            raise ValueError(
                f"{where}: {names[files[field]]} and {name} are both the field {field!r} of one "
                f"shard; rename one, or put it elsewhere"
            )
        files[field] = at
    return {
        "/".join(part for part in (folder, number) if part): found[folder, order, number]
        for folder, order, number in sorted(found)
    }


def _shard(
    name: str,
    places: dict[str, list[Any]],
    found: Sequence[Mapping[str | None, _Column]],
    files: DataFiles,
    where: str,
) -> Shard:
    """Build a shard, and check that its columns agree."""
    columns = {f: found[at][key] for f, (at, key) in places.items()}
    forms = {field: columns[field].form for field in sorted(columns, key=field_place)}
    counts = {field: columns[field].rows for field in forms}
    if not counts:
        raise ValueError(
            f"{where}: {name} holds no array and no tensor; write it with a field for each"
        )
    size = sum(column.size_bytes for column in columns.values())
    if not all(column.form for column in columns.values()):
        size = max(size, sum(files.marks[at][0] for at in {at for at, _ in places.values()}))
    return Shard(name, same_count(counts, where=f"{where}: {name}"), places, forms, size)


def open_shard(
    shard: Shard, files: DataFiles, load: Callable[[int], Columns]
) -> tuple[dict[str, Any], int]:
    """Open the fields of a shard, and read `Unread` columns; also return the bytes of these.

    Raises RecordError for a missing, damaged or changed file.
    """
    opened: dict[int, Columns] = {}
    fields: dict[str, Any] = {}
    size_bytes = 0
    for field, (at, key) in shard.places.items():
        try:
            if at not in opened:
                opened[at] = load(at)
            column = opened[at].get(key)
            if isinstance(column, Unread):
                size_bytes += column.nbytes
                column = column.read()
        except ValueError as error:
            raise RecordError(f"{files.names[at]}: {error}") from error
        form = shard.forms[field]
        changed = column is None or len(column) != shard.count
        if changed or (form is not None and _described(column).form != form):
            raise RecordError(f"{files.names[at]} was written anew while it was in use")
        fields[field] = column
    return {field: fields[field] for field in shard.forms}, size_bytes
