"""Read records in the rows of a CSV file, with images in files beside it.

The file is parsed once into an Arrow file in the machine's cache, which all reads map.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.core.machine_cache import computed_once, received, sent, signature_of
from penstock.core.registry import register
from penstock.datasets.columnar.form import TableFile, TableForm
from penstock.datasets.columnar.storage import TableStorage
from penstock.datasets.files.access import RangeFile, is_url
from penstock.datasets.files.data_files import DataFiles
from penstock.datasets.files.listings import find_file
from penstock.datasets.files.local_copies import local_copy
from penstock.datasets.records.label_tables import iter_csv
from penstock.datasets.records.labels import MISSING
from penstock.datasets.records.table import Table
from penstock.datasets.storages.arrow import ArrowFile

if TYPE_CHECKING:
    from penstock.datasets.columnar.schema import Roles

_log = logging.getLogger(__name__)

ColumnType = Literal["int", "float", "str"]

_IMAGE_COLUMNS = ("image", "file_name", "filename", "path")
_BLOCK_BYTES = 1 << 25  # no row may be longer
_BOM = b"\xef\xbb\xbf"
_MOST_TEXTS = 1 << 16  # distinct texts of a dictionary column
_ODD_SHARE = 0.05
_PARSER = 1  # raise it when the same file gives other columns
# A code such as 007 is text.
_INTEGER = r"^[+-]?(0|[1-9][0-9]{0,17})$"
_FLOAT = r"^[+-]?(((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|inf)$"
_TYPED = {"int": re.compile(r"[+-]?[0-9]{1,18}"), "float": re.compile(r"[^_]+")}


@dataclass(frozen=True, repr=False)
class Csv(TableForm):
    """CSV files; see `CsvStorage` for the options."""

    types: tuple[tuple[str, ColumnType], ...] = ()
    missing: tuple[str, ...] = MISSING
    delimiter: str | None = None

    name = "csv"
    endings = (".csv", ".tsv")
    group_name = "table"

    def open(self, file: RangeFile, file_bytes: int) -> TableFile:
        """Map the parsed file."""
        opened = ArrowFile(file.path)
        opened.content = [opened.schema.metadata[b"content"].decode()]
        return opened

    def scan(self, file: RangeFile, file_bytes: int, name: str, max_bytes: int) -> Table:
        """Add the parser's warnings to the table."""
        table = super().scan(file, file_bytes, name, max_bytes)
        doubts = ArrowFile(file.path).schema.metadata[b"doubts"]
        return table.replaced(metadata={**table.metadata, "doubts": json.loads(doubts)})

    def roles(self, schema: Any) -> Roles:
        """Find the roles of the columns; image, label and key by name."""
        return super(Csv, self.named(schema.names)).roles(schema)

    def named(self, header: Sequence[str]) -> Csv:
        """Choose the columns of the image, the label and the key."""
        image = self.image_column or next((n for n in _IMAGE_COLUMNS if n in header), None)
        label = self.label_column
        if label is None and "label" in header:
            label = "label"
        key = self.key_column or ("key" if "key" in header else image)
        return replace(self, image_column=image, label_column=label, key_column=key)


@dataclass(frozen=True)
class ParsedFiles(DataFiles):
    """CSV files, each read from its parsed copy in `parsed`."""

    form: Csv
    parsed: dict[str, str] = field(default_factory=dict)

    def open(self, name: str) -> RangeFile:
        """Open the parsed copy of a file; parse the file if the copy is missing."""
        if name not in self.parsed:
            source = os.path.join(self.root, name)
            mark = self.marks[self.names.index(name)]
            signature = signature_of(path=source, mark=mark, form=repr(self.form), version=_PARSER)

            def make(copy: Path) -> None:
                _Parser(local_copy(source) if is_url(source) else source, self.form).write(copy)

            def load(copy: Path) -> str:
                ArrowFile(str(copy))  # raises if it is damaged
                return str(copy)

            what, copied = f"columns of {source}", f"table-{signature}"
            made = computed_once(copied, ".arrow", make=make, load=load, what=what)
            self.parsed[name] = made[1]
        path = self.parsed[name]
        return RangeFile(path, root=os.path.dirname(path))

    def __reduce__(self) -> tuple[Any, ...]:
        paths = {name: sent(path) for name, path in self.parsed.items()}
        return _parsed_files, (self.root, self.names, self.marks, self.form, paths)


