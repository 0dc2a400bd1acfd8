"""Read boxes and keypoints from YOLO: a text file per image, a line per object."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from penstock.core.contracts import RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.annotations.rows import BadBoxes, LabelSource, ObjectRows, Objects
from penstock.datasets.files.access import MissingFile, read_file
from penstock.datasets.records.label_files import LabelFile, find_labels, matched_files
from penstock.datasets.records.labels import name_lines

_NAMES = ("data.yaml", "dataset.yaml", "classes.txt", "obj.names")
_TOLERANCE = 0.01  # for rounded numbers
_MOST_CORNERS = 8  # numbers of a triangle or an oriented box

Point = tuple[float, float, float]
"""A keypoint: x, y and visibility."""


@register("annotations", "yolo")
class YoloAnnotations:
    """Read boxes and keypoints from YOLO: a text file per image, a line per object.

    A line contains a class number, and the box's centre, width and height as fractions of the
    image. With ``kpt_shape`` in ``data.yaml``, keypoints follow; otherwise a longer line is a
    polygon, and its bounding box is used. Records get ``boxes`` float32 [N, 4] (xyxy, pixels once
    the image is decoded) and ``box_labels`` int64 [N]; with ``kpt_shape`` also ``keypoints``
    float32 [K, 3], concatenated over objects. A broken line makes its record bad.

    Args:
        path: The folder of the text files; null: ``labels/{part}`` or ``{part}/labels``, in the
            data's folder or beside it. ``{part}`` is train or val.
        classes: Class names by number; null: from ``data.yaml`` (``names``) or ``classes.txt`` in
            the labels' folder or two levels above, otherwise the numbers.
        missing: Accept images without a text file as ``empty``, or raise an ``error``. null: accept
            them with a warning, up to half of the images.
        bad_boxes: For a box without area in its image: ``drop`` it with a warning, or make its
            ``record`` bad.
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
        """Read the boxes of records; see `core.contracts.Annotations`."""
        folder, where = self._folder(records)
        files = matched_files(records, folder, ".txt", self.missing, where=where, what="text file")
        named = None if self.classes else _describing(folder)
        classes = self.classes or (None if named is None else _read_names(named, where))
        lines, described = _lines(folder, where)

        def read() -> tuple[list[Objects | str], dict[str, Sequence[str]]]:
            found = [lines.parse(file, folder, classes) if file else Objects() for file in files]
            lines.check(described.path if described else f"{folder}/{_NAMES[0]}", where)
            names = {"box_labels": classes or (), "keypoints": lines.keypoints}
            return found, {field: of_field for field, of_field in names.items() if of_field}

        source = LabelSource("yolo", vars(self), records, [*files, named, described], where)
        return source.objects(read, normalized=True)

    def _folder(self, records: RecordsToLabel) -> tuple[str, str]:
        if self.path is not None:
            return find_labels("yolo", "folder", self.path, records)
        if not records.part:
            return find_labels("yolo", "folder", "labels", records)
        try:
            return find_labels("yolo", "folder", "{part}/labels", records)
        except ValueError:
            return find_labels("yolo", "folder", "labels/{part}", records)


def _describing(folder: str, *endings: str) -> LabelFile | None:
    """Return the first file beside or above the labels that describes them."""
    places = (Path(folder), *Path(folder).parents[:2])
    names = [name for name in _NAMES if name.endswith(endings or "")]
    return next(filter(None, (LabelFile.at(f"{p}/{name}") for p in places for name in names)), None)


def _read_names(file: LabelFile, where: str) -> list[str]:
    said = f"{where}: {file.path}"
    text = _read_text(file, said)
    if not file.path.endswith(".yaml"):
        return [name.strip() for name in name_lines(text, where=said)]
    names: Any = _read_yaml(text, said).get("names")
    if isinstance(names, dict) and sorted(names) == list(range(len(names))):
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list) or not names:
        raise ValueError(
            f"{said} lacks names: of every class from 0 up; add them, or give "
            f"dataset.annotations.classes=[...]"
        )
    return [str(name) for name in names]


