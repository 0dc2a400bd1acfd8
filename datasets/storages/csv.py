"""Read records in the rows of a CSV file, with images in files beside it.

The file is parsed once into an Arrow file in the machine's cache, which all reads map.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import Any

from penstock.core.machine_cache import computed_once, sent, signature_of
from penstock.core.registry import register
from penstock.core.sample import RecordError
from penstock.datasets.columnar.form import TableForm, damage
from penstock.datasets.columnar.storage import TableStorage
from penstock.datasets.files.access import RangeFile, is_url
from penstock.datasets.files.data_files import DataFiles
from penstock.datasets.files.local_copies import local_copy
from penstock.datasets.records.label_tables import iter_csv
from penstock.datasets.records.labels import MISSING
from penstock.datasets.storages.arrow import ArrowFile

_BLOCK_BYTES = 1 << 25  # no row may be longer
_PARSER = 6  # raise it when the same file gives other columns
_MISSING = (*MISSING, "?", "N/A", "n/a", "NULL")
_CODE = "^ *[+-]?0[0-9xX]"  # a code such as 007 is text
_LONG = "^ *[+-]?[0-9]{16,} *$"  # an integer that a float may round


@dataclass(frozen=True, repr=False)
class Csv(TableForm):
    """CSV files; see `CsvStorage` for the options."""

    name = "csv"
    endings = (".csv", ".tsv")
    image_names = ("image", "file_name", "filename", "path")
    always = (*image_names, "label")
    open = ArrowFile


@dataclass(frozen=True, slots=True)
class ParsedFiles(DataFiles):
    """CSV files whose content is read from their parsed `copies`."""

    copies: tuple[str, ...] = ()

    def open(self, name: str) -> RangeFile:
        return RangeFile(self.copies[self.names.index(name)])

    def refuse_changed(self, number: int) -> None:
        """Allow a new CSV file beside a running one: the copy stays."""

    def __reduce__(self) -> tuple[Any, ...]:
        copies = tuple(map(sent, self.copies))
        return ParsedFiles, (self.root, self.names, self.marks, self.compressed, self.host, copies)


@register("storage", "csv")
class CsvStorage(TableStorage):
    """A CSV file: every row is a record, every column a field of its name.

    The first line names the columns, each of the narrowest type that holds its values. Spaces
    around names, numbers and labels do not count; texts keep theirs. Missing values (empty,
    ``NA``, ``NaN``, ``null``, ``?``) are NaN among numbers, and None among texts. The file is
    parsed once, until it changes; a run keeps the columns that it opened first.

    Args:
        path: The file, or the folder of ``train.csv`` and ``val.csv``. Commas, tabs, semicolons or
            ``|`` separate values, as in the first line; tabs in ``.tsv`` files.
        image_column: The column of the images' paths; None: the first of ``image``, ``file_name``,
            ``filename`` and ``path``.
        label_column: The column of class ids or names; None: ``label``; an empty text: no labels.
        key_column: The column of the keys; None: ``key``, else the images' paths, else row numbers.
        length_column: Integers: the index's column ``length``.
        columns: The other columns to read; None: all.
        root: The folder of image paths, which these may not leave (``/`` allows absolute paths);
            None: the file's folder.
        classes: Class names by id; None: the classes found, sorted.
        cache_bytes: Unused: the columns are mapped.
    """

    name = "csv"
    form_class = Csv

    def _find_files(self) -> DataFiles:
        files, copies = super()._find_files(), []
        for path, mark in zip(files.paths, files.marks, strict=True):
            signature = signature_of(path=path, mark=mark, form=repr(self.form), version=_PARSER)
            copy, _ = computed_once(
                f"table-{signature}",
                ".arrow",
                make=lambda copy, path=path: self._parse(path, copy),  # type: ignore[misc]
                load=lambda copy: ArrowFile(RangeFile(str(copy))),  # raises if it is damaged
                what=f"columns of {path}",
            )
            copies.append(str(copy))
        return ParsedFiles(files.root, files.names, files.marks, copies=tuple(copies))

    def read_paths(self) -> list[str]:
        """Return the folder of the images; the rows are in the cache."""
        return [] if self._roles.paths is None else [self._image_root]

    def _place_of(self, row: int) -> str:
        rows = chain.from_iterable(islice(_rows(path), 1, None) for path in self._files.paths)
        return f"line {next(islice(rows, row, None))[0]}"

    def _parse(self, path: str, copy: Path) -> None:
        """Write the typed columns of a file as an Arrow file."""
        import pyarrow as pa
        import pyarrow.csv

        _, names = next(_rows(path), (0, []))
        if not names:
            raise ValueError(f"csv {path}: it is empty; write a first line with the columns' names")
        local, delimiter = _local(path)
        data = Path(local).read_bytes()
        read = pa.csv.ReadOptions(block_size=_BLOCK_BYTES)
        parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=b'"' in data)
        convert = pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.large_string()))
        try:
            with damage():
                table = pa.csv.read_csv(pa.BufferReader(data), read, parse, convert)
        except RecordError as error:
            deque(_rows(path), 0)  # raises where it is wrong
            raise ValueError(f"csv {path}: {error}") from error
        if b'"' in data or data.count(b"\r") != data.count(b"\r\n"):
            deque(_rows(path), 0)  # raises for an open quote, which pyarrow does not notice
        names = [name.strip() for name in names]
        columns = [self._typed(*pair) for pair in zip(names, table.columns, strict=True)]
        table = pa.table(columns, names=names).combine_chunks()
        with pa.OSFile(str(copy), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
            file.write_table(table)

    def _typed(self, name: str, texts: Any) -> Any:
        """Convert a column to the narrowest type that holds every value."""
        import pyarrow as pa
        import pyarrow.compute as pc

        form = self.form
        if name == ("label" if form.label_column is None else form.label_column):
            # A missing label is refused with its text.
            kinds, texts = [pa.int64()], pc.utf8_trim_whitespace(texts)
        else:
            is_missing = pc.is_in(pc.utf8_trim_whitespace(texts), pa.array(_MISSING, texts.type))
            kinds, texts = [pa.int64(), pa.float64()], pc.if_else(is_missing, None, texts)
        is_key = name in (form.key_column, form.image_column, "key", *form.image_names)
        if is_key or pc.any(pc.match_substring_regex(texts, _CODE)).as_py():
            return texts
        for kind in kinds:  # spaces may follow the commas
            with suppress(pa.ArrowInvalid):
                numbers = pc.utf8_trim_whitespace(texts).cast(kind)
                if kind == pa.int64() and not numbers.null_count:
                    return numbers
                long = texts.filter(pc.match_substring_regex(texts, _LONG)).to_pylist()
                return numbers if all(Decimal(text) == float(text) for text in long) else texts
        return texts


def _local(path: str) -> tuple[str, str]:
    """Return the path of a file on this machine, and its delimiter."""
    local = local_copy(path) if is_url(path) else path
    with open(local, "rb") as file:
        first = file.readline().decode(errors="replace")
    return local, "\t" if path.endswith(".tsv") else max(",;\t|", key=first.count)


def _rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the values of each row, and raise where the file is wrong."""
    local, delimiter = _local(path)
    return iter_csv(local, delimiter=delimiter, where=f"csv {path}")
