"""Read class labels from folders, file names, CSVs and columns, and assign class ids."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.user_errors import listing
from penstock.datasets.files.access import absolute_path, is_url
from penstock.datasets.files.clients import AccessDenied
from penstock.datasets.files.local_copies import copy_file, local_copy
from penstock.datasets.files.remote import find_file
from penstock.datasets.records.label_files import LabelFile
from penstock.datasets.records.label_tables import IMAGE_COLUMNS, LabelTable
from penstock.datasets.records.matching import matched
from penstock.datasets.records.split_names import parts_among
from penstock.datasets.records.table import Table

log = logging.getLogger(__name__)

CLASSES_NAME = "classes.txt"
# Numbers that reach both `_FEW_CLASSES` and `_SPARSE` times their distinct count are codes.
_FEW_CLASSES = 1000
_SPARSE = 10
LABEL_VERSION = 6
"""Raise it when cached indexes hold other values for the same data, such as class ids."""
MISSING = ("", "NA", "NaN", "nan", "null")
"""Texts that mean a missing value."""
USUAL_LABELS = ("label", "class", "class_name", "label_name", "labelname", "category", "name")
"""Usual names of a label column, case-insensitive."""

Unlabelled = Literal["leave_out", "error"] | None
PlaceOf = Callable[[int], str]
LabelIds = tuple[NDArray[np.int32], tuple[str, ...]]
"""Class ids, int32 [n], and class names by id."""


def _refuse_parts_below(keys: Sequence[str], place: str, *, where: str) -> None:
    """Raise ValueError for class folders that contain splits: the path is one level too high."""
    pairs = sorted({tuple(key.split("/")[:2]) for key in keys if key.count("/") > 1})
    for name, group in groupby(pairs, lambda pair: pair[0]):
        if parts := parts_among(inner for _, inner in group):
            # An archive is read one part at a time.
            part = f"/{parts[0]}" if place.startswith("dataset.storage.folder=") else ""
            raise ValueError(
                f"{where}: its folder {name!r} holds {' and '.join(parts)}, parts of one data set; "
                f"type {place}{name}{part}, or name all classes: dataset.storage.classes=[...]"
            )


def names_from_pattern(texts: Sequence[str], pattern: str | None, *, where: str) -> list[str]:
    """Extract a label from each text, a file name or key, with the group of `pattern`."""
    where = f"{where}: label_pattern {pattern!r}"
    example = r"for example dataset.storage.label_pattern='^([^_]+)_', the text before the first _"
    try:
        compiled = re.compile(pattern or "")
        names = [match[1] if (match := compiled.search(text)) else "" for text in texts]
    except (re.error, IndexError) as error:
        expected = "expected a regular expression with a group ( )"
        raise ValueError(f"{where}: {error}; {expected}, {example}") from error
    if "" in names:
        text = texts[names.index("")]
        raise ValueError(f"{where} finds no label in {text[:100]!r}; change it, {example}")
    return names


def is_missing(label: str, classes: Sequence[str] | None) -> bool:
    """Return whether a text or negative number means a missing label and is not in `classes`."""
    looks_missing = label in MISSING or re.fullmatch(r"-\d+", label) is not None
    return looks_missing and (classes is None or label not in classes)


def no_label(label: str, setting: str = "dataset.storage.classes") -> str:
    """Return the message for a label that `is_missing`."""
    return (
        f"the label is missing ({label!r:.110}); fill it in, leave the record out, or, if it is a "
        f"class, list all classes in {setting}"
    )


def refuse_missing(
    labels: Sequence[str], classes: Sequence[str] | None, *, place_of: PlaceOf, where: str
) -> None:
    """Raise ValueError for a label that `is_missing`."""
    wrong = {label for label in set(labels) if is_missing(label, classes)}
    for row, label in enumerate(labels if wrong else ()):
        if label in wrong:
            raise ValueError(f"{where}: {place_of(row)}: {no_label(label)}")


def read_labels(
    path: str, columns: tuple[str, str] | None, *, classes: Sequence[str] | None = None, where: str
) -> dict[str, str]:
    """Read labels by name from two columns of a table."""
    if not os.path.exists(path):
        expected = "'folder', 'filename', null or the path of a table"
        raise ValueError(f"{where}: labels={path!r}: no such file; expected {expected}")
    table = LabelTable.read(path, where=f"{where}: labels={path}")
    given = columns or (None, None)
    setting = "dataset.storage.label_columns=[KEY,LABEL]"
    key = table.column(given[0], IMAGE_COLUMNS, "of names", setting)
    cells = table.columns[table.column(given[1], USUAL_LABELS, "of labels", setting)]
    rows = table.rows_of(key)
    missing = {cell for cell in set(cells) if is_missing(cell, classes)}
    for row, cell in enumerate(cells if missing else ()):
        if cell in missing:
            raise table.error(row, no_label(cell))
    for first, row in ((at[0], other) for at in rows.values() for other in at):
        if cells[first] != cells[row]:
            raise table.error(
                row,
                f"{table.columns[key][row][:100]!r} is {cells[row][:100]!r} here and "
                f"{cells[first][:100]!r} above; keep one row of each name; for several objects in "
                f"an image, such as faces, type dataset/annotations=labels_csv or boxes_csv",
            )
    return {name: cells[at[0]] for name, at in rows.items()}


def class_ids(names: Sequence[str], classes: Sequence[str] | None, *, where: str) -> LabelIds:
    """Assign class ids, int32 [n], to names; default classes are the sorted names or numbers."""
    found = set(names)
    if classes is None:
        numbers = all(name.isdecimal() for name in found)
        classes = sorted(found, key=lambda name: (int(name), name) if numbers else (0, name))
    ids = {name: i for i, name in enumerate(classes)}
    if len(ids) < len(classes):
        twice = next(name for i, name in enumerate(classes) if ids[name] != i)
        raise ValueError(f"{where}: class {twice!r:.100} stands twice in classes; name it once")
    if unknown := sorted(found - ids.keys()):
        raise ValueError(
            f"{where}: class {unknown[0][:100]!r} is not among the {len(ids)} classes "
            f"({listing(classes, 8)}); correct it, or add it to the training data or to classes"
        )
    return np.fromiter((ids[name] for name in names), np.int32, len(names)), tuple(classes)


def column_ids(
    values: NDArray[Any] | Sequence[str],
    *,
    names: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    place_of: PlaceOf = "record {}".format,
    where: str,
) -> LabelIds:
    """Assign class ids, int32 [n], to a column of labels; also return the class names by id.

    Numbers are class ids, named by `names` or by their digits; numbers with large gaps are codes.
    """
    if not isinstance(values, np.ndarray):
        refuse_missing(values, classes, place_of=place_of, where=where)
        return class_ids(values, classes, where=where)
    numbers = values if values.dtype.kind in "iu" else values.astype(np.int64)
    if numbers.min(initial=0) < 0:
        refuse_missing(list(map(str, numbers)), classes, place_of=place_of, where=where)
    highest = int(numbers.max()) if numbers.size else -1
    if names is not None and not (0 <= numbers.min(initial=0) and highest < len(names)):
        raise ValueError(f"{where}: label {highest}, but the data names {len(names)} classes")
    if classes is None and not (names is None and are_codes(numbers)):
        return numbers.astype(np.int32), tuple(names or map(str, range(highest + 1)))
    used, places = np.unique(numbers, return_inverse=True)
    texts = [str(number) if names is None else names[number] for number in used.tolist()]
    ids, found = class_ids(texts, classes, where=where)
    if classes is None:
        log.warning(
            "%s: %s numbers up to %s are codes of classes, whose ids follow their order; for other "
            "ids, list all in dataset.storage.classes", where, f"{len(used):,}", highest,
        )  # fmt: skip
    return ids[places], found


def are_codes(numbers: NDArray[Any]) -> bool:
    """Return whether the gaps between numbers are too large for class ids."""
    highest = int(numbers.max()) if numbers.size else -1
    return highest >= _FEW_CLASSES and highest >= _SPARSE * len(np.unique(numbers))


def check_labels(labels: NDArray[Any], names: tuple[str, ...] | None, *, where: str) -> LabelIds:
    """Check that integers [N] are class ids; return them as int32 with the class names."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        said = f"{labels.dtype} {list(labels.shape)}"
        raise ValueError(f"{where}: label is {said}, expected integers [N], class ids from 0 on")
    if labels.min(initial=0) < 0:
        row = int(labels.argmin())
        said = f"label {labels[row]}, expected a class id from 0 on; leave the row out"
        raise ValueError(f"{where}: row {row}: {said}, or save np.unique's inverse")
    if names is None and are_codes(labels):
        raise ValueError(
            f"{where}: label {labels.max()} is a code, expected class ids; save "
            f"np.unique(labels, return_inverse=True)[1], or name all classes in {CLASSES_NAME}"
        )
    return column_ids(labels, names=names, place_of="row {}".format, where=where)


