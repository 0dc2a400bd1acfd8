"""Read label files: where they lie, which records they speak of; boxes and keypoints as rows.

Rows are kept in indexes of their own, which hold as long as the label files are as they were.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import RecordsToLabel
from penstock.core.sample import STATED_SIZE
from penstock.core.user_errors import is_trouble
from penstock.datasets.files.access import absolute_path, is_url
from penstock.datasets.files.clients import AccessDenied
from penstock.datasets.files.listings import NothingThere, find_file
from penstock.datasets.files.local_copies import local_copy
from penstock.datasets.records.index import Index, cached_index, write_index
from penstock.datasets.records.labels import LABEL_VERSION, check_missing, class_ids

log = logging.getLogger(__name__)

BadBoxes = Literal["drop", "record"]
MARK = ".packed.npz"
"""What packing leaves beside a split: an index of its records, with their checksums, its files,
and what annotations said of them."""
RAREST = "rarest_box_label"
_BOX = ("x0", "y0", "x1", "y1")
_POINT = ("x", "y", "visibility")
_SIZE = ("image_width", "image_height")
_VERSION = 2  # raise it where the same label files give other rows

Names = Mapping[str, Sequence[str]]
"""Names of annotated numbers by field."""


@dataclass(frozen=True, slots=True)
class LabelFile:
    """A label file, and its mark."""

    path: str
    size_bytes: int
    mtime_ns: int

    @classmethod
    def at(cls, path: str) -> LabelFile | None:
        """Stat the file at `path`; None if there is none."""
        try:
            status = os.stat(path)
        except (OSError, ValueError) as error:
            if is_trouble(error):
                raise
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return cls(path, status.st_size, status.st_mtime_ns)

    @classmethod
    def of(cls, key: str, folder: str, ending: str) -> LabelFile | None:
        """Find the label file of a key: in the same folders below `folder`, or without them."""
        stem = os.path.splitext(key)[0]
        for name in (stem, os.path.basename(stem)):
            if file := cls.at(os.path.join(folder, f"{name}{ending}")):
                return file
        return None


def find_mark(place: str) -> Index | None:
    """Open what packing left beside a split; None if it did not make it."""
    if is_url(place):
        url = f"{place}/{MARK}"
        with contextlib.suppress(AccessDenied):  # as stores say of what is not there
            return Index.open(local_copy(url)) if find_file(url) is not None else None
        return None
    path = os.path.join(place if os.path.isdir(place) else os.path.dirname(place), MARK)
    return Index.open(path) if os.path.isfile(path) else None


def find_labels(
    name: str, kind: Literal["file", "folder"], path: str, records: RecordsToLabel
) -> tuple[str, str]:
    """Find the labels of a storage.

    Args:
        name: Of the component.
        kind: What is expected there.
        path: As configured: relative to the data's folder, to what that lies in, or to the working
            folder, whichever is there first, with a small or a capital letter, as in VOC's own
            ``Annotations``; ``{part}`` is ``train`` or ``val``, or the name of the part's folder.
        records: What they are of.

    Returns:
        The absolute path; the storage and that path, for messages.

    Raises:
        ValueError: There is nothing of that kind.
    """
    if "{part}" in path and not records.part:
        folder = path.partition("{part}")[0].rstrip("/")
        one = path.replace("{part}", "all") if kind == "file" else folder or "labels"
        raise ValueError(
            f"dataset.annotations.path: {path!r} names the part, but the data at {records.root} "
            f"has no folders train and val; name the {kind} itself, such as "
            f"dataset.annotations.path={one}"
        )
    folder = records.root if os.path.isdir(records.root) else os.path.dirname(records.root)
    named = os.path.splitext(os.path.basename(records.place))[0]  # a folder valid is the part val
    paths = [path.replace("{part}", part) for part in (records.part, named)]
    path = paths[0]
    names = dict.fromkeys(each for path in paths for each in (path, path[:1].upper() + path[1:]))
    bases = (folder, f"{folder}/..", ".")
    if is_url(path) or (is_url(records.root) and not os.path.exists(path)):
        above = (records.root, records.root.rpartition("/")[0])
        urls = [path] if is_url(path) else [f"{base}/{each}" for base in above for each in names]
        for url in map(absolute_path, urls):
            with contextlib.suppress(NothingThere):
                return local_copy(url), f"{records.storage}, annotations {name} {url}"
        raise ValueError(
            f"{records.storage}, annotations {name}: no such {kind}: {' or '.join(urls)}; "
            f"{_remedy(records)}"
        )
    places = [os.path.abspath(os.path.join(base, name)) for base in bases for name in names]
    found = next(filter(os.path.exists, places), places[0])
    where = f"{records.storage}, annotations {name} {found}"
    there = os.path.isdir(found) if kind == "folder" else LabelFile.at(found)
    if not there:
        raise ValueError(
            f"{where}: no such {kind}; {_remedy(records)} (looked for "
            f"{' and '.join(dict.fromkeys(places[1:]))} too)"
        )
    return found, where


def _remedy(records: RecordsToLabel) -> str:
    mark = find_mark(records.place)
    if mark is not None and mark.field_classes:
        return "pack put them into the records: type dataset/annotations=in_records"
    return "set dataset.annotations.path"


def stem_of(name: str) -> str:
    """Cut the folders and the ending off a file's name."""
    return os.path.splitext(_file_name(name))[0]


