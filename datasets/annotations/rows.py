"""Cache the annotations of all records as rows of an index, until a label file changes."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import RecordAnnotations, RecordsToLabel
from penstock.core.sample import STATED_SIZE
from penstock.datasets.records.index import cached_index
from penstock.datasets.records.label_files import LabelFile, marks_of
from penstock.datasets.records.labels import LABEL_VERSION, class_ids
from penstock.datasets.records.table import Table, numbered

log = logging.getLogger(__name__)

BadBoxes = Literal["drop", "record"]
RAREST = "rarest_box_label"
RAREST_LABEL = "rarest_label"
_BOX = ("x0", "y0", "x1", "y1")
_POINT = ("x", "y", "visibility")
_SIZE = ("image_width", "image_height")
_VERSION = 4  # raise it when the same label files give other rows
_UNKNOWN = -1  # stored labels are int8


class Rows(RecordAnnotations):
    """Annotations as rows of an index, sorted by record."""

    def __init__(self, index: Table, field: str) -> None:
        self._index = index
        self._field = field
        self._bad = {int(record): cause for record, cause in index.metadata["bad"].items()}
        self._count = int(index.metadata["records"])
        self.classes = {field: index.class_names} if index.class_names else {}
        self._arrays: dict[str, NDArray[Any]] = {}

    def fields(self, indices: NDArray[np.int64]) -> list[dict[str, Any] | str]:
        """Return the fields of the records at `indices`, int64 [n], or why a record is bad."""
        if not self._arrays:
            self._arrays = self._mapped()
        return [self._bad.get(i) or self._one(i) for i in indices.tolist()]

    def fingerprint(self) -> str:
        """Hash all rows and names."""
        return self._index.fingerprint()

    def _mapped(self) -> dict[str, NDArray[Any]]:
        return {name: self._index.column(name) for name in self._index.columns}

    def _one(self, record: int) -> dict[str, Any]:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_arrays": {}}


class NumberRows(Rows):
    """``labels`` (1 or 0) or ``values``, float32 [K] per record; NaN means unknown."""

    def _mapped(self) -> dict[str, NDArray[Any]]:
        names = self.classes[self._field]
        return {self._field: self._index.column("number").reshape(-1, len(names))}

    def _one(self, record: int) -> dict[str, Any]:
        row = self._arrays[self._field][record].astype(np.float32)
        if self._field == "labels":
            row[row == _UNKNOWN] = np.nan
        return {self._field: row}

    @property
    def columns(self) -> dict[str, NDArray[Any]]:  # type: ignore[override]
        """Return columns for the index, each [n].

        ``value_<name>``, float32, for values. `RAREST_LABEL`, int32, for labels: the label of each
        record that the fewest records have; -1: none.
        """
        table, names = self._mapped()[self._field], self.classes[self._field]
        if self._field == "values":
            return {f"value_{name}": table[:, n] for n, name in enumerate(names)}
        rarest = np.full(len(table), -1, np.int32)
        counts = (table == 1).sum(0)
        for n in np.argsort(counts, kind="stable")[::-1]:  # write the rarest last
            rarest[table[:, n] == 1] = n
        return {RAREST_LABEL: rarest}


class ObjectRows(Rows):
    """Boxes or keypoints of each record.

    Until the image is decoded, fractions of it have field names with ``_normalized``.
    """

    def _mapped(self) -> dict[str, NDArray[Any]]:
        starts = np.searchsorted(self._index.column("record"), np.arange(self._count + 1))
        return {**super()._mapped(), "start": starts}

    @property
    def columns(self) -> dict[str, NDArray[np.int32]]:  # type: ignore[override]
        """Return the number of ``boxes`` or ``keypoints`` of each record, int32 [n].

        For boxes also `RAREST`, int32 [n]: the class of each record that the fewest boxes have;
        -1: none.
        """
        counts = np.diff(self._mapped()["start"]).astype(np.int32)
        if self._field == "keypoints":
            return {"keypoints": counts}
        labels = np.asarray(self._index.column("label"), np.int32)
        often = np.bincount(labels)[labels] if labels.size else labels
        rarest = np.full(self._count, -1, np.int32)
        order = np.argsort(-often, kind="stable")  # write the rarest of a record last
        rarest[self._index.column("record")[order]] = labels[order]
        return {"boxes": counts, RAREST: rarest}

    def _one(self, record: int) -> dict[str, Any]:
        arrays, metadata = self._arrays, self._index.metadata
        first, stop = arrays["start"][record : record + 2].tolist()
        ending = "_normalized" if metadata["normalized"] else ""
        size: dict[str, Any] = {}
        if _SIZE[0] in arrays:
            sides = [arrays[name][first] if stop > first else 0 for name in _SIZE]
            size = {STATED_SIZE: np.array(sides, np.int32)}
        names = _POINT if self._field == "keypoints" else _BOX
        rows = np.stack([arrays[name][first:stop] for name in names], 1)
        if self._field == "keypoints":
            return {f"keypoints{ending}": rows, **(size if stop > first else {})}
        fields: dict[str, Any] = {
            name: arrays[name][first:stop].astype(np.int64)
            for name in arrays
            if name.startswith("box_")
        }
        if metadata["masks"]:
            fields["box_masks"] = self._index.keys(np.arange(first, stop))
        labels = arrays["label"][first:stop].astype(np.int64)
        return {f"boxes{ending}": rows, "box_labels": labels, **size, **fields}


@dataclass(slots=True)
class LabelSource:
    """The label files of one component, and everything that their rows depend on."""

    name: str
    settings: Mapping[str, Any]
    records: RecordsToLabel
    files: Iterable[LabelFile | None]
    where: str

    def index(self, field: str, rows: Callable[[], tuple[Table, dict[int, str]]]) -> Table:
        """Load the rows from the cache of indexes, or read the label files.

        `rows` returns the table, and the cause of each bad record by its number.
        """
        marks = marks_of(self.files)
        count = len(self.records.keys)

        def build() -> Table:
            table, bad = rows()
            if bad and len(bad) == count:
                raise ValueError(
                    f"{self.where}: no record has annotations that can be used; "
                    f"{self.records.keys[0]!r}: {bad[0]}"
                )
            digest = hashlib.blake2b(digest_size=16)
            for name, values in sorted(table.arrays.items()):
                digest.update(name.encode() + np.ascontiguousarray(values).tobytes())
            metadata = {**table.metadata, "marks": marks, "bad": bad, "records": count}
            return table.replaced(metadata=metadata, content=digest.hexdigest())

        recipe = {
            "annotations": self.name,
            "settings": dict(self.settings),
            "classes": self.records.classes.get(field) or self.settings.get("classes"),
            "field": field,
            "where": self.where,
            "data": self.records.storage.fingerprint(),
            "version": [_VERSION, LABEL_VERSION],
        }
        return cached_index(
            recipe, build=build, is_current=lambda index: bool(index.metadata["marks"] == marks)
        )

    def numbers(self, field: str, read: Callable[[], Numbers]) -> list[NumberRows]:
        """Return rows of ``labels`` or ``values``; `read` returns their numbers and names."""

        def rows() -> tuple[Table, dict[int, str]]:
            found, names = read()
            bad = {row: cause for row, cause in enumerate(found) if isinstance(cause, str)}
            nothing = np.full(len(names), np.nan, np.float32)
            table = np.array([nothing if isinstance(row, str) else row for row in found])
            table = table.reshape(-1, len(names))
            if field == "labels":
                table = np.nan_to_num(table, nan=_UNKNOWN).astype(np.int8)
            return Table(numbered(table.size), {"number": table.ravel()}, names), bad

        return [NumberRows(self.index(field, rows), field)]

    def objects(
        self,
        read: Callable[[], tuple[list[Objects | str], Mapping[str, Sequence[str]]]],
        *,
        normalized: bool = False,
    ) -> list[ObjectRows]:
        """Return rows of boxes, and of keypoints if there are any.

        `read` returns the objects of each record or the cause of a bad one, and the names of
        ``box_labels`` and ``keypoints`` by number, if the files have them. Classes of the training
        split or the config take precedence; the default is sorted names.
        """
        done: list[Any] = []

        def rows(kind: str) -> tuple[Table, dict[int, str]]:
            if not done:
                found, names = read()
                done.extend((self._checked(found), names))
            found, names = done
            bad = {row: cause for row, cause in enumerate(found) if isinstance(cause, str)}
            known = [(row, one) for row, one in enumerate(found) if isinstance(one, Objects)]
            classes: Sequence[str] | None = names.get(kind)
            if kind == "keypoints":
                columns = _columns([(row, one.keypoints) for row, one in known], _POINT)
            else:
                columns = _columns([(row, one.boxes) for row, one in known], _BOX)
                called = [name for _, one in known for name in one.names]
                given = self.records.classes.get(kind) or self.settings.get("classes") or classes
                columns["label"], classes = class_ids(called, given, where=self.where)
                for name in sorted({name for _, one in known for name in one.extras}):
                    values = [
                        value
                        for _, one in known
                        for value in one.extras.get(name, [0] * len(one.boxes))
                    ]
                    columns[f"box_{name}"] = np.array(values, np.int32)
            sizes = np.array([(0, 0)] * len(found), np.int32).reshape(-1, 2)
            for row, one in known:
                if one.size not in (None, (1, 1)):
                    sizes[row] = one.size
            if (stated := sizes[columns["record"]]).any():
                columns |= {name: stated[:, n] for n, name in enumerate(_SIZE)}
            shares = normalized or bool(self.settings.get("rescale"))
            masks = kind != "keypoints" and bool(self.settings.get("masks"))
            keys: Any = numbered(len(columns["record"]))
            if masks:
                keys = [mask for _, one in known for mask in one.masks]
            return Table(keys, columns, classes, {"normalized": shares, "masks": masks}), bad

        boxes, points = (
            ObjectRows(self.index(kind, partial(rows, kind)), kind)
            for kind in ("box_labels", "keypoints")
        )
        return [boxes, points] if len(points._index) else [boxes]

    def _checked(self, objects: Sequence[Objects | str]) -> list[Objects | str]:
        """Clip boxes to their images; drop boxes without area, or make their records bad."""
        checked: list[Objects | str] = []
        dropped: list[str] = []
        for key, one in zip(self.records.keys, objects, strict=True):
            if isinstance(one, Objects):
                wrong = one.clip()
                if wrong and self.settings["bad_boxes"] == "record":
                    one = f"box {wrong[0]} covers an area of 0 in its image; correct or remove it"
                else:
                    dropped += [f"{box} of {key!r}" for box in wrong]
            if isinstance(one, Objects) and self.settings.get("rescale"):
                if one.size is None and (one.boxes or one.keypoints):
                    one = (
                        "dataset.annotations.rescale=true needs the width and height of its "
                        "image; state them"
                    )
                else:
                    one.make_shares()
            checked.append(one)
        if dropped:
            log.warning(
                "%s: %s boxes cover an area of 0 in their image and are left out, such as %s; "
                "dataset.annotations.bad_boxes=record makes their records bad instead",
                self.where, f"{len(dropped):,}", dropped[0],
            )  # fmt: skip
        return checked


Numbers = tuple[Sequence[NDArray[np.float32] | str], Sequence[str]]
"""The numbers of each record, float32 [K] with NaN for unknown, or the cause of a bad record;
and the names of the numbers.
"""


@dataclass(slots=True)
class Objects:
    """The content of a label file for one record.

    Attributes:
        boxes: Left, top, right and bottom edge, in pixels, [N, 4].
        names: The class of each box, [N].
        extras: More integers per box by name, [N], such as ``difficult``.
        masks: COCO run lengths per box, ``height,width,counts``, [N]; empty without masks.
        keypoints: x, y, in pixels, and visibility 0, 1 or 2, [K, 3].
        size: Stated width and height of the image; (1, 1): boxes and keypoints are fractions.
    """

    boxes: list[Sequence[float]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    extras: dict[str, list[int]] = field(default_factory=dict)
    masks: list[bytes] = field(default_factory=list)
    keypoints: list[Sequence[float]] = field(default_factory=list)
    size: tuple[int, int] | None = None

    def clip(self) -> list[str]:
        """Clip boxes to the image; remove and return boxes without area."""
        boxes = np.asarray(self.boxes, np.float64).reshape(-1, 4)
        width, height = self.size or (np.inf, np.inf)
        inside = np.clip(boxes, 0, (width, height, width, height))
        good = (inside[:, 2] > inside[:, 0]) & (inside[:, 3] > inside[:, 1])  # False for NaN
        good &= np.isfinite(inside).all(1)  # infinite boxes, if the size is unknown
        rows = np.flatnonzero(good).tolist()
        self.boxes = inside[good].tolist()
        self.names = [self.names[row] for row in rows]
        self.extras = {k: [values[row] for row in rows] for k, values in self.extras.items()}
        self.masks = [self.masks[row] for row in rows] if self.masks else []
        wrong = boxes[~good].tolist()
        return ["[" + ", ".join(f"{edge:g}" for edge in box) + "]" for box in wrong]

    def make_shares(self) -> None:
        """Convert boxes and keypoints to fractions of the stated image size."""
        if self.size is not None:
            width, height = self.size
            boxes = np.asarray(self.boxes, np.float64).reshape(-1, 4)
            points = np.asarray(self.keypoints, np.float64).reshape(-1, 3)
            self.boxes = (boxes / (width, height, width, height)).tolist()
            self.keypoints = (points / (width, height, 1)).tolist()


def _columns(
    rows: Sequence[tuple[int, Sequence[Sequence[float]]]], names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Build columns with a row per object, and the row of its record."""
    values = np.array([row for _, one in rows for row in one], np.float32)
    values = values.reshape(-1, len(names))
    records = np.array([record for record, _ in rows], np.int32)
    return {
        "record": np.repeat(records, [len(one) for _, one in rows]),
        **{name: values[:, k] for k, name in enumerate(names)},
    }