def read_class_names(folder: str, *, where: str) -> tuple[str, ...] | None:
    """Read the class names in a folder's ``classes.txt``; return None without the file."""
    path = f"{folder}/{CLASSES_NAME}"
    try:
        if is_url(folder):
            found = find_file(path)
            path = "" if found is None else str(copy_file(path, found))
        text = Path(path).read_text(encoding="utf-8-sig") if path else None
    except (FileNotFoundError, NotADirectoryError, AccessDenied):  # S3 may deny a missing file
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{where}: {CLASSES_NAME} cannot be read ({error})") from error
    return None if text is None else name_lines(text, where=f"{where}: {CLASSES_NAME}")


def name_lines(text: str, *, where: str) -> tuple[str, ...]:
    """Split a file of class names into lines, without blank lines at the end."""
    names = tuple(text.rstrip().split("\n")) if text.strip() else ()
    for line, name in enumerate(names, 1):
        if not name.strip():
            raise ValueError(f"{where}: line {line} is blank; name the class, or remove the line")
    return names


def class_names(
    folder: str, classes: Sequence[str] | None, *, where: str
) -> tuple[str, ...] | None:
    """Return the given class names, or the lines of ``classes.txt``; ValueError if they differ."""
    given = None if classes is None else tuple(classes)
    names = read_class_names(folder, where=where)
    if names is not None and given is not None and names != given:
        said = f"{listing(names)}; expected {listing(given)}, as in the config or training data"
        raise ValueError(f"{where}: {CLASSES_NAME} has the classes {said}")
    return names or given


