"""Read class labels from folders, file names, CSVs, columns and streams; give them class ids."""

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
from penstock.datasets.records.index import IndexContent
from penstock.datasets.records.label_tables import IMAGE_COLUMNS, LabelTable
from penstock.datasets.records.matching import matched
from penstock.datasets.records.split_names import parts_among

log = logging.getLogger(__name__)

CLASSES_NAME = "classes.txt"
_MOST_CLASSES = 1 << 24
# Class ids are below this number, or below the number of records.
_MANY_CLASSES = 1 << 20
# Whole numbers below the first, or below so many times their different values, are class ids.
_FEW_CLASSES = 1000
_SPARSE = 10
LABEL_VERSION = 3
"""Raise it where the class ids of the same labels change: indexes in caches hold class ids."""
MISSING = ("", "NA", "NaN", "nan", "null")
"""Texts that stand for a missing value."""
LABEL_COLUMNS = ("key", "label")
USUAL_LABELS = ("label", "class", "class_name", "label_name", "labelname", "category", "name")
"""Usual names of a column of labels, in any case."""
_NEGATIVE = re.compile(r"-\d+")


Unlabelled = Literal["leave_out", "error"] | None
LabelIds = tuple[NDArray[np.int32], tuple[str, ...]]
"""Class ids, int32 [n], and the names of the classes by id."""


def names_from_folders(keys: Sequence[str], *, where: str) -> list[str]:
    """Take the first folder of each key as its label.

    Raises:
        ValueError: A file lies in no folder.
    """
    names = [key.partition("/")[0] if "/" in key else "" for key in keys]
    if "" in names:
        loose = [key for key, name in zip(keys, names, strict=True) if not name]
        raise ValueError(
            f"{where}: labels=folder: {len(loose):,} of {len(keys):,} files lie in no class "
            f"folder, such as {loose[0]!r}; move them, or type dataset.storage.labels=filename "
            f"'dataset.storage.label_pattern=^([^_]+)_', dataset.storage.labels=<a CSV's path>, or "
            f"dataset.storage.labels=null for none"
        )
    return names


def _refuse_parts_below(keys: Sequence[str], place: str, *, where: str) -> None:
    """Refuse class folders that hold the parts of a data set: the path is one level too high."""
    below: dict[str, set[str]] = {}
    for key in keys:
        if key.count("/") > 1:
            name, inner, _ = key.split("/", 2)
            below.setdefault(name, set()).add(inner)
    for name in sorted(below):
        if parts := parts_among(below[name]):
            folder = f"{place}{name}"
            if place.startswith("dataset.storage.folder="):  # one part of an archive at a time
                folder = f"{folder}/{parts[0]}"
            raise ValueError(
                f"{where}: its folder {name!r} holds {' and '.join(parts)}, which look like parts "
                f"of one data set; to use them, type {folder}; if {name!r} is a class, name all "
                f"classes with dataset.storage.classes=[...]"
            )


def names_from_pattern(texts: Sequence[str], pattern: str | None, *, where: str) -> list[str]:
    """Find a label in each text, a file's name or a key, by the group of `pattern`.

    Raises:
        ValueError: No pattern, one that is wrong, or a name that it does not fit.
    """
    example = r"dataset.storage.label_pattern='^([^_]+)_' takes what stands before the first _"
    if pattern is None:
        raise ValueError(f"{where}: labels=filename needs a label_pattern; for example {example}")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"{where}: label_pattern {pattern!r} is no regular expression ({error}); {example}"
        ) from error
    group: str | int = "label" if "label" in compiled.groupindex else 1
    if not compiled.groups:
        raise ValueError(f"{where}: label_pattern {pattern!r} has no group ( ); {example}")
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
    """Return whether a text, or a number below 0, stands for a missing label.

    A label that `classes` name is never missing.
    """
    if label not in missing and _NEGATIVE.fullmatch(label) is None:
        return False
    return classes is None or label not in classes


