"""Index LMDB files of other writers: which keys are records, and the places of their parts.

A layout answers three questions: the form of the records' keys, the form of a value, and the
other keys of a record (its label, its text, a JSON object).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.json_text import parse_json
from penstock.datasets.records.labels import column_ids, names_from_pattern
from penstock.datasets.records.table import Table
from penstock.datasets.storages.lmdb.pages import Entry, scan_lmdb

# Keys of metadata that well-known writers add.
_COUNTERS = frozenset(
    b"num-samples num_samples __len__ __keys__ __length__ length keys classes".split()
)
_FIELD = re.compile(r"%0?\d*d|\{[^{}]*\}")
_VALUE = re.compile(r"(?:label:(?P<first>\w+)\+)?image(?:\+label:(?P<last>\w+))?")


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """Form of a value: the type of its label, if any, and whether the label precedes the image."""

    label: np.dtype[Any] | None
    label_first: bool

    @property
    def label_bytes(self) -> int:
        """Length of the label."""
        return 0 if self.label is None else self.label.itemsize

    @classmethod
    def parse(cls, text: str, *, where: str) -> ValueFormat:
        """Parse a format such as ``image``, ``label:uint32+image`` or ``image+label:int64be``."""
        match = _VALUE.fullmatch(text)
        name = match and (match["first"] or match["last"])
        number = re.fullmatch(r"(u?int(?:8|16|32|64))(le|be)?", name) if name else None
        if match is None or (match["first"] and match["last"]) or (name and number is None):
            raise ValueError(
                f"{where}: value_format {text!r}; expected 'image', 'label:<type>+image' or "
                f"'image+label:<type>' with a type such as uint8, int32 or uint32be"
            )
        if number is None:
            return cls(None, False)
        dtype = np.dtype(number[1]).newbyteorder(">" if number[2] == "be" else "<")
        return cls(dtype, bool(match["first"]))


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a file; see `LmdbStorage` for the options."""

    key_format: str
    value_format: str
    label_key: str | None
    text_key: str | None
    metadata_key: str | None
    label_pattern: str | None
    database: str | None


def scan_foreign(data: str, layout: Layout, classes: Sequence[str] | None, *, where: str) -> Table:
    """Index the records of a file of another writer; `classes` None: the classes found.

    Columns: offset and size_bytes of the image, label if any, and for the other keys
    ``text_offset``, ``text_bytes``, ``metadata_offset``, ``metadata_bytes``.

    Raises:
        ValueError: The file is damaged or has another layout.
    """
    entries = {entry.key: entry for entry in scan_lmdb(data, database=layout.database)}
    records = _records(entries, layout, where=where)
    value_format = ValueFormat.parse(layout.value_format, where=where)
    main = [entry for _, entry in records]
    label_bytes = value_format.label_bytes
    shift = label_bytes if value_format.label_first else 0
    columns: dict[str, NDArray[Any]] = {
        "offset": np.array([entry.offset + shift for entry in main], np.int64),
        "size_bytes": np.array([max(e.size_bytes - label_bytes, 0) for e in main], np.uint32),
    }
    with open(data, "rb", buffering=0) as file:
        descriptor = file.fileno()
        _refuse_pickles(descriptor, main[0], where=where)
        for name, pattern in (("text", layout.text_key), ("metadata", layout.metadata_key)):
            if pattern is not None:
                parts = _parts(records, entries, pattern, where=where)
                columns[f"{name}_offset"] = np.array([e.offset for e in parts], np.int64)
                columns[f"{name}_bytes"] = np.array([e.size_bytes for e in parts], np.uint32)
        labels = _labels(descriptor, records, entries, layout, value_format, where=where)
    class_names = None
    if labels is not None:
        columns["label"], class_names = column_ids(
            labels, classes=classes, where=f"{where}: labels by value_format or label_key"
        )
    keys = [entry.key for entry in main]
    return Table(keys, columns, class_names)


def _records(
    entries: dict[bytes, Entry], layout: Layout, *, where: str
) -> list[tuple[int | str, Entry]]:
    """Return number (or key text) and entry of every record, in order."""
    if layout.key_format != "sorted":
        records = _numbered(entries, layout.key_format, where=where)
    else:
        names = [key.decode("utf-8", "surrogateescape") for key in entries]
        others = {
            format_key(pattern, name)
            for pattern in (layout.label_key, layout.text_key, layout.metadata_key)
            if pattern is not None
            for name in names
        }
        records = [
            (name, entry)
            for name, entry in zip(names, entries.values(), strict=True)
            if entry.key not in others and entry.key not in _COUNTERS
        ]
    if not records:
        some = ", ".join(repr(key.decode(errors="backslashreplace")) for key in list(entries)[:3])
        raise ValueError(
            f"{where}: no key fits key_format {layout.key_format!r}; the file has "
            f"{len(entries):,} keys{f', such as {some}' if some else ''}; expected 'sorted' (every "
            f"key is a record) or a format of a number, such as 'image-%09d' or '{{:08d}}'"
        )
    return records


