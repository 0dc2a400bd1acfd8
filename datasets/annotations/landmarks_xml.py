"""Landmarks from XML as dlib's imglab writes it: one file for all images of a part."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal
from xml.etree import ElementTree

from penstock.core.contracts import RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.records.label_files import (
    BadBoxes,
    LabelFile,
    ObjectRows,
    Objects,
    cached_objects,
    check_unlabelled,
    entries_of,
    find_labels,
    marks_of,
)
from penstock.datasets.records.landmarks import (
    number_of,
    ordered_names,
    parse_xml,
    points_by_name,
)

_UNNAMED = "object"


@register("annotations", "landmarks_xml")
class LandmarksXml:
    """Landmarks from XML as dlib's imglab writes it: one file for all images of a part.

    Records get ``keypoints`` float32 [K, 3], the parts of an image's box in the order of their
    names, those of several boxes one after the other; ``boxes`` float32 [N, 4] (xyxy, pixels, the
    right and bottom edge excluded) and ``box_labels`` int64 [N]. A part that a box lacks has
    visibility 0. An image with a broken box is a bad record.

    Args:
        path: The XML file, in the data's folder or beside it; ``{part}`` is train or val.
        ignored: ``drop`` or ``keep`` boxes that are marked as to be ignored.
        missing: An image that the file does not list: ``error``, or ``empty``: it has no boxes.
        bad_boxes: A box without area is left out, and said (``drop``), or makes its record bad
            (``record``).
    """

    def __init__(
        self,
        path: str = "annotations/{part}.xml",
        *,
        ignored: Literal["drop", "keep"] = "drop",
        missing: Literal["error", "empty"] = "error",
        bad_boxes: BadBoxes = "drop",
    ) -> None:
        self.path = path
        self.ignored = ignored
        self.missing = missing
        self.bad_boxes: BadBoxes = bad_boxes

    def of(self, records: RecordsToLabel) -> list[ObjectRows]:
        """Read the boxes and landmarks of records; see `core.contracts.Annotations`."""
        path, where = find_labels("landmarks_xml", "file", self.path, records)
        known = records.classes.get("keypoints")
        settings = {**vars(self), "keypoints": known}
        return cached_objects(
            "landmarks_xml",
            settings,
            records,
            marks=marks_of([LabelFile.at(path)]),
            read=lambda: self._read(path, records.keys, known, where),
            where=where,
        )

    def _read(
        self, path: str, keys: Sequence[str], known: Sequence[str] | None, where: str
    ) -> tuple[list[Objects | str], Mapping[str, Sequence[str]]]:
        """Read the boxes of each record, with as many landmarks each, and their names."""
        images = _images(path, where)
        entries = entries_of(keys, list(images), where=where)
        check_unlabelled(keys, entries, self.missing, where, "entry")
        boxes = {
            entry: [box for box in images[entry].iter("box") if self._counts(box)]
            for entry in entries
            if entry is not None
        }
        parts = (part for of_image in boxes.values() for b in of_image for part in b.iter("part"))
        names = list(known or ordered_names(parts))
        found: list[Objects | str] = []
        for entry in entries:
            try:
                found.append(_objects([] if entry is None else boxes[entry], names))
            except ValueError as error:
                found.append(f"{os.path.basename(path)}: {error}")
        return found, {"keypoints": names}

    def _counts(self, box: ElementTree.Element) -> bool:
        return self.ignored == "keep" or box.get("ignore", "0") in ("0", "false")


def _images(path: str, where: str) -> dict[str, ElementTree.Element]:
    """Read the elements of the images by the names of their files.

    Raises:
        ValueError: It is no such file.
    """
    try:
        with open(path, "rb") as file:
            text = file.read()
        root = parse_xml(text)
        images = list(root.iter("image"))
        if not images:
            raise ValueError(f"<{root.tag}> has no <image>")
    except (OSError, ValueError) as error:
        said = str(error).removeprefix("is no XML: ")
        raise ValueError(
            f"{where}: is no XML of imglab: {said}; expected <dataset><images><image file=...>"
        ) from error
    found: dict[str, ElementTree.Element] = {}
    for number, image in enumerate(images):
        name = (image.get("file") or "").strip().replace("\\", "/")
        if not name or name in found:
            said = f"{name!r} stands twice" if name else f"image {number} names no file"
            raise ValueError(f"{where}: {said}; remove it")
        found[name] = image
    return found


def _objects(boxes: Sequence[ElementTree.Element], names: Sequence[str]) -> Objects:
    """Read the boxes of an image, each with a point for each of `names`."""
    found = Objects()
    for box in boxes:
        left, top, width, height = (
            number_of(box, side, "a box") for side in ("left", "top", "width", "height")
        )
        found.boxes.append((left, top, left + width, top + height))
        found.names.append((box.findtext("label") or "").strip() or _UNNAMED)
        found.keypoints += points_by_name(box.iter("part"), names)
    return found
