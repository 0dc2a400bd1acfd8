"""Read boxes and keypoints from YOLO: a text file per image, a line per object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

import yaml

from penstock.core.contracts import RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.annotations.label_source import Found, LabelSource, Objects, RecordFields
from penstock.datasets.records.label_files import LabelFile
from penstock.datasets.records.labels import name_lines

_TOLERANCE = 0.01  # for rounded numbers
_MOST_CORNERS = 8  # numbers of a triangle or an oriented box


@register("annotations", "yolo")
@dataclass
class YoloAnnotations:
    """Read boxes and keypoints from YOLO: a text file per image, a line per object.

    With ``kpt_shape`` in ``data.yaml``, lines have keypoints; otherwise longer lines are polygons.
    Records get ``boxes`` float32 [N, 4] (xyxy, pixels once the image is decoded), ``box_labels``
    int64 [N], and with ``kpt_shape`` ``keypoints`` float32 [K, 3].

    Args:
        path: The folder, in the data's folder or beside it; null: ``{part}/labels`` (train or val)
            or ``labels/{part}``.
        classes: Class names; null: from ``data.yaml`` or ``classes.txt``, up to two folders above.
        missing: Accept images without a file as ``empty``, or raise an ``error``. null: up to half.
    """

    path: str | None = None
    _: KW_ONLY
    classes: list[str] | None = None
    missing: Literal["empty", "error"] | None = None

    def of(self, records: RecordsToLabel) -> list[RecordFields]:
        usual = ("{part}/labels", "labels/{part}") if records.part else ("labels",)
        source = LabelSource.find(self, records, "folder", *([self.path] if self.path else usual))
        files = source.match_files(".txt", what="text file")
        places = (Path(source.path), *Path(source.path).parents[:2])
        described, named = (
            next(filter(None, (LabelFile.at(f"{place}/{name}") for place in places)), None)
            for name in ("data.yaml", "classes.txt")
        )
        source.files = [*source.files, described, named]
        layout = _Layout(self.classes)
        if described:
            layout.read(described.path, f"{source.where}: {described.path}")
        if layout.classes is None and named:
            text = Path(named.path).read_text("utf-8-sig")
            names = name_lines(text, where=f"{source.where}: {named.path}")
            layout.classes = list(map(str.strip, names))

        def read() -> Found:
            objects = source.parsed(files, layout.add)
            layout.check(source.where)
            names = {"box_labels": layout.classes or (), "keypoints": layout.keypoints}
            return objects.found({k: of_k for k, of_k in names.items() if of_k}, normalized=True)

        return [RecordFields(source.table(read))]


@dataclass(slots=True)
class _Layout:
    """The layout of all lines; without `points`, longer lines are polygons."""

    classes: Sequence[str] | None
    points: int = 0
    values: int = 2
    stated: bool = False
    keypoints: list[str] = field(default_factory=list)
    counts: set[int] = field(default_factory=set)
    like_pose: bool = True

    def read(self, path: str, said: str) -> None:
        """Read ``data.yaml``."""
        try:
            content = yaml.safe_load(Path(path).read_text("utf-8-sig"))
        except yaml.YAMLError as error:
            raise ValueError(f"{said} cannot be read: {str(error).splitlines()[0]}") from error
        content = content if isinstance(content, dict) else {}
        names = content.get("names")
        if isinstance(names, dict) and names.keys() == set(range(len(names))):
            names = [names[number] for number in range(len(names))]
        if self.classes is None and names is not None:
            if not isinstance(names, list) or not names:
                raise ValueError(f"{said} lacks names: of every class from 0 up; add them")
            self.classes = list(map(str, names))
        self.stated = "kpt_shape" in content
        match content.get("kpt_shape"):
            case None:
                return
            case [int(points), 2 | 3 as values] if points > 0:
                self.points, self.values = points, values
                named = content.get("kpt_names")
                named = next(iter(named.values()), None) if isinstance(named, dict) else named
                self.keypoints = list(map(str, named)) if isinstance(named, list) else []
            case shape:
                expected = "[K, 2] or [K, 3] for K keypoints of x, y, or x, y, visibility"
                raise ValueError(f"{said}: kpt_shape is {shape!r}, expected {expected}")

    def check(self, where: str) -> None:
        """Reject lines that may be polygons or keypoints, after all files are parsed."""
        count = max(self.counts, default=0)
        if not self.stated and self.like_pose and self.counts == {count} and count > _MOST_CORNERS:
            said = f"each line has {count} numbers behind the class; write into data.yaml"
            shape = f"kpt_shape: [{(count - 4) // 2}, 2]"
            raise ValueError(
                f"{where}: {said} {shape} for keypoints, or kpt_shape: null for polygons"
            )

    def add(self, text: bytes, row: int, objects: Objects) -> None:
        """Add the objects of a record."""
        for number, line in enumerate(text.decode("utf-8-sig").splitlines(), start=1):
            if words := line.split():
                self._add(words, f"line {number}", row, objects)

    def _add(self, words: Sequence[str], line: str, row: int, objects: Objects) -> None:
        """Add the object of a line: its class, and its box with keypoints, or its polygon."""
        try:
            label, values = int(words[0]), list(map(float, words[1:]))
        except ValueError:
            raise ValueError(f"{line} is {' '.join(words)[:60]!r}, expected numbers") from None
        count, expected = len(values), 4 + self.points * self.values
        if label < 0 or (self.classes is not None and label >= len(self.classes)):
            many = "0 or more" if self.classes is None else f"0 to {len(self.classes) - 1}"
            raise ValueError(f"{line} has class {label}, expected {many}")
        if count != expected if self.points else count < 4 or count % 2:
            said = f"{line} has {count} numbers behind the class, expected {expected} (a box, and "
            raise ValueError(f"{said}keypoints by kpt_shape in data.yaml), or a polygon's corners")
        points = [values[n : n + self.values] for n in range(4, count, self.values) if self.points]
        places = chain(values[:4], *(point[:2] for point in points)) if self.points else values
        if not all(-_TOLERANCE <= place <= 1 + _TOLERANCE for place in places):
            raise ValueError(f"{line} has numbers outside of 0 to 1, expected shares of the image")
        x, y, width, height = values[:4]
        edges = x - width / 2, y - height / 2, x + width / 2, y + height / 2
        self.counts.add(count)
        if count > 4 and not self.points:
            xs, ys = values[::2], values[1::2]
            within = all(
                low - _TOLERANCE <= min(side[2:]) and max(side[2:]) <= high + _TOLERANCE
                for side, low, high in ((xs, edges[0], edges[2]), (ys, edges[1], edges[3]))
            )
            self.like_pose = self.like_pose and within
            edges = min(xs), min(ys), max(xs), max(ys)
        for x, y, *stated in points:  # without visibility, (0, 0) is unlabelled
            visibility = stated[0] if stated else 2.0 * (x != 0 or y != 0)
            if visibility not in (0, 1, 2):
                raise ValueError(f"{line} has a keypoint of visibility {visibility:g}")
            objects.points.append((row, x, y, visibility))
        objects.names.append(str(label) if self.classes is None else self.classes[label])
        objects.boxes.append((row, *edges))
