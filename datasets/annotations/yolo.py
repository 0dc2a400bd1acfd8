"""Boxes from YOLO: a text file for each image, a line for each box."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from penstock.core.contracts import RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.files.access import MissingFile, read_file
from penstock.datasets.records.label_files import (
    BadBoxes,
    LabelFile,
    ObjectRows,
    Objects,
    cached_objects,
    find_labels,
    marks_of,
)
from penstock.datasets.records.labels import check_missing, name_lines

_NAMES = ("data.yaml", "dataset.yaml", "classes.txt", "obj.names")
_TOLERANCE = 0.01  # writers round


@register("annotations", "yolo")
class YoloAnnotations:
    """Boxes from YOLO: a text file for each image, a line for each box.

    A line is a class number and the box's centre, width and height as shares of the image; or, as
    for segmentation, a polygon's corners, whose box is taken. Records get ``boxes`` float32 [N, 4]
    (xyxy, pixels once the image is decoded) and ``box_labels`` int64 [N]. A record with a broken
    line is bad.

    Args:
        path: The folder of the text files; null: ``labels/{part}`` or ``{part}/labels``, in the
            data's folder or beside it. ``{part}`` is train or val.
        classes: Names of the classes by number; null: from ``data.yaml`` (``names``) or
            ``classes.txt`` in the labels' folder or one of the two above it, else the numbers.
        missing: An image without a text file: ``empty``: it has no boxes; ``error``; null: it has
            none, and more than half of the images like that are refused.
        bad_boxes: A box without area in its image is left out, and said (``drop``), or makes
            its record bad (``record``).
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        classes: list[str] | None = None,
        missing: Literal["empty", "error"] | None = None,
        bad_boxes: BadBoxes = "drop",
    ) -> None:
        self.path = path
        self.classes = classes
        self.missing = missing
        self.bad_boxes: BadBoxes = bad_boxes

    def of(self, records: RecordsToLabel) -> list[ObjectRows]:
        """Read the boxes of a storage's records; see `core.contracts.Annotations`."""
        folder, where = self._folder(records)
        # Of images/train/a.jpg, the labels are labels/train/a.txt.
        names = [key.removeprefix("images/") for key in records.keys]
        files = [LabelFile.of(name, folder, ".txt") for name in names]
        check_missing(
            records.keys, files, self.missing, where=where, what="text file",
            taken="taken as without objects", setting="dataset.annotations.missing=empty",
        )  # fmt: skip
        classes, named = (self.classes, None) if self.classes else _class_names(folder, where)

        def read() -> tuple[list[Objects | str], dict[str, Sequence[str]]]:
            found = [_parse(file, folder, classes) if file else Objects() for file in files]
            return found, {"box_labels": classes} if classes else {}

        return cached_objects(
            "yolo",
            vars(self),
            records,
            marks=marks_of([*files, named]),
            read=read,
            where=where,
            normalized=True,
        )

    def _folder(self, records: RecordsToLabel) -> tuple[str, str]:
        if self.path is not None:
            return find_labels("yolo", "folder", self.path, records)
        if not records.part:
            return find_labels("yolo", "folder", "labels", records)
        try:
            return find_labels("yolo", "folder", "{part}/labels", records)
        except ValueError:
            return find_labels("yolo", "folder", "labels/{part}", records)


def _class_names(folder: str, where: str) -> tuple[list[str] | None, LabelFile | None]:
    """Find the names of the classes by number, and the file that has them.

    Raises:
        ValueError: The file has none.
    """
    for above in (Path(folder), *Path(folder).parents[:2]):
        for name in _NAMES:
            if file := LabelFile.at(str(above / name)):
                return _read_names(file, where), file
    return None, None


def _read_names(file: LabelFile, where: str) -> list[str]:
    said = f"{where}: {file.path}"
    try:
        text = Path(file.path).read_text("utf-8-sig")
        if not file.path.endswith(".yaml"):
            return [name.strip() for name in name_lines(text, where=said)]
        content = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{said} cannot be read: {str(error).splitlines()[0]}") from error
    names: Any = content.get("names") if isinstance(content, dict) else None
    if isinstance(names, dict) and sorted(names) == list(range(len(names))):
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list) or not names:
        raise ValueError(
            f"{said} has no names: of every class from 0 up; add them, or give "
            f"dataset.annotations.classes=[...]"
        )
    return [str(name) for name in names]


def _parse(file: LabelFile, root: str, classes: Sequence[str] | None) -> Objects | str:
    """Parse the boxes of a text file, or say what is wrong with it."""
    name = os.path.basename(file.path)
    found = Objects(size=(1, 1))
    try:
        lines = read_file(file.path, root=root).decode("utf-8-sig").splitlines()
        for number, line in enumerate(lines, start=1):
            if line.strip():
                label, box = _object(line.split(), f"line {number}", classes)
                found.names.append(label)
                found.boxes.append(box)
    except MissingFile as error:
        return f"{name} {error}"
    except UnicodeDecodeError:
        return f"{name} is no text"
    except ValueError as error:
        return f"{name}: {error}"
    return found


def _object(
    words: Sequence[str], line: str, classes: Sequence[str] | None
) -> tuple[str, tuple[float, float, float, float]]:
    """Read the class, and left, top, right and bottom edge, of a line.

    Raises:
        ValueError: It has other words.
    """
    try:
        label, values = int(words[0]), [float(word) for word in words[1:]]
    except ValueError:
        raise ValueError(f"{line} is {' '.join(words)[:60]!r}, expected numbers") from None
    if label < 0 or (classes is not None and label >= len(classes)):
        many = f"0 to {len(classes) - 1}" if classes is not None else "0 or more"
        raise ValueError(f"{line} has class {label}, expected {many}")
    if len(values) < 4 or len(values) % 2:
        raise ValueError(
            f"{line} has {len(values)} numbers behind the class, expected 4 (x, y, width, height) "
            f"or the x and y of a polygon's corners"
        )
    if not all(-_TOLERANCE <= value <= 1 + _TOLERANCE for value in values):
        raise ValueError(f"{line} has numbers outside of 0 to 1, expected shares of the image")
    if len(values) == 4:
        x, y, width, height = values
        edges = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    else:
        edges = (min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2]))
    return (str(label) if classes is None else classes[label]), edges
