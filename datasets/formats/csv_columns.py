"""The columns of a CSV file in the cache, from where many rows are taken at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.formats.csv_blocks import iter_blocks
from datasets.formats.csv_rows import ColumnType, convert_column
from datasets.index import Index, write_index
from datasets.index_cache import cached_index
from datasets.sample import TextColumn

_MOST_TEXTS = 1 << 18  # of a column: what has more is no category, and takes memory as a list
_FORMAT = 1
_TYPES = {"int": np.int64, "float": np.float64, "str": np.int32}


@dataclass(slots=True)
class CsvColumns:
    """Columns that are mapped from the cache, so that all processes share them.

    Attributes:
        numbers: A column for each field; those of texts have their numbers, -1 where one is None.
        texts: The different texts of all columns, as keys.
        places: Where those of each column of texts begin in `texts`, and how many they are.
    """

    numbers: Index
    texts: Index
    places: dict[str, tuple[int, int]]
    _known: dict[str, NDArray[Any]] = field(default_factory=dict)

    def take(self, name: str, rows: NDArray[np.int64]) -> Any:
        """A column's values in `rows`, int64 [n]: int64 or float64 [n], or a `TextColumn`."""
        values = self.numbers.column(name)[rows]
        if name not in self.places:
            return values
        texts = self._known.get(name)
        if texts is None:
            start, count = self.places[name]
            found = self.texts.keys(np.arange(start, start + count))
            texts = self._known[name] = np.array([*found, None], object)
        return TextColumn(texts, values)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.numbers, self.texts, self.places

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.numbers, self.texts, self.places = state
        self._known = {}


def cached_columns(
    path: str,
    fields: Mapping[str, tuple[int, ColumnType]],
    *,
    delimiter: str,
    missing: Collection[str],
    recipe: dict[str, Any],
    content: str,
    where: str,
) -> CsvColumns | None:
    """The columns of a CSV file, from the cache or read now.

    Args:
        path: The file.
        fields: Place in a row, and type, of every field.
        delimiter: What separates values.
        missing: Texts that stand for no value.
        recipe: What names the file and how it is read.
        content: What tells the file from others that were at its place.
        where: The storage, for messages.

    Returns:
        The columns; None where one of texts has too many different ones.
    """
    read: list[_Read] = []

    def columns() -> _Read:
        """Of the file, read once for both parts."""
        if not read:
            read.append(_Read(path, fields, delimiter, frozenset(missing), where))
        return read[0]

    def part(name: str, build: Callable[[Path], None]) -> Index:
        return cached_index(
            {**recipe, "part": name, "format": _FORMAT},
            build=build,
            is_current=lambda index: index.metadata["content"] == content,
        )

    def write_texts(path: Path) -> None:
        found = columns()
        write_index(
            path,
            keys=[text for texts in found.texts.values() for text in texts],
            columns={},
            metadata={"content": content, "places": found.places},
            content=content,
        )

    def write_numbers(path: Path) -> None:
        numbers = columns().numbers
        count = len(next(iter(numbers.values()), ()))
        write_index(
            path, key_pattern="{}", count=count, columns=numbers,
            metadata={"content": content}, content=content,
        )  # fmt: skip

    texts = part("texts", write_texts)
    places = texts.metadata["places"]
    if places is None:
        return None
    numbers = part("numbers", write_numbers)
    return CsvColumns(numbers, texts, {name: tuple(place) for name, place in places.items()})


class _Read:
    """The columns of a file as they are read.

    Attributes:
        numbers: int64, float64 or, of texts, int32 [n], by field.
        texts: The different texts of each column of them, in the order of their numbers.
        places: See `CsvColumns`; None where a column has too many texts.
    """

    def __init__(
        self,
        path: str,
        fields: Mapping[str, tuple[int, ColumnType]],
        delimiter: str,
        missing: frozenset[str],
        where: str,
    ) -> None:
        self.numbers: dict[str, NDArray[Any]] = {}
        self.texts: dict[str, list[str]] = {}
        self.places: dict[str, tuple[int, int]] | None = None
        known: dict[str, dict[str, int]] = {n: {} for n, (_, t) in fields.items() if t == "str"}
        parts: dict[str, list[NDArray[Any]]] = {name: [] for name in fields}
        for block in islice(iter_blocks(path, delimiter=delimiter, where=where), 1, None):
            columns = block.columns
            for name, (at, kind) in fields.items():
                values = convert_column(columns[at], kind, missing)
                if kind == "str":
                    values = _numbered(values, known[name])
                    if len(known[name]) > _MOST_TEXTS:
                        return
                parts[name].append(np.array(values, _TYPES[kind]))
        for name, (_, kind) in fields.items():
            self.numbers[name] = np.concatenate([np.zeros(0, _TYPES[kind]), *parts.pop(name)])
        self.texts = {name: list(numbers) for name, numbers in known.items()}
        ends = np.cumsum([0, *(len(texts) for texts in self.texts.values())]).tolist()
        self.places = {
            name: (start, len(texts))
            for (name, texts), start in zip(self.texts.items(), ends, strict=False)
        }


def _numbered(texts: Sequence[str | None], numbers: dict[str, int]) -> list[int]:
    """The numbers of texts, -1 of None; new ones are added in their order."""
    for text in dict.fromkeys(texts):
        if text is not None:
            numbers.setdefault(text, len(numbers))
    return [-1 if text is None else numbers[text] for text in texts]