def _parsed_files(
    root: str, names: tuple[str, ...], marks: Any, form: Csv, parsed: dict[str, str]
) -> ParsedFiles:
    paths = {name: received(path) for name, path in parsed.items()}
    return ParsedFiles(root, names, marks, form, paths)


@register("storage", "csv")
class CsvStorage(TableStorage):
    """A CSV file: every row is a record, every column a field of its name.

    The first line names the columns. A column may hold the paths of image files, which are read
    with their records. The file is parsed on first use; all processes map its columns from the
    cache, until the file changes. A run keeps reading the columns that it opened first.

    Args:
        path: The file; with ``train.csv`` and ``val.csv``, their folder.
        image_column: The column of the images' paths, read into the field ``image``; None: the
            first of ``image``, ``file_name``, ``filename`` and ``path`` that exists.
        label_column: The column of the field ``label``: class ids or names; None: ``label``; an
            empty text: no labels.
        key_column: The column of the keys; None: ``key``, else the images' paths, else row numbers.
        columns: The other columns to read; None: all.
        types: ``int``, ``float`` or ``str`` by column; None: the narrowest that holds all values.
        missing: Texts of a missing value, which is NaN among numbers (integers become floats) and
            None among texts.
        root: The folder of relative image paths, which these may not leave; None: the file's
            folder. ``/`` allows absolute paths.
        follow_symlinks: Follow links of images to outside of `root`.
        delimiter: The mark between values; None: a tab in ``.tsv`` files, else a comma, or the
            semicolon or tab of a first line without commas.
        classes: Class names by id; None: the classes found, sorted (numbers are ids already).
    """

    name = "csv"
    form_class = Csv
    form: Csv

    def __init__(
        self,
        path: str,
        *,
        image_column: str | None = None,
        label_column: str | None = None,
        key_column: str | None = None,
        columns: list[str] | None = None,
        types: dict[str, ColumnType] | None = None,
        missing: tuple[str, ...] = MISSING,
        root: str | None = None,
        follow_symlinks: bool = False,
        delimiter: str | None = None,
        classes: list[str] | None = None,
    ) -> None:
        given = delimiter or ("\t" if path.endswith(".tsv") else None)
        if given and (len(given) != 1 or given in '"\r\n' or not given.isascii()):
            raise ValueError(
                f"csv {path}: delimiter {delimiter!r}, expected one character, as in ';'"
            )
        super().__init__(
            path,
            image_column=image_column,
            label_column=label_column,
            key_column=key_column,
            columns=columns,
            root=root,
            follow_symlinks=follow_symlinks,
            classes=classes,
        )
        typed = tuple(sorted((types or {}).items()))
        self.form = replace(self.form, types=typed, missing=tuple(missing), delimiter=given)

    def _find_files(self) -> DataFiles:
        root, name = os.path.split(self.path)
        what = "nothing there"
        mark: tuple[int, int | str] | None = None
        if is_url(self.path):
            if (file := find_file(self.path)) is not None:
                mark = file.size_bytes, file.mark
        elif os.path.isfile(self.path):
            found = os.stat(self.path)
            mark = found.st_size, found.st_mtime_ns
        elif os.path.isdir(self.path):
            what = "a folder"
        if mark is None:
            raise ValueError(
                f"{self}: expected a CSV file, got {what}; set dataset.storage.path to a file, "
                f"or to a folder with train.csv and val.csv"
            )
        return ParsedFiles(root, (name,), (mark,), self.form)

    def learn(self, metadata: dict[str, Any]) -> None:
        """Store the parsed file, and warn of doubtful values."""
        super().learn(metadata)
        for name, file in zip(self._files.names, metadata["files"], strict=True):
            self._files.open(name)
            for doubt in file["doubts"]:
                _warn_once(f"{self}: {doubt}")

    def read_paths(self) -> list[str]:
        """Return the folder of the images; the rows are in the cache."""
        return [] if self._meta["roles"]["paths"] is None else [self._image_root]

    def _place_of(self, name: str, row: int) -> str:
        path = os.path.join(self._files.root, name)
        parser = _Parser(local_copy(path) if is_url(path) else path, self.form)
        return f"line {parser.row(row)[0]}"


