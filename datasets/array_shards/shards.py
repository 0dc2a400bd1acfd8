"""Group array files into shards, and read values of differing shapes."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import check_field, field_name, field_place, same_count
from penstock.core.json_text import parse_json
from penstock.core.sample import RecordError

if TYPE_CHECKING:
    from penstock.datasets.files.data_files import DataFiles

_NUMBERED = re.compile(
    r"(?:(?P<field>[A-Za-z_]\w*?(?:\.[a-z]+)?)[-_.]?)?(?P<number>\d+(?:-of-\d+)?)"
)
FIELDS_NAME = "fields.txt"
UNNAMED = "array"
"""The field of files that are named by a number alone."""
OFFSETS, SHAPES, CODES = "offsets", "shapes", "codes"
"""Names of the arrays beside the values: ``image.offsets``, ``image.shapes``, ..."""
KINDS = ("absent", "array", "bytes", "text", "json")
"""Kinds of values; the code of a kind is its position in this tuple."""
ABSENT = object()
"""The value of a field that a record lacks."""

Columns = Mapping[str | None, Any]
"""Columns of a file by name; the key None means the only column of a file named after its field."""
Form = list[Any] | None
"""Type and shape of each value of a field, as JSON; None if they differ."""


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


def field_names(folder: str) -> frozenset[str]:
    """Return the fields that not all shards have: the lines of ``fields.txt``."""
    path = os.path.join(folder, FIELDS_NAME)
    if not os.path.isfile(path):
        return frozenset()
    with open(path, encoding="utf-8") as file:
        return frozenset(file.read().split())


def find_shards(
    files: DataFiles,
    load: Callable[[int], Columns],
    *,
    fields: Sequence[str] = (),
    optional: Collection[str] = (),
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
                base, dot, part = key.partition(".")
                field = field_name(base)
                check_field(field, f"{files.names[at]}: {key!r}", where=where, taken=("key",))
                places[field + dot + part] = [at, key]
            shards.append((files.names[at], places))
    made = [_shard(name, places, found, files, where) for name, places in shards]
    if not sum(shard.count for shard in made):
        raise ValueError(f"{where}: the arrays have no rows, expected one per sample")
    first = made[0]
    for shard in made:
        for field in first.forms.keys() ^ shard.forms.keys():
            if field not in optional or field in ("key", "label"):
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
        base, dot, part = field.partition(".")
        check_field(field_name(base), name, where=where, taken=("key",))
        field = field_name(base) + dot + part
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
    forms: dict[str, Form] = {}
    counts: dict[str, int] = {}
    columns = {field: found[at][key] for field, (at, key) in places.items()}
    for field in sorted(columns, key=field_place):
        base, _, part = field.partition(".")
        wanted = base if part == OFFSETS else f"{base}.{OFFSETS}"
        if part and (part not in (OFFSETS, SHAPES, CODES) or wanted not in columns):
            raise ValueError(
                f"{where}: {name}: {field!r} is no field, nor does it belong to one; rename it"
            )
        if not part:
            offsets = columns.get(f"{field}.{OFFSETS}")
            counts[field] = columns[field].rows if offsets is None else offsets.rows - 1
            forms[field] = columns[field].form if offsets is None else None
    if not counts:
        raise ValueError(
            f"{where}: {name} holds no array and no tensor; write it with a field for each"
        )
    size = sum(column.size_bytes for column in columns.values())
    if not all(column.form for column in columns.values()):
        size = max(size, sum(files.marks[at][0] for at in {at for at, _ in places.values()}))
    return Shard(name, same_count(counts, where=f"{where}: {name}"), places, forms, size)


def open_shard(
    shard: Shard, files: DataFiles, load: Callable[[int], Columns], kinds: Mapping[str, str]
) -> tuple[dict[str, Any], int]:
    """Open the fields of a shard, and read `Unread` columns; also return the bytes of these.

    Raises RecordError for a missing, damaged or changed file.
    """
    opened: dict[int, Columns] = {}
    columns: dict[str, Any] = {}
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
        form = shard.forms.get(field)
        if column is None or (form is not None and _described(column).form != form):
            raise RecordError(f"{files.names[at]} was written anew while it was in use")
        columns[field] = column
    fields = {}
    for name in shard.forms:
        fields[name] = columns[name]
        if f"{name}.{OFFSETS}" in columns:
            shapes, codes = columns.get(f"{name}.{SHAPES}"), columns.get(f"{name}.{CODES}")
            kind = kinds.get(name, "array")
            fields[name] = Ragged(columns[name], columns[f"{name}.{OFFSETS}"], shapes, codes, kind)
        if len(fields[name]) != shard.count:
            raise RecordError(f"{shard.name} was written anew while it was in use")
    return fields, size_bytes


class Ragged:
    """Values of differing shapes or kinds, by row.

    Args:
        values: Concatenated values, [total]; uint8 unless they are arrays.
        offsets: Start of each value, and end of the last, integer [n + 1].
        shapes: The shape of each array, integer [n, axes], padded with -1; None: one axis.
        codes: Position of each value's kind in `KINDS`, uint8 [n]; None: all have `kind`.
        kind: ``array``, ``bytes``, ``text`` (UTF-8) or ``json``.
    """

    def __init__(
        self,
        values: NDArray[Any],
        offsets: NDArray[Any],
        shapes: NDArray[Any] | None,
        codes: NDArray[Any] | None,
        kind: str,
    ) -> None:
        count = len(offsets) - 1
        wrong = values.ndim != 1 or offsets.ndim != 1 or offsets.dtype.kind not in "iu"
        if shapes is not None:
            wrong |= shapes.ndim != 2 or len(shapes) != count or shapes.dtype.kind not in "iu"
        if codes is not None:
            wrong |= codes.shape != (count,) or codes.dtype != np.uint8
        if wrong or kind not in KINDS:
            raise RecordError(
                f"{kind} values {values.dtype} {list(values.shape)} with offsets {offsets.dtype} "
                f"{list(offsets.shape)} do not fit together"
            )
        self.values, self.offsets, self.shapes, self.codes = values, offsets, shapes, codes
        self.code = KINDS.index(kind)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Any:
        """Return a value, an array as a view; RecordError for a wrong offset or shape."""
        code = self.code if self.codes is None else int(self.codes[row])
        start, stop = int(self.offsets[row]), int(self.offsets[row + 1])
        if not 0 <= start <= stop <= len(self.values) or code >= len(KINDS):
            raise RecordError(f"row {row} lies outside the {len(self.values):,} values there are")
        kind, value = KINDS[code], self.values[start:stop]
        if kind == "absent":
            return ABSENT
        if kind == "bytes":
            return value.tobytes()
        if kind != "array":
            try:
                text = value.tobytes().decode("utf-8", "surrogateescape")
                return text if kind == "text" else parse_json(text)
            except ValueError as error:
                raise RecordError(f"row {row} is no {kind} ({error})") from error
        if self.shapes is None:
            return value
        shape = [length for length in self.shapes[row].tolist() if length != -1]
        if min(shape, default=0) < 0 or math.prod(shape) != len(value):
            raise RecordError(f"row {row} has {len(value):,} numbers, which are no {shape}")
        return value.reshape(shape)
