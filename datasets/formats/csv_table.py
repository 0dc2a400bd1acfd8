"""What is in a CSV file, found by reading it once: places, keys, labels, types."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from datasets.formats.column_roles import ColumnRoles, find_roles
from datasets.formats.csv_blocks import iter_blocks
from datasets.formats.csv_rows import ColumnGuess, ColumnType, convert
from datasets.inside import refuse_escape


@dataclass(slots=True)
class CsvScan:
    """What a pass over the rows finds.

    Attributes:
        offsets: Where each row begins, int64 [n].
        row_bytes: How long it is, int32 [n].
        crc32: Its checksum, uint32 [n].
        keys: The line of each row by its key, in order; empty without a key column.
        labels: Labels as text; empty without a label column.
        types: Types of the fields and of the label.
        content: Hash of the file.
        doubts: What may be otherwise than it was meant, in words.
    """

    offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    row_bytes: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    crc32: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    keys: dict[str, int] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)
    types: dict[str, ColumnType] = field(default_factory=dict)
    content: str = ""
    doubts: list[str] = field(default_factory=list)


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
    places: list[tuple[NDArray[Any], ...]] = []
    for n, block in enumerate(iter_blocks(path, delimiter=delimiter, where=where)):
        digest.update(b"".join(block.raw))
        if n == 0:  # the header
            continue
        columns = dict(zip(roles.places, block.columns, strict=True))
        refused = list(_take(columns, block.lines, roles, scan, missing))
        for name in names:
            if name in guesses:
                guess, texts = guesses[name], columns[name]
                had = guess.odd
                guess.add(texts)
                if guess.odd is not None and had is None:
                    line = block.lines[texts.index(guess.odd)]
                    scan.doubts.append(_doubt(name, guess.odd, line, guess.numbers))
            else:
                refused += _refused(
                    columns[name], partial(convert, kind=types[name], missing=missing)
                )
        if refused:
            row, why = min(refused, key=itemgetter(0))
            raise ValueError(f"{where}: line {block.lines[row]}: {why}")
        count = len(block.raw)
        row_bytes = np.fromiter(map(len, block.raw), np.int32, count)
        places.append(
            (block.offsets, row_bytes, np.fromiter(map(crc32, block.raw), np.uint32, count))
        )
    if not places:
        raise ValueError(f"{where}: it has a header and no row; nothing to read")
    scan.offsets, scan.row_bytes, scan.crc32 = map(np.concatenate, zip(*places, strict=True))
    scan.types = {n: types[n] if n in types else guesses[n].type for n in names}
    scan.content = digest.hexdigest()
    return scan


def _doubt(name: str, odd: str, line: int, numbers: int) -> str:
    return (
        f"column {name!r} is taken as text: line {line} has {odd!r}, and {numbers:,} values before "
        f"and around it are numbers; correct it, or add it to dataset.storage.missing, or type "
        f"dataset.storage.types.{name}=str if it is text"
    )


def _take(
    columns: Mapping[str, Sequence[str]],
    lines: Sequence[int],
    roles: ColumnRoles,
    scan: CsvScan,
    missing: frozenset[str],
) -> Iterator[tuple[int, str]]:
    """Take rows' keys and labels, and look where their images lead.

    Yields:
        For each of these the first row that cannot be, and why.
    """
    if roles.image is not None:
        yield from _refused(columns[roles.image], refuse_escape)
    if roles.label is not None:
        labels = [text.strip() for text in columns[roles.label]]
        yield from _refused(labels, partial(_refuse_missing, missing=missing, what="the label"))
        scan.labels += labels
    if roles.key is not None:
        keys = columns[roles.key]
        what = repr(roles.key)
        yield from _refused(keys, partial(_refuse_missing, missing=missing, what=what))
        for row, (key, line) in enumerate(zip(keys, lines, strict=True)):
            if (first := scan.keys.setdefault(key, line)) != line:
                where = f"{key!r} stands here and in line {first}"
                yield row, f"{where}; name a key_column whose values differ"
                break


def _refused(texts: Sequence[str], check: Callable[[str], Any]) -> Iterator[tuple[int, str]]:
    """The first row of a column whose value `check` raises ValueError for, and what it says."""
    for text in dict.fromkeys(texts):
        try:
            check(text)
        except ValueError as error:
            yield texts.index(text), str(error)
            return


def _refuse_missing(text: str, *, missing: frozenset[str], what: str) -> None:
    if text in missing:
        raise ValueError(f"{what} is missing ({text!r}); fill it in, or take the row out")
