"""Read class labels from folders, file names, CSVs and columns, and assign class ids."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.datasets.files.access import absolute_path, is_url
from penstock.datasets.files.clients import AccessDenied
from penstock.datasets.files.listings import find_file
from penstock.datasets.files.local_copies import copy_file, local_copy
from penstock.datasets.records.label_tables import IMAGE_COLUMNS, LabelTable
from penstock.datasets.records.matching import matched
from penstock.datasets.records.split_names import parts_among
from penstock.datasets.records.table import Table

log = logging.getLogger(__name__)

CLASSES_NAME = "classes.txt"
_MOST_CLASSES = 1 << 24
# Class ids must be below this number or the number of records.
_MANY_CLASSES = 1 << 20
# Numbers that reach both `_FEW_CLASSES` and `_SPARSE` times their distinct count are codes.
_FEW_CLASSES = 1000
_SPARSE = 10
LABEL_VERSION = 3
"""Raise it when class ids of the same labels change: cached indexes hold class ids."""
MISSING = ("", "NA", "NaN", "nan", "null")
"""Texts that mean a missing value."""
LABEL_COLUMNS = ("key", "label")
USUAL_LABELS = ("label", "class", "class_name", "label_name", "labelname", "category", "name")
"""Usual names of a label column, case-insensitive."""
_NEGATIVE = re.compile(r"-\d+")


Unlabelled = Literal["leave_out", "error"] | None
LabelIds = tuple[NDArray[np.int32], tuple[str, ...]]
"""Class ids, int32 [n], and class names by id."""


def names_from_folders(keys: Sequence[str], *, where: str) -> list[str]:
    """Return the first folder of each key as its label."""
    names = [key.partition("/")[0] if "/" in key else "" for key in keys]
    if "" in names:
        loose = [key for key, name in zip(keys, names, strict=True) if not name]
        raise ValueError(
            f"{where}: labels=folder: {len(loose):,} of {len(keys):,} files are outside class "
            f"folders, such as {loose[0]!r}; move them, or type dataset.storage.labels=filename "
            f"'dataset.storage.label_pattern=^([^_]+)_', dataset.storage.labels=<a CSV's path>, or "
            f"dataset.storage.labels=null for none"
        )
    return names


def _refuse_parts_below(keys: Sequence[str], place: str, *, where: str) -> None:
    """Raise ValueError for class folders that contain splits: the path is one level too high."""
    below: dict[str, set[str]] = {}
    for key in keys:
        if key.count("/") > 1:
            name, inner, _ = key.split("/", 2)
            below.setdefault(name, set()).add(inner)
    for name in sorted(below):
        if parts := parts_among(below[name]):
            folder = f"{place}{name}"
            if place.startswith("dataset.storage.folder="):  # an archive is read one part at a time
                folder = f"{folder}/{parts[0]}"
            raise ValueError(
                f"{where}: its folder {name!r} holds {' and '.join(parts)}, which look like parts "
                f"of one data set; to use them, type {folder}; if {name!r} is a class, name all "
                f"classes with dataset.storage.classes=[...]"
            )


def names_from_pattern(texts: Sequence[str], pattern: str | None, *, where: str) -> list[str]:
    """Extract a label from each text, a file name or key, with the group of `pattern`."""
    example = r"dataset.storage.label_pattern='^([^_]+)_' takes what stands before the first _"
    if pattern is None:
        raise ValueError(f"{where}: labels=filename needs a label_pattern; for example {example}")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"{where}: label_pattern {pattern!r} is not a regular expression ({error}); {example}"
        ) from error
    group: str | int = "label" if "label" in compiled.groupindex else 1
    if not compiled.groups:
        raise ValueError(f"{where}: label_pattern {pattern!r} lacks a group ( ); {example}")
    names = []
    for text in texts:
        match = compiled.search(text)
        if match is None or not match.group(group):
            raise ValueError(
                f"{where}: label_pattern {pattern!r} finds no label in {text[:100]!r}; change it, "
                f"{example}"
            )
        names.append(match.group(group))
    return names


def is_missing(label: str, classes: Sequence[str] | None, missing: Sequence[str] = MISSING) -> bool:
    """Return whether a text or negative number means a missing label and is not in `classes`."""
    if label not in missing and _NEGATIVE.fullmatch(label) is None:
        return False
    return classes is None or label not in classes


def listed(setting: str, *names: str) -> str:
    """Return the setting that lists classes as the user types it, with the first `names`."""
    more = [] if 1 < len(names) <= 8 else ["..."]
    shown = [*(name[:100] for name in names[:8]), *more]
    return f"'{setting}={json.dumps(shown, ensure_ascii=False, separators=(',', ':'))}'"


def read_labels(
    path: str,
    columns: tuple[str, str],
    *,
    classes: Sequence[str] | None = None,
    where: str,
) -> dict[str, str]:
    """Read labels by name from two columns of a table."""
    if not os.path.exists(path):
        raise ValueError(
            f"{where}: labels={path!r}: no such file; expected 'folder', 'filename', null or the "
            f"path of a table with the columns {','.join(columns)}"
        )
    table = LabelTable.read(path, where=f"{where}: labels={path}")
    usual = columns == LABEL_COLUMNS and not set(columns) <= set(table.columns)
    given = (None, None) if usual else columns
    setting = "dataset.storage.label_columns=[KEY,LABEL]"
    key = table.column(given[0], IMAGE_COLUMNS, "of names", setting)
    cells = table.columns[table.column(given[1], USUAL_LABELS, "of labels", setting)]
    labels: dict[str, str] = {}
    several: list[tuple[int, int]] = []
    for name, rows in table.rows_of(key).items():
        for row in rows:
            if not cells[row]:
                raise ValueError(
                    f"{table.where}: {table.at(row)}: the label is empty; fill it in or remove the "
                    f"{table.unit}"
                )
            if is_missing(cells[row], classes):
                raise ValueError(
                    f"{table.where}: {table.at(row)}: the label is missing ({cells[row]!r}); fill "
                    f"it in or remove the {table.unit}, or, if it is a class, list all classes: "
                    f"{listed('dataset.storage.classes', cells[row])}"
                )
        labels[name] = cells[rows[0]]
        several += [(rows[0], row) for row in rows if cells[row] != cells[rows[0]]][:1]
    if several:
        first, other = several[0]
        raise ValueError(
            f"{table.where}: {table.at(other)}: {table.columns[key][other][:100]!r} is "
            f"{cells[other][:100]!r} here and {cells[first][:100]!r} above, and so are "
            f"{len(several):,} names; keep one row of each; if an image shows several objects, "
            f"such as faces, type dataset/annotations=labels_csv for several labels or boxes_csv "
            f"for boxes, or crop each object to an image"
        )
    return labels


def class_ids(names: Sequence[str], classes: Sequence[str] | None, *, where: str) -> LabelIds:
    """Assign class ids, int32 [n], to label names; also return the class names.

    By default the classes are the sorted names (numbers by value).
    """
    found = set(names)
    if classes is None:
        numbers = all(name.isdecimal() for name in found)
        classes = sorted(found, key=lambda name: (int(name), name) if numbers else (0, name))
    ids = {name: i for i, name in enumerate(classes)}
    if len(ids) < len(classes):
        twice = next(name for i, name in enumerate(classes) if ids[name] != i)
        raise ValueError(
            f"{where}: class {twice[:100]!r} stands twice in classes; name every class once"
        )
    if unknown := sorted(found - ids.keys()):
        raise ValueError(
            f"{where}: class {unknown[0][:100]!r} is not among the {len(ids)} classes "
            f"({_shortened(classes)}); remove its files, or add it to "
            f"the training data (or to classes, if those are given)"
        )
    return np.fromiter((ids[name] for name in names), np.int32, len(names)), tuple(classes)


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(name[:100] for name in names[:8]) + (", ..." if len(names) > 8 else "")


def column_ids(
    values: NDArray[Any] | Sequence[str],
    *,
    names: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    missing: Sequence[str] = MISSING,
    where: str,
) -> LabelIds:
    """Assign class ids, int32 [n], to a column of labels; also return the class names by id.

    Numbers are class ids, named by `names` or by their digits. Numbers with large gaps are codes:
    their ids follow their order, with a warning. `classes` sets the ids, so that equal names have
    equal ids in all splits. `missing` texts mean a missing label, unless they are in `classes`.
    """
    if not isinstance(values, np.ndarray):
        wrong = {name for name in set(values) if is_missing(name, classes, missing)}
        if wrong:
            row = next(row for row, name in enumerate(values) if name in wrong)
            raise ValueError(
                f"{where}: the label of record {row} is missing ({values[row]!r}); fill it in or "
                f"remove the record, or, if it is a class, list all classes: "
                f"{listed('dataset.storage.classes', values[row])}"
            )
        return class_ids(values, classes, where=where)
    numbers = values.astype(np.int64)
    for row in np.flatnonzero(numbers < 0).tolist():
        if names is not None or is_missing(str(numbers[row]), classes):
            raise ValueError(
                f"{where}: label {numbers[row]} in record {row}, expected 0 or more; give every "
                f"record a label, leave the column out, or, if it is a class of numbers without "
                f"names, list all classes: {listed('dataset.storage.classes', str(numbers[row]))}"
            )
    if names is None:
        return _number_ids(numbers, classes, where=where)
    if (highest := int(numbers.max(initial=-1))) >= len(names):
        raise ValueError(f"{where}: label {highest}, but the data names {len(names)} classes")
    if classes is None or tuple(classes) == tuple(names):
        return numbers.astype(np.int32), tuple(names)
    used = np.unique(numbers)
    ids = np.zeros(len(names), np.int32)
    ids[used], found = class_ids([names[i] for i in used.tolist()], classes, where=where)
    return ids[numbers], found


def _number_ids(
    numbers: NDArray[np.int64], classes: Sequence[str] | None, *, where: str
) -> LabelIds:
    """Assign class ids to integers without names; see `column_ids`."""
    highest = int(numbers.max(initial=-1))
    if classes is None and highest >= max(_MANY_CLASSES, len(numbers)):
        raise ValueError(
            f"{where}: label {highest} in {len(numbers):,} records is not a class id; name the "
            f"column that holds the labels, or list all classes: "
            f"{listed('dataset.storage.classes', str(highest))}"
        )
    if classes is None and not are_codes(numbers):
        return numbers.astype(np.int32), tuple(map(str, range(highest + 1)))
    used, places = np.unique(numbers, return_inverse=True)
    ids, names = class_ids(list(map(str, used.tolist())), classes, where=where)
    if classes is None:
        log.warning(
            "%s: %s different numbers up to %s are codes of classes, numbered from 0 in their "
            "order; to number them otherwise, list all classes: %s",
            where, f"{len(used):,}", highest, listed("dataset.storage.classes", *names),
        )  # fmt: skip
    return ids[places], names


def are_codes(numbers: NDArray[Any]) -> bool:
    """Return whether the gaps between numbers are too large for class ids."""
    highest = int(numbers.max()) if numbers.size else -1
    return highest >= _FEW_CLASSES and highest >= _SPARSE * len(np.unique(numbers))


def check_labels(labels: NDArray[Any], names: tuple[str, ...] | None, *, where: str) -> LabelIds:
    """Check that integers [N] are class ids; return them as int32 with the class names."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{where}: label is {labels.dtype} {list(labels.shape)}, expected integers [N], "
            f"class ids from 0 on; save it so, or give the file another name"
        )
    most = _MOST_CLASSES if names is None else len(names)
    wrong = np.flatnonzero((labels < 0) | (labels >= most))
    if wrong.size:
        known = "" if names is None else f": there are {most} classes"
        raise ValueError(
            f"{where}: label {labels[wrong[0]]} in row {wrong[0]}, expected 0 to {most - 1}"
            f"{known}; correct it, or leave such rows out"
        )
    if names is None and are_codes(labels):
        count, highest = len(np.unique(labels)), int(labels.max())
        raise ValueError(
            f"{where}: label {highest} among {count:,} different labels is a code, expected class "
            f"ids; save np.unique(labels, return_inverse=True)[1] instead, or name the classes 0 "
            f"to {highest} by id in {CLASSES_NAME}"
        )
    names = names or tuple(str(i) for i in range(int(labels.max()) + 1))
    return labels.astype(np.int32), names