def entries_of(keys: Sequence[str], names: Sequence[str], *, where: str) -> list[str | None]:
    """Match records with the names under which one label file for all images speaks of them.

    It is the key itself; else the same path but for the ending; else the same file name, or the
    same but for the ending, if no other name in the file is alike.

    Args:
        keys: Keys of the records.
        names: The names in the label file, each once.
        where: The storage and the label file, for messages.

    Returns:
        A name, or None where there is none, for each key.

    Raises:
        ValueError: A name fits two records equally well.
    """
    entries: list[str | None] = [None] * len(keys)
    taken: dict[str, str] = {}
    alike: tuple[Callable[[str], str], ...] = (
        str, lambda name: os.path.splitext(name)[0], _file_name, stem_of,
    )  # fmt: skip
    for short in alike:
        by_short: dict[str, str | None] = {}
        for name in names:
            by_short[short(name)] = None if short(name) in by_short else name
        here: dict[str, str] = {}
        for row, key in enumerate(keys):
            name_or_none = by_short.get(short(key)) if entries[row] is None else None
            if name_or_none is None or name_or_none in taken:
                continue
            if (other := here.setdefault(name_or_none, key)) != key:
                raise ValueError(
                    f"{where}: {name_or_none!r} may be {other!r} or {key!r}; name the images "
                    f"there by their paths in the data"
                )
            entries[row] = name_or_none
        taken |= here
    return entries


def _file_name(name: str) -> str:
    return name.replace("\\", "/").rpartition("/")[2]


