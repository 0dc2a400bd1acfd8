"""Shards of a data set: found by the names of their files, and read by rows."""

from __future__ import annotations

import math
import os
import re
import resource
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import check_field, field_name, field_place, same_count
from penstock.core.json_text import parse_json
from penstock.core.sample import RecordError
from penstock.datasets.files.group_cache import GroupCache

if TYPE_CHECKING:
    from penstock.datasets.files.data_files import DataFiles

_NUMBERED = re.compile(
    r"(?:(?P<field>[A-Za-z_]\w*?(?:\.[a-z]+)?)[-_.]?)?(?P<number>\d+(?:-of-\d+)?)"
)
FIELDS_NAME = "fields.txt"
UNNAMED = "array"
"""The field of files that are numbered and have no name."""
OFFSETS, SHAPES, CODES = "offsets", "shapes", "codes"
"""Names of the arrays beside the values: ``image.offsets``, ``image.shapes``, ..."""
KINDS = ("absent", "array", "bytes", "text", "json")
"""Kinds of values; the code of one is its place in this list."""
# What one process keeps: arrays that had to be decompressed, and files that are mapped, each with a
# descriptor; a part of those that it may have, since views keep files open too.
_KEPT_BYTES = 1 << 28
_MOST_FILES = 1024
_PART_OF_DESCRIPTORS = 4
# Larger rows are views, of which a crop may be all that is needed, or are copied one by one, since
# gathering several takes memory for all of them.
_LARGE_ROW_BYTES = 1 << 14
ABSENT = object()
"""The value of a field that a record has not."""


@dataclass(frozen=True, slots=True)
class Form:
    """Type and shape of the values of one field.

    Attributes:
        dtype: As NumPy writes it.
        shape: Shape of one value; empty for a number.
    """

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shard:
    """Files that hold the same samples.

    Attributes:
        name: What messages call it.
        count: Number of samples.
        places: The number of its file by field, and the name of the column there: None where the
            file's name is that of the field.
        forms: Type and shape of each field; None where they differ from sample to sample.
        size_bytes: Size of all samples.
    """

    name: str
    count: int
    places: dict[str, tuple[int, str | None]]
    forms: dict[str, Form | None]
    size_bytes: int

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Shard:
        """From JSON."""
        forms = {
            name: None if form is None else Form(form["dtype"], tuple(form["shape"]))
            for name, form in plain["forms"].items()
        }
        places = {name: (at, key) for name, (at, key) in plain["places"].items()}
        return cls(**{**plain, "places": places, "forms": forms})


def group_by_shard(names: Sequence[str], *, where: str) -> dict[str, dict[str, int]]:
    """Tell by their names which files hold which fields of which shards.

    ``images_007.npy`` is the field ``image`` of the shard ``007``; so are ``images/007.npy`` and
    ``007/images.npy``. What has a number alone, ``007.npy``, is the field ``array``.

    Args:
        names: Paths below the data's folder.
        where: The storage, for messages.

    Returns:
        The number of the file by field, by shard; shards by folder and number.

    Raises:
        ValueError: Two files are the same field of a shard.
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
                shard = (above, *shard[1:])
                field = field or UNNAMED
        field = field_name(field.partition(".")[0]) + "".join(field.partition(".")[1:])
        check_field(field.partition(".")[0], name, where=where, taken=("key",))
        files = found.setdefault(shard, {})
        if field in files:
            raise ValueError(
                f"{where}: {names[files[field]]} and {name} are both the field {field!r} of one "
                f"shard; rename one, or put it elsewhere"
            )
        files[field] = at
    return {
        "/".join(part for part in (folder, number) if part) or "": found[folder, order, number]
        for folder, order, number in sorted(found)
    }


def field_names(folder: str) -> frozenset[str]:
    """Fields that not all shards have: the lines of ``fields.txt`` in the data's folder."""
    path = os.path.join(folder, FIELDS_NAME)
    if not os.path.isfile(path):
        return frozenset()
    with open(path, encoding="utf-8") as file:
        return frozenset(file.read().split())


def check_shards(shards: Sequence[Shard], optional: Collection[str], *, where: str) -> None:
    """Raise ValueError if the shards do not have the same fields, or no sample at all.

    `optional` are fields that not all have to have.
    """
    if not sum(shard.count for shard in shards):
        raise ValueError(f"{where}: the arrays have no rows, expected one per sample")
    first = shards[0]
    for shard in shards:
        for name in first.forms.keys() ^ shard.forms.keys():
            if name in optional and name not in ("key", "label"):
                continue
            having, lacking = (first, shard) if name in first.forms else (shard, first)
            raise ValueError(
                f"{where}: {having.name} has the field {name!r} and {lacking.name} has not; "
                f"expected the same fields in all, such as images_000 and labels_000 beside "
                f"images_001 and labels_001"
            )