def read_class_names(folder: str, *, where: str) -> tuple[str, ...] | None:
    """Read the class names in a folder's ``classes.txt``; return None without the file."""
    try:
        path = Path(folder, CLASSES_NAME)
        if is_url(folder):
            url = f"{folder}/{CLASSES_NAME}"
            if (found := find_file(url)) is None:
                return None
            path = copy_file(url, found)
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except AccessDenied:
        _tell_denied(f"{folder}/{CLASSES_NAME}")
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{where}: {CLASSES_NAME} cannot be read ({error})") from error
    return name_lines(text, where=f"{where}: {CLASSES_NAME}")


def name_lines(text: str, *, where: str) -> tuple[str, ...]:
    """Split a file of class names into lines, without blank lines at the end."""
    names = text.split("\n")
    while names and not names[-1].strip():
        names.pop()
    for number, name in enumerate(names, start=1):
        if not name.strip():
            raise ValueError(f"{where}: line {number} is blank; name the class, or remove the line")
    return tuple(names)


@cache
def _tell_denied(url: str) -> None:
    """Warn once that a file with denied access counts as missing."""
    log.warning(
        "%s: access is denied, which S3 also says of a file that is not there, to a key that may "
        "not list its bucket; taken as not there",
        url,
    )


def class_names(
    folder: str | None, classes: Sequence[str] | None, *, where: str
) -> tuple[str, ...] | None:
    """Return the given class names, or the lines of ``classes.txt``; ValueError if they differ."""
    given = None if classes is None else tuple(classes)
    names = None if folder is None else read_class_names(folder, where=where)
    if names is None:
        return given
    if given is not None and names != given:
        raise ValueError(
            f"{where}: {CLASSES_NAME} has other classes than dataset.storage.classes or the "
            f"training data; give both the same names in the same order"
        )
    return names