class _Parser:
    """Parses a file strictly, and reports the line of a wrong value."""

    def __init__(self, path: str, form: Csv) -> None:
        self._path = path
        with open(path, "rb") as file:
            first = file.readline()
        self._delimiter = form.delimiter or ","
        if form.delimiter is None and b"," not in first:
            self._delimiter = next((mark for mark in ";\t" if mark.encode() in first), ",")
        self._header = next((row for _, row in self._rows()), [])
        self._form, self._doubts = form, list[str]()

    def write(self, path: Path) -> None:
        """Write the typed columns as an Arrow file."""
        import pyarrow as pa
        import pyarrow.compute as pc

        columns, content = self._parse()
        form, types = self._form.named(self._header), dict(self._form.types)
        for name in types:
            if name not in self._header:
                known = ", ".join(self._header)
                raise ValueError(f"types: no column {name!r}; columns: {known}")
        typed = {}
        for name, texts in columns.items():
            if name == form.label_column and texts.null_count:
                row = pc.is_null(texts).index(True).as_py()
                self._refuse(name, row, "the label is missing ({}); fill it in, or remove the row")
            kind = "str" if name in (form.image_column, form.key_column) else types.get(name)
            typed[name] = self._typed(name, texts, kind)
            if name == form.label_column and not pa.types.is_integer(typed[name].type):
                typed[name] = pc.utf8_trim_whitespace(texts)
        for name, values in typed.items():
            if pa.types.is_large_string(values.type) and name != form.key_column:
                encoded = values.dictionary_encode()
                typed[name] = encoded if len(encoded.dictionary) <= _MOST_TEXTS else values
        about = {"content": content, "doubts": json.dumps(self._doubts)}
        table = pa.table(typed).replace_schema_metadata(about)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
            file.write_table(table)

    def row(self, row: int) -> tuple[int, list[str]]:
        """Return the first line of a row, and its values."""
        return next(itertools.islice(self._rows(), row + 1, None))

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        try:
            yield from iter_csv(self._path, delimiter=self._delimiter, where="")
        except ValueError as error:
            raise ValueError(str(error).removeprefix(": ")) from error

    def _parse(self) -> tuple[dict[str, Any], str]:
        """Return the columns as texts, null for missing values, and a hash of the file."""
        import pyarrow as pa
        import pyarrow.csv

        if not self._header:
            raise ValueError("it is empty; write a first line with the columns' names")
        for name in self._header:
            if self._header.count(name) > 1:
                raise ValueError(f"line 1: column {name!r} stands twice; rename one")
        data = Path(self._path).read_bytes()
        try:
            if not _is_strict(data, self._delimiter):
                for _ in self._rows():  # raises where it is wrong
                    pass
            table = pa.csv.read_csv(
                pa.BufferReader(data),
                pa.csv.ReadOptions(block_size=_BLOCK_BYTES),
                pa.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=b'"' in data),
                pa.csv.ConvertOptions(
                    column_types=dict.fromkeys(self._header, pa.large_string()),
                    null_values=list(self._form.missing),
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid as error:
            if sum(1 for _ in self._rows()) > 1:  # raises where it is wrong
                raise ValueError(
                    f"cannot be read as a CSV in UTF-8 ({' '.join(str(error).split())[:300]}); "
                    f"save it as such"
                ) from error
            table = pa.table({})
        if not table.num_rows:
            raise ValueError("it has a header and no row; nothing to read")
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        return {name: table.column(name).combine_chunks() for name in self._header}, digest

    def _typed(self, name: str, texts: Any, kind: ColumnType | None) -> Any:
        """Convert a column to its type, given or the narrowest that holds every value."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if kind == "str":
            return texts
        is_number = pc.match_substring_regex(texts, _FLOAT)
        plain = pc.all(is_number).as_py() is not False
        if kind is None and not plain:
            self._note_odd(name, texts, is_number)
            return texts
        if kind != "float" and plain and not texts.null_count:
            if pc.all(pc.match_substring_regex(texts, _INTEGER)).as_py():
                return pc.replace_substring_regex(texts, r"^\+", "").cast(pa.int64())
        if plain and kind != "int":
            try:
                return texts.cast(pa.float64())
            except pa.ArrowInvalid:  # such as 5. and +1
                kind = "float"
        values: list[Any] = []
        for row, text in enumerate(texts.to_pylist()):
            try:
                values.append(None if text is None else _number(text, kind or "float"))
            except ValueError:
                self._refuse(name, row, f"{{}} is no {kind}")
            if text is None and kind == "int":
                self._refuse(name, row, "{} is missing, which int cannot hold; use float")
        return pa.array(values, pa.int64() if kind == "int" else pa.float64())

    def _note_odd(self, name: str, texts: Any, is_number: Any) -> None:
        """Note a text in a column of numbers, except codes such as 007."""
        import pyarrow.compute as pc

        odd = texts.filter(pc.invert(is_number)).drop_null()
        numbers = len(texts) - texts.null_count - len(odd)
        if len(odd) > _ODD_SHARE * numbers or any(map(_is_code, odd.unique().to_pylist())):
            return
        line, values = self.row(is_number.index(False).as_py())
        self._doubts.append(
            f"column {name!r} is taken as text: line {line} has "
            f"{values[self._header.index(name)]!r:.100}, and {numbers:,} other values are numbers; "
            f"correct it, or add it to dataset.storage.missing, or type "
            f"dataset.storage.types.{name}=str if it is text"
        )

    def _refuse(self, name: str, row: int, text: str) -> None:
        line, values = self.row(row)
        value = f"{values[self._header.index(name)]!r:.100}"
        raise ValueError(f"line {line}: {text.replace('{}', value, 1)}")


def _is_strict(data: bytes, delimiter: str) -> bool:
    """Return whether all readers agree on a file.

    Every quote opens or ends a value, and no line ends in a carriage return alone. Quotes come
    in pairs: the first of a pair starts a value, or follows the last of another pair in an
    escaped quote.
    """
    if data.count(b"\r") != data.count(b"\r\n"):
        return False
    letters = np.frombuffer(data, np.uint8)[len(_BOM) if data.startswith(_BOM) else 0 :]
    quotes = np.flatnonzero(letters == ord('"'))
    if len(quotes) % 2:
        return False
    between = np.zeros(256, np.bool_)
    between[[ord(delimiter), ord("\r"), ord("\n")]] = True
    first, last = quotes[::2], quotes[1::2]
    opens = (first == 0) | between[letters[first - 1]]
    ends = (last == len(letters) - 1) | between[letters[(last + 1) % len(letters)]]
    escaped = first[1:] == last[:-1] + 1
    opens[1:] |= escaped
    ends[:-1] |= escaped
    return bool(opens.all() and ends.all())


def _number(text: str, kind: ColumnType) -> int | float:
    """Convert a text to its type; refuses 1_0 and long integers, which Python accepts."""
    if _TYPED[kind].fullmatch(text) is None:
        raise ValueError(text)
    return int(text) if kind == "int" else float(text)


def _is_code(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@cache
def _warn_once(text: str) -> None:
    """Log a warning once, although both splits of a run may open the same file."""
    _log.warning("%s", text)
