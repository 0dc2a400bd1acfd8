"""Group array files into shards of the same samples."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import check_field, field_name, field_place
from penstock.core.sample import RecordError

if TYPE_CHECKING:
    from penstock.datasets.files.data_files import DataFiles

_NUMBERED = re.compile(r"(?:(?P<field>[A-Za-z_]\w*?)[-_.]?)?(?P<number>\d+(?:-of-\d+)?)")
UNNAMED = "array"
"""The field of files that are named by a number alone."""

Columns = Mapping[str | None, Any]
"""Columns of a file by name; the key None means the only column of a file named after its field."""
ShardKey = tuple[str, int, str]
"""The folder of a shard, and its number as a number and as text, or -1 and an empty text."""
Form = list[Any]
"""Type and shape of each value of a field, as JSON."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Files with the same samples: by field, the file's number and its column, type and shape."""

    name: str
    count: int
    places: dict[str, list[Any]]
    forms: dict[str, Form]

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a sample, without values of any length."""
        kinds = ((np.dtype(kind), shape) for kind, shape in self.forms.values())
        return sum(math.prod(s) * kind.itemsize for kind, s in kinds if not kind.hasobject)


class Unread(NamedTuple):
    """A compressed column; `read` returns its array, or raises ValueError if it is damaged."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]]


def _form(column: Any) -> Form:
    return [column.dtype.str, list(column.shape[1:])]


def find_shards(
    files: DataFiles,
    load: Callable[[int], Columns],
    named: Callable[[str], tuple[ShardKey, str]],
    *,
    where: str,
) -> list[Shard]:
    """Group files into shards: a file of several columns, or files that are `named` for one.

    `named` returns the shard and the field of a file with one column, such as `named_by_number`.
    """
    found: dict[ShardKey, dict[str, tuple[list[Any], int, Form]]] = {}
    for at, name in enumerate(files.names):
        try:
            columns = load(at)
        except ValueError as error:
            raise ValueError(f"{where}: {name}: {error}") from error
        for key, column in columns.items():
            shard, field = named(name) if key is None else ((name, -1, ""), field_name(key))
            named_by = name if key is None else f"{name}: {key}"
            check_field(field, named_by, where=where, taken=("key",))
            inside = found.setdefault(shard, {})
            if field in inside:
                other, column = inside[field][0]
                raise ValueError(
                    f"{where}: {column or files.names[other]} and {key or name} are both the field "
                    f"{field!r} of one shard; rename one, or put it elsewhere"
                )
            inside[field] = [at, key], column.shape[0], _form(column)
    made = []
    for shard, fields in sorted(found.items()):
        name = "/".join(filter(None, (shard[0], shard[2])))
        first, *others = ordered = sorted(fields, key=field_place)
        count = fields[first][1]
        for field in others:
            if (rows := fields[field][1]) != count:
                said = f"{first} has {count:,} rows and {field} has {rows:,}, expected the same"
                raise ValueError(": ".join(filter(None, (where, name, f"{said} number"))))
        places = {field: fields[field][0] for field in ordered}
        forms = {field: fields[field][2] for field in ordered}
        made.append(Shard(name, count, places, forms))
    if not sum(shard.count for shard in made):
        raise ValueError(f"{where}: the arrays are empty, expected a row per sample")
    for other in made:
        for field in made[0].forms.keys() ^ other.forms.keys():
            raise ValueError(
                f"{where}: only one of the shards {made[0].name} and {other.name} has the field "
                f"{field!r}; expected the same fields in each"
            )
    filled = [shard for shard in made if shard.count]
    for field, (kind, _) in filled[0].forms.items():
        for other in filled:
            if _type(field, found_kind := other.forms[field][0]) != _type(field, kind):
                said = f"{np.dtype(kind)} in {filled[0].name} and {np.dtype(found_kind)}"
                raise ValueError(f"{where}: {field} is {said} in {other.name}; save one type")
    return made


def _type(field: str, kind: str) -> Any:
    """Return what the types of a field in two shards must have in common."""
    dtype = np.dtype(kind).newbyteorder("=")
    is_any_size = dtype.kind in "US" or field in ("key", "label")
    return dtype.kind.replace("u", "i") if is_any_size else dtype


def named_by_number(name: str) -> tuple[ShardKey, str]:
    """Return the shard and the field of a file.

    ``images_007.npy``, ``images/007.npy`` and ``007/images.npy`` are the field ``image`` of the
    shard ``007``; ``007.npy`` is the field ``array``.
    """
    folder, base = os.path.split(name)
    stem = os.path.splitext(base)[0]
    match = _NUMBERED.fullmatch(stem)
    if match is None:
        return (folder, -1, ""), field_name(stem)
    field, number = match["field"], match["number"]
    if field is None:
        folder, field = os.path.split(folder)
    return (folder, int(number.partition("-")[0]), number), field_name(field or UNNAMED)


def open_shard(
    shard: Shard, files: DataFiles, load: Callable[[int], Columns]
) -> tuple[dict[str, Any], int]:
    """Open the fields of a shard, and read `Unread` columns; also return the bytes of these.

    Raises RecordError for a missing, damaged or changed file.
    """
    opened: dict[int, Columns] = {}
    fields: dict[str, Any] = {}
    size_bytes = 0
    for field, form in shard.forms.items():
        at, key = shard.places[field]
        try:
            if at not in opened:
                files.refuse_changed(at)
                opened[at] = load(at)
            column = opened[at].get(key)
            if isinstance(column, Unread):
                column = column.read()
                size_bytes += column.nbytes
        except ValueError as error:
            raise RecordError(f"{files.names[at]}: {error}") from error
        if column is None or column.shape[0] != shard.count or _form(column) != form:
            raise RecordError(f"{files.names[at]} was written anew while it was in use")
        fields[field] = column
    return fields, size_bytes
