"""Class labels of files: from folders, from file names, from a CSV; and their class ids."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def names_from_folders(keys: Sequence[str], *, where: str) -> list[str]:
    """The first folder of each key.

    Raises:
        ValueError: A file lies in no folder.
    """
    names = [key.partition("/")[0] if "/" in key else "" for key in keys]
    if "" in names:
        loose = [key for key, name in zip(keys, names, strict=True) if not name]
        raise ValueError(
            f"{where}: labels=folder: {len(loose):,} of {len(keys):,} files lie in no class "
            f"folder, such as {loose[0]!r}; move them, or use labels=filename with a "
            f"label_pattern, labels=<a CSV's path>, or labels=null for none"
        )
    return names


def names_from_pattern(texts: Sequence[str], pattern: str | None, *, where: str) -> list[str]:
    """What the group of `pattern` finds in each text: a file's name, or a key.

    Raises:
        ValueError: No pattern, one that is wrong, or a name that it does not fit.
    """
    example = r"label_pattern='^([^_]+)_' takes what stands before the first _"
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
                f"{where}: label_pattern {pattern!r} finds no label in {text!r}; change it, "
                f"{example}"
            )
        names.append(match.group(group))
    return names


def names_from_csv(keys: Sequence[str], path: str, *, where: str) -> list[str]:
    """The labels that a CSV with the columns `key` and `label` gives to the keys.

    A key stands there as the path in the data set, with or without its ending. Rows of files
    that are not there are not looked at: one CSV may serve several folders.

    Raises:
        ValueError: The file is no such CSV (the message names the line), or files are missing.
    """
    labels = read_label_csv(path, where=where)
    names, missing = [], []
    for key in keys:
        name = labels.get(key)
        if name is None:
            name = labels.get(os.path.splitext(key)[0])
        if name is None:
            missing.append(key)
        names.append(name or "")
    if missing:
        raise ValueError(
            f"{where}: labels={path}: {len(missing):,} of {len(keys):,} files have no row, such "
            f"as key {missing[0]!r}; add them (a key is the path below the storage's folder)"
        )
    return names


def read_label_csv(path: str, *, where: str) -> dict[str, str]:
    """Labels by key from a CSV; see `names_from_csv`."""
    labels: dict[str, str] = {}
    place = f"{where}: labels={path}"
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            if not {"key", "label"} <= set(header):
                raise ValueError(
                    f"{place}: line 1: got the columns {header}, expected key and label; write "
                    f"a first line with these names"
                )
            key_at, label_at = header.index("key"), header.index("label")
            for row in reader:
                if not row:
                    continue
                line = reader.line_num
                if len(row) != len(header):
                    raise ValueError(
                        f"{place}: line {line}: got {len(row)} values, expected {len(header)}; "
                        f'put values that contain commas in "quotes"'
                    )
                key, label = row[key_at].strip(), row[label_at].strip()
                if not key or not label:
                    raise ValueError(
                        f"{place}: line {line}: the {'label' if key else 'key'} is empty; fill "
                        f"it in or take the line out"
                    )
                if labels.setdefault(key, label) != label:
                    raise ValueError(
                        f"{place}: line {line}: {key!r} is {label!r} here and {labels[key]!r} "
                        f"above; keep one of the lines"
                    )
    except FileNotFoundError:
        raise ValueError(
            f"{where}: labels={path!r}: no such file; expected 'folder', 'filename', null or the "
            f"path of a CSV with the columns key,label"
        ) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{place}: cannot be read as a CSV in UTF-8 ({error}); save it as such"
        ) from error
    return labels


def class_ids(
    names: Sequence[str], classes: Sequence[str] | None, *, where: str
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Class ids of label names, and the class names by id.

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
        raise ValueError(f"{where}: class {twice!r} stands twice in classes; name every class once")
    if unknown := sorted(found - ids.keys()):
        raise ValueError(
            f"{where}: class {unknown[0]!r} is not among the {len(ids)} classes "
            f"({_shortened(classes)}); remove its files, or add it to "
            f"the training data (or to classes, if those are given)"
        )
    return np.fromiter((ids[name] for name in names), np.int32, len(names)), tuple(classes)


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