def _numbered(
    entries: dict[bytes, Entry], key_format: str, *, where: str
) -> list[tuple[int | str, Entry]]:
    fields = list(_FIELD.finditer(key_format))
    if len(fields) != 1:
        raise ValueError(
            f"{where}: key_format {key_format!r}: expected 'sorted' or a format of one number, "
            f"such as 'image-%09d' or '{{:08d}}'"
        )
    try:
        format_key(key_format, 1)
    except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{where}: key_format {key_format!r} does not format a number ({error}); expected one "
            f"such as 'image-%09d' or '{{:08d}}'"
        ) from error
    before, after = key_format[: fields[0].start()], key_format[fields[0].end() :]
    shape = re.compile(re.escape(before.encode()) + rb"(\d+)" + re.escape(after.encode()))
    numbered = []
    for key, entry in entries.items():
        match = shape.fullmatch(key)
        if match is not None and format_key(key_format, int(match[1])) == key:
            numbered.append((int(match[1]), entry))
    return sorted(numbered, key=lambda record: record[0])


def format_key(pattern: str, name: int | str) -> bytes:
    """Format a pattern with ``%`` or ``{}`` with a number or another key."""
    text = pattern % name if "%" in pattern else pattern.format(name)
    return text.encode("utf-8", "surrogateescape")


def _parts(
    records: list[tuple[int | str, Entry]], entries: dict[bytes, Entry], pattern: str, *, where: str
) -> list[Entry]:
    """Return the entry that `pattern` names for every record."""
    parts = []
    for name, entry in records:
        try:
            parts.append(entries[format_key(pattern, name)])
        except KeyError as error:
            raise ValueError(
                f"{where}: record {entry.key.decode(errors='backslashreplace')!r} lacks the key "
                f"{error.args[0].decode(errors='backslashreplace')!r}; check {pattern!r}"
            ) from None
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"{where}: {pattern!r} cannot be formatted with {name!r} ({error}); expected one "
                f"field, such as 'label-%09d' or '{{}}.txt'"
            ) from error
    return parts


def _refuse_pickles(descriptor: int, entry: Entry, *, where: str) -> None:
    start = os.pread(descriptor, min(2, entry.size_bytes), entry.offset)
    if len(start) == 2 and start[0] == 0x80 and 2 <= start[1] <= 5:
        raise ValueError(
            f"{where}: the values look pickled; reading them would run code from the file; "
            f"write image bytes instead"
        )


def _labels(
    descriptor: int,
    records: list[tuple[int | str, Entry]],
    entries: dict[bytes, Entry],
    layout: Layout,
    value_format: ValueFormat,
    *,
    where: str,
) -> NDArray[Any] | list[str] | None:
    """Read the label of every record, class ids [n] or names; None without labels."""
    if value_format.label is not None:
        size = value_format.label_bytes
        ids = np.zeros(len(records), value_format.label)
        for row, (_, entry) in enumerate(records):
            at = 0 if value_format.label_first else max(entry.size_bytes - size, 0)
            raw = os.pread(descriptor, min(size, entry.size_bytes), entry.offset + at)
            if len(raw) == size:  # a shorter value lacks the image too: a bad sample
                ids[row] = np.frombuffer(raw, value_format.label)[0]
        return ids
    if layout.label_pattern is not None:
        keys = [entry.key.decode("utf-8", "backslashreplace") for _, entry in records]
        return names_from_pattern(keys, layout.label_pattern, where=where)
    if layout.label_key is not None:
        parts = _parts(records, entries, layout.label_key, where=where)
        return [_text(descriptor, entry, where=where).strip() for entry in parts]
    if layout.metadata_key is not None:
        parts = _parts(records, entries, layout.metadata_key, where=where)
        labels = [_json_label(_text(descriptor, e, where=where), e, where=where) for e in parts]
        return None if None in labels else [str(label) for label in labels]
    return None


def _text(descriptor: int, entry: Entry, *, where: str) -> str:
    try:
        return os.pread(descriptor, entry.size_bytes, entry.offset).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: the value of {entry.key!r} is no text ({error})") from error


def _json_label(text: str, entry: Entry, *, where: str) -> Any:
    try:
        return parse_json(text).get("label")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{where}: the value of {entry.key!r} is no JSON object") from error