def listed(setting: str, *names: str) -> str:
    """Write the setting that lists classes as it is typed, with the first of `names`."""
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
    """Read labels by name from two columns of a table.

    Raises:
        ValueError: The file is not such a table, a label is missing, or a name has two labels.
    """
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
    """Number label names: class ids, and the class names by id.

    Args:
        names: The label of each record, [n].
        classes: The class names by id; None: those that occur, in order (numbers by value).
        where: The storage, for messages.

    Returns:
        int32 [n], and the class names.

    Raises:
        ValueError: A label that is not among `classes`, or one of these twice.
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
    """Number a column of labels.

    Numbers are class ids, and `names` or their digits are the names of the classes. Numbers with
    large gaps between them are codes: their ids follow their order, and a warning says so.
    `classes` changes ids so that equal names have equal ids in every part of a data set.

    Args:
        values: Integers or bools [n], or n names.
        names: Class names by number, where the data has them.
        classes: Class names by id to be used; None: the classes in `values`.
        missing: Texts that stand for a missing label, unless `classes` name them.
        where: The storage and the column, for messages.

    Returns:
        int32 [n], and the class names by id.

    Raises:
        ValueError: A label is missing or below 0, or is not among `names` or `classes`.
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
    """Number labels that are whole numbers without names; see `column_ids`."""
    highest = int(numbers.max(initial=-1))
    if classes is None and highest >= max(_MANY_CLASSES, len(numbers)):
        raise ValueError(
            f"{where}: label {highest} in {len(numbers):,} records is no class id; name the "
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
    """Return whether gaps between numbers are too large for class ids."""
    highest = int(numbers.max()) if numbers.size else -1
    return highest >= _FEW_CLASSES and highest >= _SPARSE * len(np.unique(numbers))


def check_labels(labels: NDArray[Any], names: tuple[str, ...] | None, *, where: str) -> LabelIds:
    """Check that labels are class ids.

    Args:
        labels: Integers [N].
        names: Class names by id; None: the ids are their names.
        where: The storage, for messages.

    Returns:
        int32 [N], and the names of the classes.

    Raises:
        ValueError: They are no class ids, or one has no class.
    """
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
    """Read the class names in a folder's ``classes.txt``, a line each, if there is one.

    Raises:
        ValueError: It cannot be read.
    """
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
    """Split a file of class names, a line each, without blank lines at the end.

    Raises:
        ValueError: Another line is blank, so the ids of the names below it are not known.
    """
    names = text.split("\n")
    while names and not names[-1].strip():
        names.pop()
    for number, name in enumerate(names, start=1):
        if not name.strip():
            raise ValueError(f"{where}: line {number} is blank; name the class, or remove the line")
    return tuple(names)


@cache
def _tell_denied(url: str) -> None:
    """Say once that a file is taken for one that is not there."""
    log.warning(
        "%s: access is denied, which S3 also says of a file that is not there, to a key that may "
        "not list its bucket; taken as not there",
        url,
    )


def class_names(
    folder: str | None, classes: Sequence[str] | None, *, where: str
) -> tuple[str, ...] | None:
    """Choose the class names that are given, or those beside the arrays; both must be the same.

    Args:
        folder: Where ``classes.txt`` may lie, a name per line.
        classes: The names that are given, by id.
        where: The storage, for messages.

    Raises:
        ValueError: They are not.
    """
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
    """Raise ValueError for arrays that are no decoded images, uint8 [N, H, W, C]."""
    if fault := images_fault(shape, dtype, remedy="save them so, or call the field array"):
        raise ValueError(f"{where}: {fault}")


def images_fault(shape: Sequence[int], dtype: str, *, remedy: str) -> str | None:
    """Tell why arrays are no decoded images, and the remedy; None where they are."""
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
    """Label files by their folder, their name, or a CSV.

    Attributes:
        source: ``folder``, ``filename``, ``file`` (their own), the absolute path of a CSV, or
            None for no labels.
        pattern: For ``filename``: a regular expression whose group is the label.
        columns: The columns of a CSV: the keys', the labels'.
        unlabelled: Files that a CSV has no row for: see `matching.check_missing`.
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
        """Read what a config says; a CSV's relative path may also lie in the data's `folder`.

        Args:
            labels: What the config says.
            pattern: See `FileLabels`.
            columns: See `FileLabels`.
            unlabelled: See `FileLabels`.
            folder: The data's folder.
            own: Whether the files can hold labels themselves.
        """
        if labels not in (None, "folder", "filename") and not (own and labels == "file"):
            inside = os.path.join(folder, labels)
            labels = labels if is_url(labels) or os.path.exists(labels) else inside
            labels = absolute_path(labels)
            if is_url(labels) and find_file(labels) is not None:
                labels = local_copy(labels)
        key, label = columns
        return cls(labels, pattern, (key, label), unlabelled, folder)

    def add_to(
        self, found: IndexContent, classes: Sequence[str] | None, *, where: str, place: str
    ) -> IndexContent:
        """Label the files of a scan, whose keys are paths below the data's folder.

        Args:
            found: The content of the scan.
            classes: Class names by id; None: the labels found, sorted.
            where: The storage, for messages.
            place: The override that names the data's folder: ``dataset.storage.path=pets/``.

        Returns:
            The content with ``label`` and class names, without files that have no row in the CSV.

        Raises:
            ValueError: Too many files have no row, a key has no label, or a class folder holds the
                parts of a data set.
        """
        assert self.source is not None
        keys: Sequence[str | bytes] = found.get("keys") or ()
        if pattern := found.get("key_pattern"):
            start = found["key_start"]
            keys = [pattern.format(start + i) for i in range(found["count"] or 0)]
        texts = [
            key if isinstance(key, str) else key.decode("utf-8", "backslashreplace") for key in keys
        ]
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
        columns = {**found["columns"]}
        if len(given) < len(names):
            rows = [row for row, name in enumerate(names) if name is not None]
            columns = {name: column[rows] for name, column in columns.items()}
            left = [keys[row] for row in rows]
            found = {"keys": left, "columns": columns, "metadata": found.get("metadata", {})}
        return {**found, "columns": {**columns, "label": ids}, "class_names": class_names}

    def csv_version(self) -> list[int] | None:
        """Stat the CSV, if there is one: size and mtime in ns, to tell whether it has changed."""
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
    """Raise ValueError if a key stands twice."""
    if rows := find_twice(keys):
        raise ValueError(
            f"{where}: key {keys[rows[0]].decode(errors='backslashreplace')!r:.100} stands twice, "
            f"in the records {rows[0]} and {rows[1]}; {remedy}"
        )


def find_twice(keys: Sequence[bytes]) -> tuple[int, int] | None:
    """Find two rows of one key."""
    if len(set(keys)) == len(keys):
        return None
    seen: dict[bytes, int] = {}
    return next(
        (seen[key], row) for row, key in enumerate(keys) if seen.setdefault(key, row) != row
    )


def _quoted(value: Any) -> str:
    return repr(value[:100] if isinstance(value, str) else value)[:110]


class StreamLabels:
    """Number labels that come one by one: nobody has seen all of their classes before.

    Args:
        classes: Class names by id, or how many there are; None: the lines of ``classes.txt`` in
            `folder`, if it is there, and else labels have to be ids.
        folder: Where the data lies; empty if it lies in no folder.

    Attributes:
        names: Class names by id, or None.

    Raises:
        ValueError: A name stands twice.
    """

    def __init__(self, classes: Sequence[str] | int | None, *, folder: str = "") -> None:
        if classes is None and folder:
            classes = read_class_names(folder, where="dataset.source.classes")
        if isinstance(classes, int):
            classes = tuple(map(str, range(classes)))
        self.names = None if classes is None else tuple(classes)
        self._ids = {name: number for number, name in enumerate(self.names or ())}
        if self.names is not None and len(self._ids) < len(self.names):
            twice = next(name for n, name in enumerate(self.names) if self._ids[name] != n)
            raise ValueError(f"dataset.source.classes: {twice!r} stands twice; name it once")

    def id_of(self, label: Any) -> int:
        """Give the class id of a label, which is an id or the name of a class.

        Raises:
            ValueError: It is none.
        """
        if isinstance(label, str) and label in self._ids:
            return self._ids[label]
        if isinstance(label, int) and not isinstance(label, bool):
            if label >= 0 and (self.names is None or label < len(self.names)):
                return label
        if self.names is None:
            raise ValueError(
                f"label {_quoted(label)} is no class id; give the class names by id: "
                f"dataset.source.classes=[...]"
            )
        raise ValueError(
            f"label {_quoted(label)} is not among the {len(self.names)} classes; correct it, or "
            f"dataset.source.classes"
        )
