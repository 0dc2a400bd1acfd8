"""Rows of a CSV file: where each lies, the types of its columns, and values that are missing.

Format: RFC 4180 in UTF-8, with any delimiter and either line end.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

ColumnType = Literal["int", "float", "str"]

# What a guess takes for a number; a code such as 007 stays text.
_INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(
    r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?inf"
)
# What is taken for one where the type is given.
_DIGITS = re.compile(r"[+-]?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One row and where it lies.

    Attributes:
        values: Its values as text.
        line: The line that it begins in, from 1.
        offset: Its first byte.
        raw: Its bytes, with the line end.
    """

    values: list[str]
    line: int
    offset: int
    raw: bytes


def iter_rows(path: str, *, delimiter: str, where: str) -> Iterator[CsvRow]:
    """All rows, the header first; empty lines are left out.

    Raises:
        ValueError: It is no CSV in UTF-8, or a row has another number of values than the header.
    """
    parts: list[bytes] = []
    line = 1
    try:
        with open(path, "rb") as file:

            def lines() -> Iterator[str]:
                for number, raw in enumerate(file):
                    parts.append(raw)
                    yield raw.decode("utf-8" if number else "utf-8-sig")

            reader = csv.reader(lines(), delimiter=delimiter, strict=True)
            offset, width = 0, 0
            for values in reader:
                raw = b"".join(parts)
                parts.clear()
                if values:
                    width = width or len(values)
                    if len(values) != width:
                        raise ValueError(
                            f"{where}: line {line}: got {len(values)} values, expected {width}; "
                            f'put values that contain the delimiter in "quotes"'
                        )
                    yield CsvRow(values, line, offset, raw)
                offset, line = offset + len(raw), reader.line_num + 1
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{where}: line {line}: cannot be read as a CSV in UTF-8 ({error}); save it as such"
        ) from error


def parse_row(raw: bytes, *, delimiter: str) -> list[str]:
    """The values of one row's bytes.

    Raises:
        ValueError: They are none.
    """
    try:
        text = io.StringIO(raw.decode("utf-8-sig"), newline="")
        return next(csv.reader(text, delimiter=delimiter, strict=True))
    except (csv.Error, StopIteration) as error:
        raise ValueError("it is no row of a CSV") from error


class ColumnGuess:
    """The narrowest type that holds every value of a column.

    Args:
        missing: Texts that stand for no value.
    """

    def __init__(self, missing: frozenset[str]) -> None:
        self._missing = missing
        self._is_integer = self._is_float = True
        self._has_missing = False

    def add(self, text: str) -> None:
        """Look at one value."""
        if text in self._missing:
            self._has_missing = True
        elif self._is_float:
            self._is_integer = self._is_integer and _INTEGER.fullmatch(text) is not None
            self._is_float = self._is_integer or _FLOAT.fullmatch(text) is not None

    @property
    def type(self) -> ColumnType:
        """Integers with missing ones among them are floats; a number like 007 is text."""
        if self._is_integer and not self._has_missing:
            return "int"
        return "float" if self._is_float else "str"


def convert(text: str, kind: ColumnType, missing: frozenset[str]) -> Any:
    """A value of its type: a missing one is NaN among floats and None among texts.

    Raises:
        ValueError: It is none of that type.
    """
    if text in missing:
        if kind == "int":
            raise ValueError(f"{text!r} is missing, and int has no value for that; use float")
        return float("nan") if kind == "float" else None
    if kind == "str":
        return text
    if kind == "int" and _DIGITS.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no int")
    if "_" in text:  # which Python allows in numbers
        raise ValueError(f"{text!r} is no {kind}")
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no {kind}") from None