@dataclass(frozen=True, slots=True)
class Unread:
    """A column of which only type and shape are known, such as one that is compressed.

    Attributes:
        dtype: Type of its array.
        shape: Shape of its array.
        read: Reads the array; ValueError where it is damaged.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Size of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Column:
    """Facts about a column of a file.

    Attributes:
        count: Number of its values.
        form: Type and shape of each; None where they are no rows of an array.
        size_bytes: Size of an array, 0 for others.
    """

    count: int
    form: Form | None
    size_bytes: int

    @classmethod
    def of(cls, column: Any) -> Column:
        """Describe a column: an array, one that is unread, or whatever gives values by row."""
        if not isinstance(column, np.ndarray | Unread):
            return cls(len(column), None, 0)
        return cls(len(column), Form(column.dtype.str, column.shape[1:]), column.nbytes)


def find_shards(
    files: DataFiles, load: Callable[[int], Mapping[str | None, Any]], *, where: str
) -> list[Shard]:
    """Find the shards that files make up: each by itself, or those whose names belong together.

    Args:
        files: The files.
        load: Gives the columns of a file by name; under None the only one of a file whose name
            says which field it is.
        where: The storage, for messages.

    Raises:
        ValueError: A file is damaged or holds what is not taken, or fields of a shard differ in
            length.
    """
    found: list[dict[str | None, Column]] = []
    for at in range(len(files.names)):
        found.append({key: Column.of(column) for key, column in load(at).items()})
    single = [at for at, columns in enumerate(found) if None in columns]
    groups = group_by_shard([files.names[at] for at in single], where=where)
    shards: list[tuple[str, dict[str, tuple[int, str | None]]]] = []
    for name, group in groups.items():
        first = files.names[single[next(iter(group.values()))]]
        shards.append((name or first, {field: (single[n], None) for field, n in group.items()}))
    for at, columns in enumerate(found):
        if None not in columns:
            name = files.names[at]
            fields: dict[str, tuple[int, str | None]] = {}
            for key in filter(None, columns):
                base, dot, part = key.partition(".")
                field = field_name(base)
                check_field(field, f"{name}: {key!r}", where=where, taken=("key",))
                fields[field + dot + part] = (at, key)
            shards.append((name, fields))
    return [_shard(name, places, found, files, f"{where}: {name}") for name, places in shards]


def _shard(
    name: str,
    places: dict[str, tuple[int, str | None]],
    found: list[dict[str | None, Column]],
    files: DataFiles,
    where: str,
) -> Shard:
    """A shard of the columns that were found, compared with each other."""
    forms: dict[str, Form | None] = {}
    counts: dict[str, int] = {}
    columns = {field: found[at][key] for field, (at, key) in places.items()}
    for field in sorted(columns, key=field_place):
        if _check_part(field, columns, where):
            continue
        offsets = columns.get(f"{field}.{OFFSETS}")
        counts[field] = columns[field].count if offsets is None else offsets.count - 1
        forms[field] = columns[field].form if offsets is None else None
    if not counts:
        raise ValueError(f"{where} holds no array and no tensor; write it with a field for each")
    size = sum(files.marks[at][0] for at in {at for at, _ in places.values()})
    size = max(size, sum(column.size_bytes for column in columns.values()))
    return Shard(name, same_count(counts, where=where), places, forms, size)


def open_shard(
    shard: Shard,
    files: DataFiles,
    load: Callable[[int], Mapping[str | None, Any]],
    kinds: Mapping[str, str],
) -> OpenShard:
    """Open the columns of a shard, and read those that are `Unread`.

    Args:
        shard: As `find_shards` found it.
        files: The files.
        load: Gives the columns of a file.
        kinds: What ragged fields hold, where their codes do not say it; arrays if not named.

    Raises:
        RecordError: It is not what it was.
        penstock.datasets.files.access.MissingFile: A file is gone.
        OSError: Trouble that did not pass.
    """
    opened: dict[int, Mapping[str | None, Any]] = {}
    columns: dict[str, Any] = {}
    size_bytes = 0
    for field, (at, key) in shard.places.items():
        try:
            opened[at] = opened.get(at) or load(at)
            column = opened[at].get(key)
            if isinstance(column, Unread):
                size_bytes += column.nbytes
                column = column.read()
        except ValueError as error:
            raise RecordError(f"{files.names[at]}: {error}") from error
        form = shard.forms.get(field)
        if column is None or (form is not None and Column.of(column).form != form):
            raise RecordError(f"{files.names[at]} was written anew while it was in use")
        columns[field] = column
    fields = join_parts(columns, kinds)
    if any(len(fields[name]) != shard.count for name in shard.forms):
        raise RecordError(f"{shard.name} was written anew while it was in use")
    mapped = tuple((os.path.join(files.root, files.names[at]), files.marks[at][0]) for at in opened)
    return OpenShard({name: fields[name] for name in shard.forms}, mapped, size_bytes)


@dataclass(frozen=True, slots=True)
class OpenShard:
    """The arrays of a shard.

    Attributes:
        fields: Arrays [n, ...] by field; or whatever gives the value of a row by its number.
        files: Path and size in bytes of the files that they are mapped from.
        size_bytes: Memory that they take beside these.
    """

    fields: dict[str, Any]
    files: tuple[tuple[str, int], ...]
    size_bytes: int = 0


class ShardRows:
    """The rows of all shards, in this process. Threads share it.

    Args:
        counts: Samples in each shard, int64 [S].
        open_shard: Opens a shard by number. Raises `RecordError` or
            `datasets.files.access.MissingFile` where it cannot be had.
    """

    def __init__(self, counts: NDArray[np.int64], open_shard: Callable[[int], OpenShard]) -> None:
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        self._open = open_shard
        self._opened = GroupCache(_KEPT_BYTES)
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if allowed == resource.RLIM_INFINITY:
            allowed = _MOST_FILES * _PART_OF_DESCRIPTORS
        self._most_files = max(1, min(allowed // _PART_OF_DESCRIPTORS, _MOST_FILES))

    def read(self, rows: NDArray[np.int64]) -> list[dict[str, Any] | str]:
        """Fields of the given rows, int64 [n], or why there are none.

        Large arrays are read-only views of the files, which keep these open: where they lie in
        many files, they are copies. Small ones are copies too.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        found: list[dict[str, Any] | str] = [""] * len(rows)
        groups = list(self._by_shard(rows))
        copied = len(groups) * 4 > self._most_files
        for shard, places, local in groups:
            try:
                fields = self._fields(shard)
                columns = [_values(array, local, copied) for array in fields.values()]
            except RecordError as error:
                for place in places.tolist():
                    found[place] = str(error)
                continue
            for place, *values in zip(places.tolist(), *columns, strict=True):
                found[place] = _record(fields, values)
        return found

    def take(
        self, rows: NDArray[np.int64], fields: Collection[str], into: dict[str, NDArray[Any]]
    ) -> bool:
        """Copy the given rows, int64 [n], into one array [n, ...] per field.

        Returns:
            False where a row cannot be had; then the arrays hold nothing that means anything.
        """
        for shard, places, local in self._by_shard(rows):
            try:
                arrays = self._fields(shard)
            except RecordError:
                return False
            for name in fields:
                array, out = arrays[name], into[name]
                if len(places) == len(rows):  # all in one shard, and in their order
                    # With the default mode NumPy would take into a buffer and copy that.
                    np.take(array, local, axis=0, out=out, mode="clip")
                elif out[:1].nbytes < _LARGE_ROW_BYTES:
                    out[places] = array[local]
                else:
                    for place, row in zip(places.tolist(), local.tolist(), strict=True):
                        out[place] = array[row]
        return True

    def whole(self, shard: int, field: str) -> Any:
        """A field of one shard.

        Raises:
            RecordError: It cannot be had.
            penstock.datasets.files.access.MissingFile: Its file is gone.
        """
        return self._fields(shard)[field]

    def _by_shard(
        self, rows: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Shard, places in `rows` and rows in the shard; sorted where there are several."""
        if not rows.size:
            return
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        if shards.min() == shards.max():
            yield int(shards[0]), np.arange(len(rows)), rows - self._starts[shards[0]]
            return
        order = np.argsort(rows, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1):
            shard = int(shards[places[0]])
            yield shard, places, rows[places] - self._starts[shard]

    def _fields(self, shard: int) -> dict[str, Any]:
        def load() -> tuple[OpenShard, int]:
            opened = self._open(shard)
            files = len(opened.files) * (_KEPT_BYTES // self._most_files)
            return opened, files + opened.size_bytes

        opened: OpenShard = self._opened.get(shard, load)
        for path, size_bytes in opened.files:
            # Pages behind the end of a file that became shorter must not be touched.
            missing = size_bytes - _size(path, size_bytes)
            if missing > 0:
                name = os.path.basename(path)
                raise RecordError(f"{name}: the file ends {missing:,} bytes too early")
        return opened.fields


def _record(names: Iterable[str], values: list[Any]) -> dict[str, Any] | str:
    """The fields of one record, or why it cannot be had."""
    for value in values:
        if isinstance(value, RecordError):
            return str(value)
    return {name: v for name, v in zip(names, values, strict=True) if v is not ABSENT}


def _size(path: str, known: int) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return known  # what is mapped stays, whatever has become of its name


def _values(array: Any, rows: NDArray[np.int64], copied: bool) -> list[Any]:
    """The values of some rows: numbers and text as Python's own, arrays that are read-only."""
    if not isinstance(array, np.ndarray):
        return [_value(array, row) for row in rows.tolist()]
    if array.ndim == 1:
        numbers: list[Any] = array[rows].tolist()
        return numbers
    if copied or array[:1].nbytes < _LARGE_ROW_BYTES:
        array, rows = array[rows], np.arange(len(rows))
        array.flags.writeable = False
    return [array[row] for row in rows.tolist()]


def _value(array: Any, row: int) -> Any:
    try:
        return array[row]
    except RecordError as error:
        return error


class Ragged:
    """Values of a field, by row.

    Args:
        values: All of them end to end, [total]; uint8 for anything but arrays.
        offsets: Where each begins and the last ends, integer [n + 1].
        shapes: The shape of each array, integer [n, axes], -1 for axes that it has not; None:
            all have one axis.
        codes: What each is, uint8 [n], of `KINDS`; None: `kind` says it of all.
        kind: ``array``; or ``bytes``, ``text`` (UTF-8) or ``json``.
    """

    def __init__(
        self,
        values: NDArray[Any],
        offsets: NDArray[Any],
        *,
        shapes: NDArray[Any] | None = None,
        codes: NDArray[Any] | None = None,
        kind: str = "array",
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
        self.values = values
        self.offsets = offsets
        self.shapes = shapes
        self.codes = codes
        self.code = KINDS.index(kind)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Any:
        """One value; arrays are views. `ABSENT` where there is none.

        Raises:
            RecordError: Its place or its shape is none.
        """
        code = self.code if self.codes is None else int(self.codes[row])
        start, stop = int(self.offsets[row]), int(self.offsets[row + 1])
        if not 0 <= start <= stop <= len(self.values) or code >= len(KINDS):
            raise RecordError(f"row {row} lies outside the {len(self.values):,} values there are")
        kind, value = KINDS[code], self.values[start:stop]
        if kind == "absent":
            return ABSENT
        if kind == "array":
            return self._shaped(value, row)
        if kind == "bytes":
            return value.tobytes()
        try:
            text = value.tobytes().decode("utf-8", "surrogateescape")
            return text if kind == "text" else parse_json(text)
        except ValueError as error:
            raise RecordError(f"row {row} is no {kind} ({error})") from error

    def _shaped(self, value: NDArray[Any], row: int) -> NDArray[Any]:
        if self.shapes is None:
            return value
        shape = [length for length in self.shapes[row].tolist() if length != -1]
        if min(shape, default=0) < 0 or math.prod(shape) != len(value):
            raise RecordError(f"row {row} has {len(value):,} numbers, which are no {shape}")
        return value.reshape(shape)


def join_parts(arrays: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, Any]:
    """Fields of arrays by name: those with offsets beside them are `Ragged`.

    Args:
        arrays: Arrays, or other columns, by name.
        kinds: What ragged fields hold, where their codes do not say it; arrays if not named.

    Raises:
        RecordError: The arrays of a field do not fit together.
    """
    fields: dict[str, Any] = {}
    for name, array in arrays.items():
        if "." in name:
            continue
        offsets = arrays.get(f"{name}.{OFFSETS}")
        if offsets is None:
            fields[name] = array
            continue
        shapes, codes = arrays.get(f"{name}.{SHAPES}"), arrays.get(f"{name}.{CODES}")
        kind = kinds.get(name, "array")
        fields[name] = Ragged(array, offsets, shapes=shapes, codes=codes, kind=kind)
    return fields


def _check_part(name: str, names: Mapping[str, Any], where: str) -> bool:
    """Whether an array is part of a ragged field; ValueError if it is of none."""
    base, _, part = name.partition(".")
    wanted = base if part == OFFSETS else f"{base}.{OFFSETS}"
    if part and (part not in (OFFSETS, SHAPES, CODES) or wanted not in names):
        raise ValueError(f"{where}: {name!r} is no field, nor does it belong to one; rename it")
    return bool(part)