def marks_of(files: Iterable[LabelFile | None]) -> str:
    """Hash the sizes and times of files: a mark that changes with them."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        mark = "-" if file is None else f"{file.path} {file.size_bytes} {file.mtime_ns}"
        digest.update(mark.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


def check_unlabelled(
    keys: Sequence[str], found: Sequence[object | None], rule: str | None, where: str, what: str
) -> None:
    """Refuse records that a label file says nothing of, or count them; see `check_missing`."""
    check_missing(
        keys,
        found,
        rule,
        where=where,
        what=what,
        taken="taken as without objects",
        setting="dataset.annotations.missing=empty",
    )


@dataclass(slots=True)
class Objects:
    """The content of a label file about one record.

    Attributes:
        boxes: Left, top, right and bottom edge, in pixels, [N, 4].
        names: The class of each box, [N].
        extras: More about each box by name, integers [N], such as ``difficult``.
        masks: The mask of each box as ``height,width,counts``, run lengths as COCO compresses
            them, [N]; or none of any.
        keypoints: x, y, in pixels, and visibility 0, 1 or 2, [K, 3].
        size: Width and height of the image, if the file states them; (1, 1): boxes and keypoints
            are shares of the image.
    """

    boxes: list[Sequence[float]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    extras: dict[str, list[int]] = field(default_factory=dict)
    masks: list[bytes] = field(default_factory=list)
    keypoints: list[Sequence[float]] = field(default_factory=list)
    size: tuple[int, int] | None = None


class ObjectRows:
    """The boxes, or keypoints, of every record; satisfies `RecordAnnotations`.

    Args:
        index: A row for each object, sorted by its column ``record``.
        count: The number of records.
        normalized: Boxes and keypoints are shares of their image. Their fields end in
            ``_normalized`` until the decoder, which knows the size, makes them pixels.
        masks: The mask of each box as a key, if they have some.
    """

    def __init__(
        self, index: Index, count: int, *, normalized: bool = False, masks: Index | None = None
    ) -> None:
        self._index = index
        self._masks = masks
        self._count = count
        self._ending = "_normalized" if normalized else ""
        self._bad = {int(record): cause for record, cause in index.metadata["bad"].items()}
        field = "box_labels" if _BOX[0] in index.columns else "keypoints"
        names = index.class_names
        self.classes = {field: names} if names else {}
        self._starts: NDArray[np.int64] | None = None
        self._arrays: dict[str, NDArray[Any]] = {}

    @property
    def columns(self) -> dict[str, NDArray[np.int32]]:
        """Number of objects of each record, int32 [n]: ``boxes`` or ``keypoints``.

        Of boxes also `RAREST`, the class of a record's boxes that fewest boxes of all records
        have, int32 [n]; -1: it has none.
        """
        counts = np.diff(self._row_starts()).astype(np.int32)
        if _BOX[0] not in self._index.columns:
            return {"keypoints": counts}
        labels = np.asarray(self._index.column("label"), np.int32)
        often = np.bincount(labels)[labels] if labels.size else labels
        rarest = np.full(self._count, -1, np.int32)
        order = np.argsort(-often, kind="stable")  # the rarest of a record is written last
        rarest[self._index.column("record")[order]] = labels[order]
        return {"boxes": counts, RAREST: rarest}

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
        own = self._index.fingerprint()
        return own if self._masks is None else f"{own} {self._masks.fingerprint()}"

    def _one(self, rows: slice) -> dict[str, Any]:
        arrays = self._arrays
        size: dict[str, Any] = {}
        if _SIZE[0] in arrays:
            sides = [arrays[name][rows] for name in _SIZE]
            size = {
                STATED_SIZE: np.array([side[0] if len(side) else 0 for side in sides], np.int32)
            }
        if _BOX[0] not in arrays:
            points = np.stack([arrays[name][rows] for name in _POINT], 1)
            return {f"keypoints{self._ending}": points, **(size if len(points) else {})}
        fields: dict[str, Any] = {
            f"boxes{self._ending}": np.stack([arrays[name][rows] for name in _BOX], 1),
            "box_labels": arrays["label"][rows].astype(np.int64),
            **size,
        }
        for name in arrays:
            if name.startswith("box_"):
                fields[name] = arrays[name][rows].astype(np.int64)
        if self._masks is not None:
            fields["box_masks"] = self._masks.keys(np.arange(rows.start, rows.stop))
        return fields

    def _row_starts(self) -> NDArray[np.int64]:
        if self._starts is None:
            records = self._index.column("record")
            self._starts = np.searchsorted(records, np.arange(self._count + 1))
        return self._starts

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_starts": None, "_arrays": {}}


def cached_objects(
    name: str,
    settings: Mapping[str, Any],
    records: RecordsToLabel,
    *,
    marks: Any,
    read: Callable[[], tuple[list[Objects | str], Names]],
    where: str,
    normalized: bool = False,
) -> list[ObjectRows]:
    """Take the objects of every record from the cache of indexes, or read the label files.

    Args:
        name: Of the component.
        settings: What the config says of it: JSON. ``bad_boxes`` says whether a box without area
            in its image is left out, or makes its record bad. ``rescale`` makes boxes and
            keypoints shares of the size that the label file states. ``classes`` are names by id,
            unless the training part has settled them; else the classes found, sorted (numbers
            by their value).
        records: What they are of.
        marks: State of the label files (sizes, times): JSON.
        read: Reads them: the objects of each record, or what is wrong with it; and what the
            files name by number: ``box_labels``, ``keypoints``.
        where: The storage and the label files, for messages.
        normalized: See `ObjectRows`.

    Returns:
        Boxes, then keypoints if there are any.

    Raises:
        ValueError: All records are bad, or a class is not among `classes`.
    """
    keys = records.keys
    classes = records.classes.get("box_labels") or settings.get("classes")
    recipe = {"annotations": name, **settings, "classes": classes, "where": where}
    recipe |= {
        "data": records.storage.fingerprint(),
        "version": _VERSION,
        "label_version": LABEL_VERSION,
    }
    rescale = bool(settings.get("rescale"))

    @cache
    def objects() -> tuple[list[Objects | str], Names]:
        found, names = read()
        if rescale:
            found = [_with_size(one) for one in found]
        checked = _checked(found, keys, settings["bad_boxes"], where)
        return [_in_shares(one) for one in checked] if rescale else checked, names

    def opened(kind: Literal["boxes", "keypoints", "masks"]) -> Index:
        def write(path: Path) -> None:
            found, names = objects()
            if kind == "masks":
                known = [one for one in found if isinstance(one, Objects)]
                masks = [mask for one in known for mask in one.masks]
                write_index(path, keys=masks, columns={}, metadata={"marks": marks})
                return
            class_names: Sequence[str] | None
            if kind == "boxes":
                called = classes or names.get("box_labels")
                columns, class_names = _box_columns(found, called, where)
            else:
                points = [one.keypoints if isinstance(one, Objects) else None for one in found]
                columns, class_names = _columns(points, _POINT), names.get("keypoints")
            columns |= _sizes(columns["record"], found)
            digest = hashlib.blake2b(digest_size=16)
            for name in sorted(columns):
                digest.update(name.encode() + np.ascontiguousarray(columns[name]).tobytes())
            bad = {str(i): one for i, one in enumerate(found) if not isinstance(one, Objects)}
            write_index(
                path,
                key_pattern="{}",
                count=len(columns["record"]),
                columns=columns,
                class_names=class_names,
                metadata={"marks": marks, "bad": bad},
                content=digest.hexdigest(),
            )

        return cached_index(
            {**recipe, "kind": kind},
            build=write,
            is_current=lambda index: index.metadata["marks"] == marks,
        )

    boxes, points = opened("boxes"), opened("keypoints")
    masks = opened("masks") if settings.get("masks") else None
    normalized = normalized or rescale
    rows = [ObjectRows(boxes, len(keys), normalized=normalized, masks=masks)]
    if len(points):
        rows.append(ObjectRows(points, len(keys), normalized=normalized))
    return rows


def _with_size(one: Objects | str) -> Objects | str:
    """Refuse objects of an image whose size is not stated."""
    if isinstance(one, Objects) and one.size is None and (one.boxes or one.keypoints):
        return (
            "dataset.annotations.rescale=true needs the width and height of its image; state them"
        )
    return one


def _in_shares(one: Objects | str) -> Objects | str:
    """Make the boxes and keypoints of an image shares of its stated size."""
    if not isinstance(one, Objects) or one.size is None:
        return one
    width, height = one.size
    boxes = np.asarray(one.boxes, np.float64).reshape(-1, 4) / (width, height, width, height)
    points = np.asarray(one.keypoints, np.float64).reshape(-1, 3) / (width, height, 1)
    return replace(one, boxes=boxes.tolist(), keypoints=points.tolist())


def _sizes(
    records: NDArray[np.int32], objects: Sequence[Objects | str]
) -> dict[str, NDArray[np.int32]]:
    """Make columns of the stated size of each object's image; none where no size is stated."""
    sizes = [one.size if isinstance(one, Objects) else None for one in objects]
    known = np.array([(0, 0) if size in (None, (1, 1)) else size for size in sizes], np.int32)
    known = known.reshape(-1, 2)[records]
    return {name: known[:, k] for k, name in enumerate(_SIZE)} if known.any() else {}