def check_images(shape: Sequence[int], dtype: str, *, where: str) -> None:
    """Raise ValueError unless arrays are decoded images, uint8 [N, H, W, C]."""
    if fault := images_fault(shape, dtype, remedy="save them so, or call the field array"):
        raise ValueError(f"{where}: {fault}")


def images_fault(shape: Sequence[int], dtype: str, *, remedy: str) -> str | None:
    """Return why arrays are not decoded images, with a remedy; return None if they are."""
    if dtype == "|u1" and len(shape) == 4 and shape[-1] in (1, 3, 4):
        return None
    if dtype == "|u1":
        remedy = "transpose them, or add an axis of channels: images[..., None]"
    got = f"{np.dtype(dtype)} {list(shape)}"
    return f"images are {got}, expected uint8 [N, H, W, C] with 1, 3 or 4 channels; {remedy}"


@dataclass
class FileLabels:
    """The labels of files: ``folder``, ``filename``, a CSV's path, which may start at `folder`.

    `unlabelled` is the rule of `matching.matched`. `place` is the setting of the files' folder.
    """

    source: str | None
    pattern: str | None
    columns: tuple[str, str] | None
    unlabelled: Unlabelled
    folder: str
    place: str

    def __post_init__(self) -> None:
        if (path := self.source) not in (None, "folder", "filename"):
            there = is_url(path) or os.path.exists(path)
            path = absolute_path(path if there else os.path.join(self.folder, path))
            self.source = local_copy(path) if is_url(path) else path

    def add_to(self, found: Table, classes: Sequence[str] | None, *, where: str) -> Table:
        """Label the files of a scan, if they have labels; drop files without a row in the CSV."""
        keys = found.keys(np.arange(len(found)))
        if self.source is None or (self.source == "folder" and not any("/" in k for k in keys)):
            return found
        if self.source == "folder":
            if loose := [key for key in keys if "/" not in key]:
                raise ValueError(
                    f"{where}: labels=folder: {len(loose):,} of {len(keys):,} files are outside "
                    f"class folders, such as {loose[0]!r}; move them, or set "
                    f"dataset.storage.labels to filename, the path of a table, or null for none"
                )
            if classes is None:
                _refuse_parts_below(keys, self.place, where=where)
            names = [key.partition("/")[0] for key in keys]
        elif self.source == "filename":
            bare = [key.rpartition("/")[2] for key in keys]
            names = names_from_pattern(bare, self.pattern, where=where)
        else:
            labels = read_labels(self.source, self.columns, classes=classes, where=where)
            entries = matched(
                keys, list(labels), self.unlabelled,
                place=self.folder, where=f"{where}: labels={self.source}", its_own=False,
                remedy="type dataset.storage.unlabelled=leave_out", instead="they are left out",
            )  # fmt: skip
            names = [labels[entry] for entry in entries if entry is not None]
            found = found.take(np.flatnonzero([entry is not None for entry in entries]))
        ids, class_names = class_ids(names, classes, where=where)
        columns = {**found.arrays, "label": ids}
        return found.replaced(columns=columns, class_names=class_names)

    def csv_version(self) -> list[int] | None:
        file = LabelFile.at(self.source or "")
        return None if file is None else [file.size_bytes, file.mtime_ns]