def check_images(shape: Sequence[int], dtype: str, *, where: str) -> None:
    """Raise ValueError unless arrays are decoded images, uint8 [N, H, W, C]."""
    if fault := images_fault(shape, dtype, remedy="save them so, or call the field array"):
        raise ValueError(f"{where}: {fault}")


def images_fault(shape: Sequence[int], dtype: str, *, remedy: str) -> str | None:
    """Return why arrays are not decoded images, with a remedy; return None if they are."""
    if dtype == "|u1" and len(shape) == 4 and shape[-1] in (1, 3, 4):
        return None
    if dtype == "|u1" and len(shape) == 4 and shape[1] in (1, 3, 4):
        remedy = "put the channels last: images.transpose(0, 2, 3, 1)"
    elif dtype == "|u1" and len(shape) == 3:
        remedy = "give them an axis of channels: images[..., None]"
    return (
        f"images are {np.dtype(dtype)} {list(shape)}, expected uint8 [N, H, W, C] with 1, 3 or 4 "
        f"channels; {remedy}"
    )


class FileLabels(NamedTuple):
    """The labels of files, from their folder, their name or a CSV.

    Attributes:
        source: ``folder``, ``filename``, ``file`` (labels in the files), the absolute path of a
            CSV, or None for no labels.
        pattern: For ``filename``: a regular expression whose group is the label.
        columns: The key and label columns of a CSV.
        unlabelled: Rule for files without a row in the CSV; see `matching.check_missing`.
        folder: The data's folder.
    """

    source: str | None
    pattern: str | None
    columns: tuple[str, str]
    unlabelled: Unlabelled
    folder: str

    @classmethod
    def of(
        cls,
        labels: str | None,
        pattern: str | None,
        columns: Sequence[str],
        unlabelled: Unlabelled,
        *,
        folder: str,
        own: bool = False,
    ) -> FileLabels:
        """Interpret the configured labels; a relative CSV path may start at the data's `folder`."""
        if labels not in (None, "folder", "filename") and not (own and labels == "file"):
            inside = os.path.join(folder, labels)
            labels = labels if is_url(labels) or os.path.exists(labels) else inside
            labels = absolute_path(labels)
            if is_url(labels) and find_file(labels) is not None:
                labels = local_copy(labels)
        key, label = columns
        return cls(labels, pattern, (key, label), unlabelled, folder)

    def add_to(
        self, found: Table, classes: Sequence[str] | None, *, where: str, place: str
    ) -> Table:
        """Label the files of a scan; drop files that lack a row in the CSV.

        `place` is the override for the data's folder: ``dataset.storage.path=pets/``.
        """
        assert self.source is not None
        texts = found.keys(np.arange(len(found)))
        names: Sequence[str | None]
        if self.source == "folder":
            names = names_from_folders(texts, where=where)
            if classes is None:
                _refuse_parts_below(texts, place, where=where)
        elif self.source == "filename":
            bare = [text.rpartition("/")[2] for text in texts]
            names = names_from_pattern(bare, self.pattern, where=where)
        else:
            labels = read_labels(self.source, self.columns, classes=classes, where=where)
            entries = matched(
                texts,
                list(labels),
                self.unlabelled,
                place=self.folder,
                where=f"{where}: labels={self.source}",
                taken="left out",
                setting="dataset.storage.unlabelled=leave_out",
                its_own=False,
            )
            names = [None if entry is None else labels[entry] for entry in entries]
        given = [name for name in names if name is not None]
        if not given and names:
            raise ValueError(f"{where}: labels={self.source}: no file has a label there")
        ids, class_names = class_ids(given, classes, where=where)
        if len(given) < len(names):
            rows = np.array([row for row, name in enumerate(names) if name is not None])
            taken = found.take(rows)
            found = found.replaced(keys=taken.raw_keys(), columns=taken.arrays)
        return found.replaced(columns={**found.arrays, "label": ids}, class_names=class_names)

    def csv_version(self) -> list[int] | None:
        """Return size and mtime in ns of the CSV, to detect changes; None without a CSV."""
        if self.source in (None, "folder", "filename", "file"):
            return None
        try:
            status = os.stat(self.source)
        except OSError:
            return None
        return [status.st_size, status.st_mtime_ns]