def _checked(
    objects: list[Objects | str], keys: Sequence[str], bad_boxes: BadBoxes, where: str
) -> list[Objects | str]:
    """Clip boxes to their images; leave out those without area, or make their records bad."""
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
    """Clip boxes to the image; gives the objects, and the boxes of which nothing is left."""
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
        masks=[one.masks[i] for i in rows] if one.masks else [],
        keypoints=one.keypoints,
        size=one.size,
    )
    return kept, [one.boxes[i] for i in np.flatnonzero(~good)]


def _text(box: Sequence[float]) -> str:
    return "[" + ", ".join(f"{edge:g}" for edge in box) + "]"


def _box_columns(
    objects: list[Objects | str], classes: Sequence[str] | None, where: str
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    known = [one for one in objects if isinstance(one, Objects)]
    columns = _columns([one.boxes if isinstance(one, Objects) else None for one in objects], _BOX)
    names = [name for one in known for name in one.names]
    columns["label"], class_names = class_ids(names, classes, where=where)
    for name in sorted({name for one in known for name in one.extras}):
        values = [v for one in known for v in one.extras.get(name, [0] * len(one.boxes))]
        columns[f"box_{name}"] = np.array(values, np.int32)
    return columns, class_names


def _columns(
    rows: Sequence[Sequence[Sequence[float]] | None], names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Make columns with a row for each object, and the number of its record; None: a bad one."""
    known = [(record, one) for record, one in enumerate(rows) if one is not None]
    values = np.array([row for _, one in known for row in one], np.float32)
    values = values.reshape(-1, len(names))
    records = np.array([record for record, _ in known], np.int32)
    return {
        "record": np.repeat(records, [len(one) for _, one in known]),
        **{name: values[:, k] for k, name in enumerate(names)},
    }
