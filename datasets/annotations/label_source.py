"""Find and read label files, and keep the fields of every record in the cache."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import RecordAnnotations, RecordsToLabel
from penstock.core.record_codec import pack_fields, unpack_fields
from penstock.core.sample import STATED_SIZE
from penstock.datasets.files.access import absolute_path, is_url, read_file
from penstock.datasets.files.data_files import scan_files
from penstock.datasets.files.local_copies import local_copy
from penstock.datasets.files.remote import NothingThere
from penstock.datasets.records.label_files import LabelFile
from penstock.datasets.records.labels import LABEL_VERSION, class_ids
from penstock.datasets.records.matching import matched, plain
from penstock.datasets.records.table import Table, cached_index

log = logging.getLogger(__name__)

RAREST = "rarest_box_label"
RAREST_LABEL = "rarest_label"
_VERSION = 7  # raise it when the same label files give other fields
_CAUSE = ""  # field of a bad record


class Found(NamedTuple):
    """The fields of each record, or why it is bad; class names by field; columns of the index."""

    fields: Sequence[Mapping[str, Any] | str]
    classes: Mapping[str, Sequence[str]]
    columns: Mapping[str, NDArray[Any]]


class RecordFields(RecordAnnotations):
    """The fields of every record, encoded in a table that processes map."""

    def __init__(self, table: Table) -> None:
        self._table, self.classes = table, table.field_classes

    @property
    def columns(self) -> dict[str, NDArray[Any]]:  # type: ignore[override]
        return self._table.arrays

    def fields(self, indices: NDArray[np.int64]) -> list[dict[str, Any] | str]:
        found = [unpack_fields(raw) for raw in self._table.raw_keys(indices)]
        return [fields.get(_CAUSE, fields) for fields in found]

    def fingerprint(self) -> str:
        return self._table.fingerprint()


@dataclass(slots=True)
class LabelSource:
    """A component, its label files, and the records that they describe."""

    component: Any
    records: RecordsToLabel
    where: str
    path: str = ""
    files: Sequence[LabelFile | None] = ()

    @classmethod
    def find(
        cls, component: Any, records: RecordsToLabel, kind: Literal["file", "folder"], *paths: str
    ) -> LabelSource:
        """Find the first of `paths` in the data's folder, its parent, or the working folder.

        ``{part}`` is ``train`` or ``val``, or the name of the part's folder.
        """
        root = records.root
        named = os.path.splitext(os.path.basename(records.place))[0]  # `valid` means `val`
        top = root if is_url(root) or os.path.isdir(root) else os.path.dirname(root)
        places = [
            absolute_path(each if is_url(each) else os.path.join(base, each))
            for path in paths
            for base in (top, os.path.dirname(top), ".")
            for each in (path.replace("{part}", part) for part in (records.part or named, named))
        ]
        is_there = os.path.isdir if kind == "folder" else os.path.isfile
        for place in dict.fromkeys(places):
            with suppress(NothingThere):
                found = local_copy(place) if is_url(place) else place
                if is_there(found):
                    where = f"{records.storage}, dataset.annotations.path={place}"
                    return cls(component, records, where, found, [LabelFile.at(found)])
        raise ValueError(
            f"{records.storage}: dataset.annotations.path: no such {kind} as "
            f"{' or '.join(dict.fromkeys(places))}; name another, or, if pack put them into the "
            f"records, type dataset/annotations=in_records"
        )

    def match(self, names: Sequence[str], **messages: str) -> list[str | None]:
        """Return the name of each record; a file of all parts also has names of other records."""
        records, is_file = self.records, os.path.isfile(self.path)
        return matched(
            records.keys, names, getattr(self.component, "missing", "error"),
            place=records.place, where=self.where, **messages,
            its_own=is_file and (not records.part or "{part}" in self.component.path),
        )  # fmt: skip

    def match_files(self, ending: str, **messages: str) -> list[LabelFile | None]:
        """Return the file of each record below the folder."""
        found: dict[str, LabelFile] = {}
        for key in map(os.fsdecode, scan_files(self.path, endings=(ending.split(".")[-1],)).keys):
            file = LabelFile.at(os.path.join(self.path, key))
            if file is not None and key.lower().endswith(ending.lower()):
                other = found.setdefault(plain(key[: -len(ending)]), file)
                if other is not file:
                    said = f"{other.path} and {key} have the same name; keep one"
                    raise ValueError(f"{self.where}: {said}")
        entries = self.match(list(found), **messages)
        files = [None if entry is None else found[entry] for entry in entries]
        self.files = [*self.files, *files]
        return files

    def parsed(
        self, files: Sequence[LabelFile | None], add: Callable[[bytes, int, Objects], None]
    ) -> Objects:
        """Call `add` with the content of each file and its record; a ValueError makes it bad."""
        objects = Objects(self)
        for record, file in enumerate(files):
            if file is None:
                continue
            try:
                add(read_file(file.path, root=self.path), record, objects)
            except (SyntaxError, LookupError, ValueError) as error:
                objects.bad[record] = f"{os.path.basename(file.path)}: {error}"
        return objects

    def table(self, read: Callable[[], Found]) -> Table:
        """Load the fields of all records from the cache, or read them."""
        keys = self.records.keys

        def build() -> Table:
            found = read()
            if keys and all(isinstance(each, str) for each in found.fields):
                said = f"no record has annotations that can be used; {keys[0]!r}"
                raise ValueError(f"{self.where}: {said}: {found.fields[0]}")
            encoded = [
                pack_fields({_CAUSE: each} if isinstance(each, str) else each, key=key)
                for key, each in zip(keys, found.fields, strict=True)
            ]
            metadata = {"field_classes": found.classes}
            return Table(encoded, found.columns, metadata=metadata, content=repr(metadata))

        recipe = {
            "annotations": type(self.component).__name__,
            "settings": dict(vars(self.component)),
            "classes": dict(self.records.classes),
            "where": self.where,
            "files": list(map(str, self.files)),
            "data": self.records.storage.fingerprint(),
            "version": [_VERSION, LABEL_VERSION],
        }
        return cached_index(recipe, build=build)


class Objects:
    """The boxes and keypoints of all records, the stated sizes of images, and bad records.

    A box is its record and four edges. A keypoint is its record, x, y, and visibility 0, 1 or 2.
    """

    def __init__(self, source: LabelSource) -> None:
        self._source = source
        self.boxes: list[tuple[float, ...]] = []
        self.names: list[str] = []
        self.crowd: list[int] = []
        self.masks: list[str] = []
        self.points: list[tuple[float, ...]] = []
        self.sizes: dict[int, Sequence[float]] = {}
        self.bad: dict[int, str] = {}

    def found(self, names: Mapping[str, Sequence[str]], *, normalized: bool = False) -> Found:
        """Return the fields of all records; clip boxes, and drop those without area."""
        source, settings = self._source, vars(self._source.component)
        keys, rescales = source.records.keys, settings.get("rescale", False) and not normalized
        records, whole = _rows(self.boxes, 5)
        of_points, points = _rows(self.points, 4)
        sizes = np.full((len(keys), 2), 1 if normalized else np.inf)
        for record, size in self.sizes.items():
            sizes[record] = size
        boxes = np.clip(whole, 0, np.tile(sizes[records], 2))
        # NaN compares as False; a box may be infinite if the size is unknown.
        good = (boxes[:, 2:] > boxes[:, :2]).all(1) & np.isfinite(boxes).all(1)
        if (dropped := np.flatnonzero(~good)).size:
            log.warning(
                "%s: %s boxes cover an area of 0 in their image and are left out, such as %s of %r",
                source.where, f"{dropped.size:,}", whole[dropped[0]].tolist(),
                keys[records[dropped[0]]],
            )  # fmt: skip
        if rescales:
            boxes /= np.tile(sizes[records], 2)
            points[:, :2] /= sizes[of_points]
            said = "dataset.annotations.rescale=true needs its width and height; state them"
            unsized = {*records.tolist(), *of_points.tolist()} - self.sizes.keys()
            self.bad |= dict.fromkeys(unsized, said)
        kept, records = np.flatnonzero(good), records[good]
        classes = source.records.classes.get("box_labels") or settings.get("classes")
        classes = classes or names.get("box_labels")
        ids, classes = class_ids([self.names[n] for n in kept], classes, where=source.where)
        counts, point_counts = (
            np.bincount(rows, minlength=len(keys)).astype(np.int32) for rows in (records, of_points)
        )
        columns = {"boxes": counts, RAREST: rarest(len(keys), records, ids)}

        def by_record(values: NDArray[Any], rows: NDArray[np.int64] = records) -> list[Any]:
            ends = np.bincount(rows, minlength=len(keys)).cumsum()
            return np.split(values[np.argsort(rows, kind="stable")], ends[:-1])

        ending = "_normalized" if normalized or rescales else ""
        fields = {
            f"boxes{ending}": by_record(boxes[kept].astype(np.float32)),
            "box_labels": by_record(ids.astype(np.int64)),
        }
        if "crowd" in settings:
            fields["box_crowd"] = by_record(np.array(self.crowd, np.int64)[kept])
        if settings.get("masks"):
            fields["box_masks"] = list(map(list, by_record(np.array(self.masks, object)[kept])))
        if of_points.size:
            columns["keypoints"] = point_counts
            fields[f"keypoints{ending}"] = by_record(points.astype(np.float32), of_points)
        if self.sizes:
            sizes[np.isinf(sizes).any(1) | (counts + point_counts == 0)] = 0
            fields[STATED_SIZE] = list(sizes.astype(np.int32))
        found = [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]
        rows = [self.bad.get(record, one) for record, one in enumerate(found)]
        return Found(rows, {**names, "box_labels": classes}, columns)


def _rows(rows: Sequence[Any], width: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Split rows into their record, int64 [n], and the other numbers, float64 [n, width - 1]."""
    values = np.array(rows, np.float64).reshape(-1, width)
    return values[:, 0].astype(np.int64), values[:, 1:]


def rarest(count: int, records: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.int32]:
    """Return the label of each record that is rarest of all, int32 [count]; -1 without labels."""
    found = np.full(count, -1, np.int32)
    often = np.bincount(labels)[labels] if labels.size else labels
    order = np.argsort(-often, kind="stable")  # write the rarest of a record last
    found[records[order]] = labels[order]
    return found


def whole_number(value: Any, name: str) -> int:
    """Return an integer of 31 bits; ValueError or TypeError for another value."""
    if not abs(float(value)) < 1 << 31:  # or NaN
        raise ValueError(f"{name} is {str(value)[:40]}, expected a whole number")
    return int(float(value))
