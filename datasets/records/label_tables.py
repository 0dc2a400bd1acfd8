"""Read tables that describe images: a CSV with a row, or several, for each."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.datasets.records.label_files import entries_of
from penstock.datasets.records.labels import iter_csv

log = logging.getLogger(__name__)

# As the field writes them, in any case.
IMAGE_COLUMNS = ("image", "file_name", "filename", "file", "path", "image_path", "image_name",
                 "image_id", "imageid", "image index", "key")  # fmt: skip


def delimiter_of(given: str | None, path: str) -> str:
    """Choose what separates the values of a table; None: a tab in ``.tsv`` files, else a comma.

    Raises:
        ValueError: What is given cannot separate.
    """
    delimiter = given or ("\t" if path.endswith(".tsv") else ",")
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ValueError(
            f"dataset.annotations.delimiter: {given!r}, expected one character, as in ';'"
        )
    return delimiter


@dataclass(frozen=True, slots=True)
class LabelTable:
    """A table that describes images.

    Attributes:
        where: The storage and the file, for messages.
        head: The same, and the line of the columns' names where the file has one.
        columns: Their names.
        rows: The line of each row, from 1, and its values by column, without spaces around.
    """

    where: str
    head: str
    columns: tuple[str, ...]
    rows: Iterator[tuple[int, dict[str, str]]]

    @classmethod
    def at(
        cls, path: str, *, delimiter: str, header: Sequence[str] | None = None, where: str
    ) -> LabelTable:
        """Open a table.

        Args:
            path: The file.
            delimiter: What separates values.
            header: The columns' names, for a file whose first line is a row.
            where: The storage and the file, for messages.

        Raises:
            ValueError: It is no table, or columns have the same name.
        """
        rows = iter_csv(path, delimiter=delimiter, where=where)
        first = next(rows, None)
        if first is None:
            raise ValueError(f"{where}: it is empty; write a first line with the columns' names")
        line, values = first
        names = [name.strip() for name in header or values]
        if len(names) != len(values):
            raise ValueError(
                f"{where}: line {line}: got {len(values)} values, and "
                f"dataset.annotations.header names {len(names)} columns; name them all"
            )
        head = where if header else f"{where}: line {line}"
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{head}: column {name!r} stands twice; rename one")
        below = itertools.chain([first] if header else [], rows)
        return cls(
            where=where,
            head=head,
            columns=tuple(names),
            rows=(
                (number, dict(zip(names, map(str.strip, row), strict=True)))
                for number, row in below
            ),
        )

    @property
    def shown(self) -> str:
        """The columns' names, for messages."""
        return ", ".join(map(repr, self.columns))

    def check(self, *given: str | None) -> None:
        """Refuse columns that were named and are not there.

        Raises:
            ValueError: One is not.
        """
        for name in given:
            if name is not None and name not in self.columns:
                raise ValueError(f"{self.head}: no column {name!r}; columns: {self.shown}")

    def usual(self, known: Sequence[str]) -> str | None:
        """Find the first of some usual names, in any case, among the columns."""
        lower = {name.lower(): name for name in self.columns}
        return next((lower[name] for name in known if name in lower), None)

    def needed(self, known: Sequence[str], what: str, setting: str) -> str:
        """Find a column by its usual names.

        Args:
            known: The names.
            what: What it is, for messages.
            setting: The setting that names it.

        Raises:
            ValueError: There is none.
        """
        if (found := self.usual(known)) is not None:
            return found
        remedy = f"name it by dataset.annotations.{setting}"
        if len(self.columns) == 1:
            remedy = "say what separates them by dataset.annotations.delimiter"
        raise ValueError(
            f"{self.head}: no column {what}, such as {known[0]!r}; columns: {self.shown}; {remedy}"
        )

    def images(self, column: str) -> Iterator[tuple[int, str, dict[str, str]]]:
        """Iterate over the rows, each with the name of its image.

        Args:
            column: The column of the images' names.

        Yields:
            The line, the name, and the values by column.

        Raises:
            ValueError: A name is empty.
        """
        for line, row in self.rows:
            if not row[column]:
                raise ValueError(
                    f"{self.where}: line {line}: the image's name is empty; fill it in, or take "
                    f"the line out"
                )
            yield line, row[column], row


def entries_in_table(
    keys: Sequence[str], lines: Mapping[str, int], *, where: str, its_own: bool
) -> list[str | None]:
    """Match records with the images that a table names; see `entries_of`.

    Args:
        keys: Keys of the records.
        lines: The line in which each image stands first.
        where: The storage and the file, for messages.
        its_own: The table is of these records alone: how many images are not among them is said.

    Raises:
        ValueError: It names no image, or none of these.
    """
    if not lines:
        raise ValueError(f"{where}: it has no row; nothing to read")
    entries = entries_of(keys, list(lines), where=where)
    there = set(entries)
    others = [name for name in lines if name not in there]
    if keys and len(others) == len(lines):
        raise ValueError(
            f"{where}: line {lines[others[0]]}: no image {others[0]!r}, and none of the other "
            f"{len(others) - 1:,} is in the data, whose first is {keys[0]!r}; write the names "
            f"so, or set dataset.annotations.image_column"
        )
    if others and its_own:
        log.warning(
            "%s: rows of %s images that are not in the data are left out, such as %r in line "
            "%s", where, f"{len(others):,}", others[0], lines[others[0]],
        )  # fmt: skip
    return entries


def number_of(text: str, name: str) -> float:
    """Read a number.

    Raises:
        ValueError: It is none; the message names the column.
    """
    if not text:
        raise ValueError(f"{name} is empty")
    try:
        if "_" in text:  # which Python allows in numbers
            raise ValueError
        return float(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, expected a number") from None