def refuse_twice(
    keys: Sequence[bytes], *, place_of: PlaceOf = "record {}".format, where: str, remedy: str
) -> None:
    """Raise ValueError for a duplicate key."""
    seen: dict[bytes, int] = {}
    for row, key in enumerate(keys if len(set(keys)) < len(keys) else ()):
        if (first := seen.setdefault(key, row)) != row:
            shown = f"{key.decode('utf-8', 'backslashreplace')!r:.100}"
            places = f"{place_of(first)} and {place_of(row)}"
            raise ValueError(f"{where}: key {shown} stands twice, in {places}; {remedy}")


class StreamLabels:
    """Map labels to class ids by class names, their number, or the ``classes.txt`` of `folder`."""

    def __init__(self, classes: Sequence[str] | int | None, *, folder: str = "") -> None:
        if classes is None and folder:
            classes = read_class_names(folder, where="dataset.source.classes")
        if isinstance(classes, int):
            classes = tuple(map(str, range(classes)))
        self.names = None if classes is None else tuple(classes)
        self._ids = {name: number for number, name in enumerate(self.names or ())}
        class_ids((), self.names, where="dataset.source.classes")  # raises for a name twice

    def id_of(self, label: Any) -> int:
        """Return the class id of a label, which is an id or a class name."""
        number = self._ids.get(label, label) if isinstance(label, str) else label
        if type(number) is int and number >= 0 and (self.names is None or number < len(self.names)):
            return number
        known = "a class id" if self.names is None else f"among the {len(self.names)} classes"
        raise ValueError(f"label {label!r:.110} is not {known}; set dataset.source.classes=[...]")