def _read_text(file: LabelFile, said: str) -> str:
    try:
        return Path(file.path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{said} cannot be read: {str(error).splitlines()[0]}") from error


def _read_yaml(text: str, said: str) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{said} cannot be read: {str(error).splitlines()[0]}") from error
    return content if isinstance(content, dict) else {}


def _lines(folder: str, where: str) -> tuple[_Lines, LabelFile | None]:
    """Return the line format, and the file that states it."""
    file = _describing(folder, ".yaml")
    if file is None:
        return _Lines(), None
    said = f"{where}: {file.path}"
    content = _read_yaml(_read_text(file, said), said)
    if (shape := content.get("kpt_shape")) is None:
        return _Lines(stated="kpt_shape" in content), file
    numbers = isinstance(shape, list) and list(map(type, shape)) == [int, int]
    if not numbers or shape[0] < 1 or shape[1] not in (2, 3):
        raise ValueError(
            f"{said}: kpt_shape is {shape!r}, expected [K, 2] or [K, 3] for K keypoints of x and "
            f"y, or of x, y and visibility; correct it"
        )
    count, values = shape
    return _Lines(count, values, True, _keypoint_names(content, count)), file


def _keypoint_names(content: Mapping[str, Any], count: int) -> list[str]:
    """Return ``kpt_names`` if all classes share them, otherwise an empty list."""
    names = content.get("kpt_names")
    of_classes = list(names.values()) if isinstance(names, dict) else [names]
    first = of_classes[0] if of_classes else None
    if not isinstance(first, list) or any(each != first for each in of_classes):
        return []
    return list(map(str, first)) if len(first) == count else []


@dataclass(slots=True)
class _Lines:
    """The line format of all files; without `points`, longer lines are polygons.

    `values` numbers describe a keypoint: x and y, or x, y and visibility. `counts` and `like_pose`
    record whether lines may be boxes with keypoints.
    """

    points: int = 0
    values: int = 2
    stated: bool = False
    keypoints: list[str] = field(default_factory=list)
    counts: set[int] = field(default_factory=set)
    like_pose: bool = True

    def parse(self, file: LabelFile, root: str, classes: Sequence[str] | None) -> Objects | str:
        """Parse the objects of a text file, or return the cause of a bad record."""
        name = os.path.basename(file.path)
        found = Objects(size=(1, 1))
        try:
            lines = read_file(file.path, root=root).decode("utf-8-sig").splitlines()
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    said = f"line {number}"
                    label, values = _label_and_values(line.split(), said, classes)
                    box, points = self._object(values, said)
                    found.names.append(label)
                    found.boxes.append(box)
                    found.keypoints += points
        except MissingFile as error:
            return f"{name} {error}"
        except UnicodeDecodeError:
            return f"{name} is no text"
        except ValueError as error:
            return f"{name}: {error}"
        return found

    def check(self, path: str, where: str) -> None:
        """Reject lines that may be polygons or keypoints, after all files are parsed."""
        [count] = self.counts if len(self.counts) == 1 else [0]
        if not self.stated and self.like_pose and count > _MOST_CORNERS:
            raise ValueError(
                f"{where}: each line has {count} numbers behind the class, a polygon's corners or "
                f"a box and its keypoints; beside names in {path}, write kpt_shape: "
                f"[{(count - 4) // 2}, 2] for keypoints of x and y, or kpt_shape: null for polygons"
            )

    def _object(self, values: Sequence[float], line: str) -> tuple[Sequence[float], list[Point]]:
        """Convert the numbers of a line to a box and its keypoints."""
        expected = 4 + self.points * self.values
        if self.points and len(values) != expected:
            raise ValueError(
                f"{line} has {len(values)} numbers behind the class, expected {expected} (a box, "
                f"and kpt_shape: [{self.points}, {self.values}])"
            )
        if len(values) < 4 or (len(values) % 2 and not self.points):
            raise ValueError(
                f"{line} has {len(values)} numbers behind the class, expected 4 (x, y, width, "
                f"height), the x and y of a polygon's corners, or keypoints as kpt_shape in "
                f"{_NAMES[0]} states"
            )
        points = [tuple(values[at : at + self.values]) for at in range(4, expected, self.values)]
        shares = [*values[:4], *(share for point in points for share in point[:2])]
        if not all(
            -_TOLERANCE <= value <= 1 + _TOLERANCE for value in (shares if points else values)
        ):
            raise ValueError(f"{line} has numbers outside of 0 to 1, expected shares of the image")
        self.counts.add(len(values))
        if points:
            return _edges(values), [_keypoint(point, line) for point in points]
        if len(values) == 4:
            return _edges(values), []
        xs, ys = values[::2], values[1::2]
        if self.like_pose:
            left, top, right, bottom = _edges(values)
            across = left - _TOLERANCE <= min(xs[2:]) <= max(xs[2:]) <= right + _TOLERANCE
            down = top - _TOLERANCE <= min(ys[2:]) <= max(ys[2:]) <= bottom + _TOLERANCE
            self.like_pose = across and down
        return (min(xs), min(ys), max(xs), max(ys)), []


def _label_and_values(
    words: Sequence[str], line: str, classes: Sequence[str] | None
) -> tuple[str, list[float]]:
    """Return the class name of a line's words, and the numbers after it."""
    try:
        label, values = int(words[0]), [float(word) for word in words[1:]]
    except ValueError:
        raise ValueError(f"{line} is {' '.join(words)[:60]!r}, expected numbers") from None
    if label < 0 or (classes is not None and label >= len(classes)):
        many = f"0 to {len(classes) - 1}" if classes is not None else "0 or more"
        raise ValueError(f"{line} has class {label}, expected {many}")
    return (str(label) if classes is None else classes[label]), values


def _edges(values: Sequence[float]) -> tuple[float, float, float, float]:
    """Return the left, top, right and bottom edge of a box."""
    x, y, width, height = values[:4]
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _keypoint(values: Sequence[float], line: str) -> Point:
    """Return a keypoint; without visibility, a keypoint at (0, 0) is unlabelled."""
    x, y, *stated = values
    visibility = stated[0] if stated else 2.0 * (x != 0 or y != 0)
    if visibility not in (0, 1, 2):
        raise ValueError(f"{line} has a keypoint of visibility {visibility:g}, expected 0, 1 or 2")
    return x, y, visibility