def refuse_twice(
    keys: Sequence[bytes], *, where: str, remedy: str = "take a column whose values differ"
) -> None:
    """Raise ValueError for a duplicate key."""
    if rows := find_twice(keys):
        raise ValueError(
            f"{where}: key {keys[rows[0]].decode(errors='backslashreplace')!r:.100} stands twice, "
            f"in the records {rows[0]} and {rows[1]}; {remedy}"
        )


def find_twice(keys: Sequence[bytes]) -> tuple[int, int] | None:
    """Return two rows with the same key, or None."""
    if len(set(keys)) == len(keys):
        return None
    seen: dict[bytes, int] = {}
    return next(
        (seen[key], row) for row, key in enumerate(keys) if seen.setdefault(key, row) != row
    )


def _quoted(value: Any) -> str:
    return repr(value[:100] if isinstance(value, str) else value)[:110]


class StreamLabels:
    """Map the labels of a stream to class ids, without seeing all labels first.

    `classes` are names by id, or their number, or by default the lines of ``classes.txt`` in
    `folder`. Without class names, labels must be ids.
    """

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
        if isinstance(label, str) and label in self._ids:
            return self._ids[label]
        if isinstance(label, int) and not isinstance(label, bool):
            if label >= 0 and (self.names is None or label < len(self.names)):
                return label
        if self.names is None:
            raise ValueError(
                f"label {_quoted(label)} is not a class id; give the class names by id: "
                f"dataset.source.classes=[...]"
            )
        raise ValueError(
            f"label {_quoted(label)} is not among the {len(self.names)} classes; correct it, or "
            f"dataset.source.classes"
        )
