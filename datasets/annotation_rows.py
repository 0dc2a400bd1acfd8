"""Boxes and keypoints of all records as rows of a memory-mapped index, some for each record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datasets.annotations.labels import class_ids
from datasets.index import Index, write_index
from datasets.index_cache import cached_index
from datasets.protocols import RecordsToLabel

log = logging.getLogger(__name__)

BadBoxes = Literal["drop", "record"]
NORMALIZED = "boxes_normalized"
_BOX = ("x0", "y0", "x1", "y1")
_POINT = ("x", "y", "visibility")

Names = Mapping[str, Sequence[str]]
"""What annotated numbers are called, by field."""


@dataclass(slots=True)
class Objects:
    """What a label file says of one record.

    Attributes:
        boxes: Left, top, right and bottom edge, in pixels, [N, 4].
        names: The class of each box, [N].
        extras: More about each box by name, integers [N], such as ``difficult``.
        keypoints: x, y, in pixels, and visibility 0, 1 or 2, [K, 3].
        size: Width and height of the image, if the file says them.
    """

    boxes: list[Sequence[float]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    extras: dict[str, list[int]] = field(default_factory=dict)
    keypoints: list[Sequence[float]] = field(default_factory=list)
    size: tuple[int, int] | None = None


class ObjectRows:
    """The boxes, or keypoints, of every record; satisfies `protocols.RecordAnnotations`.

    Args:
        index: A row for each object, sorted by its column ``record``.
        count: The number of records.
        normalized: Boxes are shares of their image, which its decoder knows the size of: they
            are ``boxes_normalized`` until then.
    """

    def __init__(self, index: Index, count: int, *, normalized: bool = False) -> None:
        self._index = index
        self._count = count
        self._boxes = NORMALIZED if normalized else "boxes"
        self._bad = {int(record): cause for record, cause in index.metadata["bad"].items()}
        field = "box_labels" if _BOX[0] in index.columns else "keypoints"
        names = index.class_names
        self.classes = {field: names} if names else {}
        self._starts: NDArray[np.int64] | None = None
        self._arrays: dict[str, NDArray[Any]] = {}

    @property
    def columns(self) -> dict[str, NDArray[np.int32]]:
        """Number of objects of each record, int32 [n]: ``boxes`` or ``keypoints``."""
        kind = "boxes" if _BOX[0] in self._index.columns else "keypoints"
        return {kind: np.diff(self._row_starts()).astype(np.int32)}

    def fields(self, indices: NDArray[np.int64]) -> list[dict[str, Any] | str]:
        """Fields of the records at `indices`, int64 [n], or why a record has none that hold."""
        starts = self._row_starts()
        if not self._arrays:
            self._arrays = {name: self._index.column(name) for name in self._index.columns}
        return [
            self._bad.get(i) or self._one(slice(starts[i], starts[i + 1])) for i in indices.tolist()
        ]

    def fingerprint(self) -> str:
        """Hash of all objects."""
        return self._index.fingerprint()

    def _one(self, rows: slice) -> dict[str, Any]:
        arrays = self._arrays
        if _BOX[0] not in arrays:
            return {"keypoints": np.stack([arrays[name][rows] for name in _POINT], 1)}
        fields: dict[str, Any] = {
            self._boxes: np.stack([arrays[name][rows] for name in _BOX], 1),
            "box_labels": arrays["label"][rows].astype(np.int64),
        }
        for name in arrays:
            if name.startswith("box_"):
                fields[name] = arrays[name][rows].astype(np.int64)
        return fields

    def _row_starts(self) -> NDArray[np.int64]:
        if self._starts is None:
            records = self._index.column("record")
            self._starts = np.searchsorted(records, np.arange(self._count + 1))
        return self._starts

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_starts": None, "_arrays": {}}


def cached_objects(
    recipe: Mapping[str, Any],
    records: RecordsToLabel,
    *,
    marks: Any,
    read: Callable[[], tuple[list[Objects | str], Names]],
    classes: Sequence[str] | None = None,
    bad_boxes: BadBoxes,
    where: str,
    normalized: bool = False,
) -> list[ObjectRows]:
    """The objects of every record, from the cache of indexes if the label files are as they were.

    Args:
        recipe: What they are made from beside the data: JSON.
        records: What they are of.
        marks: State of the label files (sizes, times): JSON.
        read: Reads them: the objects of each record, or what is wrong with it; and what the
            files name by number: ``box_labels``, ``keypoints``.
        classes: Names of the classes by id, unless the training part has settled them; None: those
            found, sorted (numbers by their value).
        bad_boxes: Whether a box without area in its image is left out, or makes its record bad.
        where: The storage and the label files, for messages.
        normalized: See `ObjectRows`.

    Returns:
        Boxes, then keypoints if there are any.

    Raises:
        ValueError: All records are bad, or a class is not among `classes`.
    """
    keys = records.keys
    classes = records.classes.get("box_labels") or classes
    recipe = {**recipe, "data": records.storage.fingerprint()}

    @cache
    def objects() -> tuple[list[Objects | str], Names]:
        found, names = read()
        return _checked(found, keys, bad_boxes, where), names

    def opened(kind: str, write: Callable[[Path], None]) -> Index:
        return cached_index(
            {**recipe, "kind": kind, "bad_boxes": bad_boxes, "classes": classes},
            build=write,
            is_current=lambda index: index.metadata["marks"] == marks,
        )

    def write_boxes(path: Path) -> None:
        found, names = objects()
        _write_boxes(path, found, classes or names.get("box_labels"), marks, where)

    def write_points(path: Path) -> None:
        found, names = objects()
        _write_points(path, found, names.get("keypoints"), marks)

    boxes, points = opened("boxes", write_boxes), opened("keypoints", write_points)
    return [
        ObjectRows(index, len(keys), normalized=normalized)
        for index in (boxes, *([points] if len(points) else []))
    ]


def _checked(
    objects: list[Objects | str], keys: Sequence[str], bad_boxes: BadBoxes, where: str
) -> list[Objects | str]:
    """Boxes clipped to their images; those without area left out, or their records bad."""
    checked: list[Objects | str] = []
    bad: list[tuple[str, Any]] = []
    for key, one in zip(keys, objects, strict=True):
        if not isinstance(one, Objects):
            checked.append(one)
            continue
        kept, wrong = _clipped(one)
        bad += [(key, box) for box in wrong]
        if wrong and bad_boxes == "record":
            checked.append(f"box {_text(wrong[0])} has no area in its image; correct or remove it")
        else:
            checked.append(kept)
    broken = [(k, c) for k, c in zip(keys, checked, strict=True) if not isinstance(c, Objects)]
    if broken and len(broken) == len(keys):
        raise ValueError(
            f"{where}: no record has annotations that can be used; {broken[0][0]!r}: {broken[0][1]}"
        )
    if bad and bad_boxes == "drop":
        log.warning(
            "%s: %s boxes have no area in their image and are left out, such as %s of %r; "
            "dataset.annotations.bad_boxes=record makes their records bad instead",
            where, f"{len(bad):,}", _text(bad[0][1]), bad[0][0],
        )  # fmt: skip
    return checked


def _clipped(one: Objects) -> tuple[Objects, list[Sequence[float]]]:
    """Objects with boxes inside of the image, and the boxes of which nothing is left."""
    boxes = np.asarray(one.boxes, np.float64).reshape(-1, 4)
    width, height = one.size or (np.inf, np.inf)
    inside = np.clip(boxes, 0, (width, height, width, height))
    good = (inside[:, 2] > inside[:, 0]) & (inside[:, 3] > inside[:, 1])  # False for NaN
    good &= np.isfinite(inside).all(1)  # which they are not if the file knows no size
    rows = np.flatnonzero(good).tolist()
    kept = Objects(
        boxes=inside[good].tolist(),
        names=[one.names[i] for i in rows],
        extras={name: [values[i] for i in rows] for name, values in one.extras.items()},
        keypoints=one.keypoints,
        size=one.size,
    )
    return kept, [one.boxes[i] for i in np.flatnonzero(~good)]


def _text(box: Sequence[float]) -> str:
    return "[" + ", ".join(f"{edge:g}" for edge in box) + "]"


def _write_boxes(
    path: Path,
    objects: list[Objects | str],
    classes: Sequence[str] | None,
    marks: Any,
    where: str,
) -> None:
    known = [(i, one) for i, one in enumerate(objects) if isinstance(one, Objects)]
    counts = [len(one.boxes) for _, one in known]
    boxes = np.array([box for _, one in known for box in one.boxes], np.float32).reshape(-1, 4)
    names = [name for _, one in known for name in one.names]
    labels, class_names = class_ids(names, classes, where=where)
    columns: dict[str, NDArray[Any]] = {
        "record": np.repeat(np.array([i for i, _ in known], np.int32), counts),
        "label": labels.astype(np.int32),
        **{name: boxes[:, k] for k, name in enumerate(_BOX)},
    }
    extras = sorted({name for _, one in known for name in one.extras})
    for name in extras:
        values = [v for _, one in known for v in one.extras.get(name, [0] * len(one.boxes))]
        columns[f"box_{name}"] = np.array(values, np.int32)
    _write(path, columns, objects, class_names, marks)


def _write_points(
    path: Path, objects: list[Objects | str], names: Sequence[str] | None, marks: Any
) -> None:
    known = [(i, one) for i, one in enumerate(objects) if isinstance(one, Objects)]
    counts = [len(one.keypoints) for _, one in known]
    points = np.array([p for _, one in known for p in one.keypoints], np.float32).reshape(-1, 3)
    columns: dict[str, NDArray[Any]] = {
        "record": np.repeat(np.array([i for i, _ in known], np.int32), counts),
        **{name: points[:, k] for k, name in enumerate(_POINT)},
    }
    _write(path, columns, objects, names, marks)


def _write(
    path: Path,
    columns: dict[str, NDArray[Any]],
    objects: list[Objects | str],
    class_names: Sequence[str] | None,
    marks: Any,
) -> None:
    import hashlib

    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(columns):
        digest.update(name.encode() + np.ascontiguousarray(columns[name]).tobytes())
    bad = {str(i): one for i, one in enumerate(objects) if not isinstance(one, Objects)}
    write_index(
        path,
        key_pattern="{}",
        count=len(columns["record"]),
        columns=columns,
        class_names=class_names,
        metadata={"marks": marks, "bad": bad},
        content=digest.hexdigest(),
    )
