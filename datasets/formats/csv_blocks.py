"""Rows of a CSV file, many at a time: where each lies, and its values.

Format: RFC 4180 in UTF-8, with any delimiter and either line end.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise, repeat
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

_BLOCK_ROWS = 1024
_READ_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class CsvBlock:
    """Rows that follow each other, but for empty lines.

    Attributes:
        rows: The values of each as text; all have equally many.
        lines: The line that each begins in, from 1.
        offsets: Its first byte, int64 [n].
        raw: Its bytes, with the line end.
    """

    rows: list[list[str]]
    lines: list[int]
    offsets: NDArray[np.int64]
    raw: list[bytes]

    def of(self, places: list[int]) -> CsvBlock:
        """Some of the rows."""
        return CsvBlock(
            [self.rows[n] for n in places],
            [self.lines[n] for n in places],
            self.offsets[places],
            [self.raw[n] for n in places],
        )

    @property
    def columns(self) -> list[tuple[str, ...]]:
        """The values of each column."""
        return list(zip(*self.rows, strict=True))


def iter_blocks(path: str, *, delimiter: str, where: str) -> Iterator[CsvBlock]:
    """All rows, the header first and by itself; empty lines are left out.

    Raises:
        ValueError: It is no CSV in UTF-8, or a row has another number of values than the header;
            when the rows above it have been given.
    """
    width = 0
    for block in _read_blocks(path, delimiter, where):
        width = width or len(block.rows[0])
        widths = list(map(len, block.rows))
        if widths.count(width) == len(widths) and width:
            yield block
            continue
        wrong = next((n for n, found in enumerate(widths) if found not in (0, width)), None)
        if any(widths[:wrong]):
            yield block.of([n for n, found in enumerate(widths[:wrong]) if found])
        if wrong is not None:
            raise ValueError(
                f"{where}: line {block.lines[wrong]}: got {widths[wrong]} values, expected "
                f'{width}; put values that contain the delimiter in "quotes"'
            )


def _read_blocks(path: str, delimiter: str, where: str) -> Iterator[CsvBlock]:
    """All rows, also empty ones, those up to the header one by one."""
    line, offset, most = 1, 0, 1
    try:
        with open(path, "rb") as file:
            read: list[bytes] = []
            reader = csv.reader(_texts(file, read), delimiter=delimiter, strict=True)
            trouble: Exception | None = None
            while trouble is None:
                rows: list[list[str]] = []
                starts = [line]
                try:
                    for values in islice(reader, most):
                        rows.append(values)
                        starts.append(reader.line_num + 1)
                except (OSError, UnicodeDecodeError, csv.Error) as error:
                    trouble = error
                if rows:
                    raw = read[: starts[-1] - line]
                    del read[: len(raw)]
                    if len(raw) > len(rows):  # a value with a line end
                        places = pairwise(start - line for start in starts)
                        raw = [b"".join(raw[first:stop]) for first, stop in places]
                    ends = offset + np.cumsum(np.fromiter(map(len, raw), np.int64, len(raw)))
                    yield CsvBlock(rows, starts[:-1], np.array([offset, *ends[:-1]]), raw)
                    line, offset = starts[-1], int(ends[-1])
                    most = _BLOCK_ROWS if any(rows) else 1
                elif trouble is None:
                    return
            raise trouble
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{where}: line {line}: cannot be read as a CSV in UTF-8 ({error}); save it as such"
        ) from error


def _texts(file: BinaryIO, read: list[bytes]) -> Iterator[str]:
    """The lines of a file as text; their bytes are added to `read`."""
    encodings = chain(["utf-8-sig"], repeat("utf-8"))
    while lines := file.readlines(_READ_BYTES):
        read += lines
        yield from map(bytes.decode, lines, encodings)
