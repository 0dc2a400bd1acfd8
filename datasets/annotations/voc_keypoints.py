"""Keypoints of Pascal VOC as Berkeley annotated them: an XML file for each object."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from penstock.core.contracts import RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.files.access import MissingFile, read_file
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


@register("annotations", "voc_keypoints")
class VocKeypoints:
    """Keypoints of Pascal VOC as Berkeley annotated them: an XML file for each object.

    The form of Bourdev and Malik, "Poselets", ICCV 2009: ``<image>``, ``<category>``,
    ``<visible_bounds>``, and ``<keypoint name= visible= x= y=>`` in ``<keypoints>``. Records get
    ``keypoints`` float32 [K, 3], those of an object in the order of their names, objects one after
    the other; ``boxes`` float32 [N, 4] (xyxy, pixels, the right and bottom edge excluded) and
    ``box_labels`` int64 [N]. Visibility is 2, 1 where the file says that a point is hidden, and 0
    where it has none. An image with a broken object is a bad record.

    Args:
        path: The folder of the XML files, in the data's or beside it, with those in its folders;
            ``{part}`` is train or val. Classes that have other keypoints lie in a folder each.
        one_based: Pixels are counted from 1, as in VOC itself; false: from 0.
        missing: An image that no XML names: ``error``, or ``empty``: it has no objects.
        bad_boxes: A box without area is left out, and said (``drop``), or makes its record bad
            (``record``).
    """

    def __init__(
        self,
        path: str = "annotations",
        *,
        one_based: bool = True,
        missing: Literal["error", "empty"] = "error",
        bad_boxes: BadBoxes = "drop",
    ) -> None:
        self.path = path
        self.one_based = one_based
        self.missing = missing
        self.bad_boxes: BadBoxes = bad_boxes

    def of(self, records: RecordsToLabel) -> list[ObjectRows]:
        """Read the boxes and keypoints of records; see `core.contracts.Annotations`."""
        folder, where = find_labels("voc_keypoints", "folder", self.path, records)
        # Shorter names first: the tenth object of an image stands behind the second.
        paths = sorted(map(str, Path(folder).rglob("*.xml")), key=lambda path: (len(path), path))
        files = [file for file in map(LabelFile.at, paths) if file is not None]
        known = records.classes.get("keypoints")
        return cached_objects(
            "voc_keypoints",
            {**vars(self), "keypoints": known},
            records,
            marks=marks_of(files),
            read=lambda: self._read(files, folder, records.keys, known, where),
            where=where,
        )

    def _read(
        self,
        files: Sequence[LabelFile],
        folder: str,
        keys: Sequence[str],
        known: Sequence[str] | None,
        where: str,
    ) -> tuple[list[Objects | str], Mapping[str, Sequence[str]]]:
        """Read the objects of each record, with as many keypoints each, and their names."""
        images: dict[str, list[ElementTree.Element]] = {}
        for file in files:
            try:
                root = parse_xml(read_file(file.path, root=folder))
                image = (root.findtext("image") or "").strip()
                if not image:
                    raise ValueError(f"<{root.tag}> names no <image>")
            except (MissingFile, ValueError) as error:
                name = os.path.relpath(file.path, folder)
                raise ValueError(
                    f"{where}: {name}: {error}; expected <annotation><image>..., correct or "
                    f"remove it"
                ) from error
            images.setdefault(image, []).append(root)
        entries = entries_of(keys, list(images), where=where)
        check_unlabelled(keys, entries, self.missing, where, "XML")
        of_records = [[] if entry is None else images[entry] for entry in entries]
        points = (p for roots in of_records for root in roots for p in root.iter("keypoint"))
        names = list(known or ordered_names(points))
        return [self._objects(roots, names) for roots in of_records], {"keypoints": names}

    def _objects(self, roots: Sequence[ElementTree.Element], names: Sequence[str]) -> Objects | str:
        """Read the objects of an image, or say what is wrong with one."""
        found, first = Objects(), float(self.one_based)
        try:
            for root in roots:
                label = (root.findtext("category") or "").strip()
                bounds = root.find("visible_bounds")
                if not label or bounds is None:
                    raise ValueError("has no <category>" if not label else "has no visible_bounds")
                left, top, width, height = (
                    number_of(bounds, side, "visible_bounds")
                    for side in ("xmin", "ymin", "width", "height")
                )
                left, top = left - first, top - first
                found.boxes.append((left, top, left + width, top + height))
                found.names.append(label)
                found.keypoints += points_by_name(root.iter("keypoint"), names, first=first)
        except ValueError as error:
            return f"object {len(found.boxes)}: {error}"
        return found
