"""What is in a CSV file, found by reading it once: places, keys, labels, types."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from datasets.formats.column_roles import ColumnRoles, find_roles
from datasets.formats.csv_rows import ColumnGuess, ColumnType, CsvRow, convert, iter_rows
from datasets.inside import refuse_escape


@dataclass(slots=True)
class CsvScan:
    """What a pass over the rows finds.

    Attributes:
        offsets: Where each row begins.
        row_bytes: How long it is.
        crc32: Its checksum.
        keys: The line of each row by its key, in order; empty without a key column.
        labels: Labels as text; empty without a label column.
        types: Types of the fields and of the label.
        content: Hash of the file.
    """

    offsets: list[int] = field(default_factory=list)
    row_bytes: list[int] = field(default_factory=list)
    crc32: list[int] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)
    types: dict[str, ColumnType] = field(default_factory=dict)
    content: str = ""


def find_csv_roles(header: Sequence[str], *, where: str, **columns: Any) -> ColumnRoles:
    """The roles of the columns that a header names; images' paths are keys where no column is.

    Args:
        header: The names in the first line.
        where: The storage, for messages.
        columns: See `find_roles`.

    Raises:
        ValueError: A column that is not there or stands twice, or a name that is not free.
    """
    for name in header:
        if list(header).count(name) > 1:
            raise ValueError(f"{where}: line 1: column {name!r} stands twice; rename one")
    roles = find_roles(header, where=where, **columns)
    return replace(roles, key=roles.key or roles.image)


def scan_csv(
    path: str,
    roles: ColumnRoles,
    *,
    delimiter: str,
    types: Mapping[str, ColumnType],
    missing: frozenset[str],
    where: str,
) -> CsvScan:
    """Read a file whole, and keep the places of its rows.

    Args:
        path: The file.
        roles: What its columns become.
        delimiter: What separates values.
        types: Types of columns that are not to be guessed.
        missing: Texts that stand for no value.
        where: The storage, for messages.

    Raises:
        ValueError: No row, a value of another type, a key or label that is missing, a key that
            stands twice, or an image's path that leads out of its folder; with the line.
    """
    scan = CsvScan()
    names = [*roles.fields, *([roles.label] if roles.label is not None else [])]
    for name in types:
        if name not in roles.places:
            known = ", ".join(roles.places)
            raise ValueError(f"{where}: types: no column {name!r}; columns: {known}")
    guesses = {name: ColumnGuess(missing) for name in names if name not in types}
    digest = hashlib.blake2b(digest_size=16)
    for n, row in enumerate(iter_rows(path, delimiter=delimiter, where=where)):
        digest.update(row.raw)
        if n == 0:
            continue
        try:
            _look_at(row, roles, scan, missing)
            for name in names:
                text = row.values[roles.places[name]]
                if name in guesses:
                    guesses[name].add(text)
                else:
                    convert(text, types[name], missing)
        except ValueError as error:
            raise ValueError(f"{where}: line {row.line}: {error}") from error
        scan.offsets.append(row.offset)
        scan.row_bytes.append(len(row.raw))
        scan.crc32.append(zlib.crc32(row.raw))
    if not scan.offsets:
        raise ValueError(f"{where}: it has a header and no row; nothing to read")
    scan.types = {n: types[n] if n in types else guesses[n].type for n in names}
    scan.content = digest.hexdigest()
    return scan


def _look_at(row: CsvRow, roles: ColumnRoles, scan: CsvScan, missing: frozenset[str]) -> None:
    """Take a row's key and label, and look where its image leads."""
    if roles.image is not None:
        refuse_escape(row.values[roles.places[roles.image]])
    if roles.label is not None:
        label = row.values[roles.places[roles.label]].strip()
        if label in missing:
            raise ValueError(f"the label is missing ({label!r}); fill it in, or take the row out")
        scan.labels.append(label)
    if roles.key is not None:
        key = row.values[roles.places[roles.key]]
        if key in missing:
            raise ValueError(f"{roles.key!r} is missing ({key!r}); fill it in, or take the row out")
        if (first := scan.keys.setdefault(key, row.line)) != row.line:
            raise ValueError(
                f"{key!r} stands here and in line {first}; name a key_column whose values differ"
            )
