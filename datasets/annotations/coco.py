"""Read boxes, masks and keypoints from COCO: one JSON file per split."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from penstock.core.contracts import RecordsToLabel
from penstock.core.json_text import parse_json
from penstock.core.registry import register
from penstock.datasets.annotations.rows import BadBoxes, LabelSource, ObjectRows, Objects
from penstock.datasets.records.label_files import LabelFile, find_labels
from penstock.datasets.records.matching import matched, plain


class MissingPackageError(ValueError):
    """A required library is not installed; the annotation is not at fault."""


@register("annotations", "coco")
class CocoAnnotations:
    """Read boxes, masks and keypoints from COCO: one JSON file per split.

    Records get ``boxes`` float32 [N, 4] (xyxy, pixels, right and bottom edge exclusive, clipped
    to the image), ``box_labels`` int64 [N], ``box_crowd`` and ``box_id`` int64 [N]. Keypoints in
    the file become ``keypoints`` float32 [K, 3], concatenated over instances. With `masks`,
    decoded images get ``box_masks`` uint8 [N, H, W], from polygons or run lengths. A broken
    annotation makes its record bad.

    Args:
        path: The JSON file, in the data's folder or beside it; ``{part}`` is train or val.
        masks: Also read the mask of each box.
        crowd: ``keep`` or ``drop`` boxes around crowds.
        rescale: The file describes images of another size: scale boxes and keypoints from the
            stated size to the image. False: an image of another size is a bad record.
        missing: For an image outside the file: raise an ``error``, or accept it as ``empty``.
        bad_boxes: For a box without area in its image: ``drop`` it with a warning, or make its
            ``record`` bad.
    """

    def __init__(
        self,
        path: str = "annotations/{part}.json",
        *,
        masks: bool = False,
        crowd: Literal["keep", "drop"] = "keep",
        missing: Literal["error", "empty"] = "error",
        rescale: bool = False,
        bad_boxes: BadBoxes = "drop",
    ) -> None:
        self.path = path
        self.masks = masks
        self.crowd = crowd
        self.missing = missing
        self.rescale = rescale
        if rescale and masks:
            raise ValueError(
                "dataset.annotations.rescale: true scales no masks; set "
                "dataset.annotations.masks=false, or state the size of the images in the file"
            )
        self.bad_boxes: BadBoxes = bad_boxes

    def of(self, records: RecordsToLabel) -> list[ObjectRows]:
        """Read the boxes and keypoints of records; see `core.contracts.Annotations`."""
        path, where = find_labels("coco", "file", self.path, records)
        source = LabelSource("coco", vars(self), records, [LabelFile.at(path)], where)
        return source.objects(lambda: self._read(path, records, where))

    def _read(
        self, path: str, records: RecordsToLabel, where: str
    ) -> tuple[list[Objects | str], dict[str, list[str]]]:
        try:
            with open(path, "rb") as file:
                content = parse_json(file.read())
            images, annotations = _listed(content, "images"), _listed(content, "annotations")
            categories = {_whole(c["id"]): c for c in _listed(content, "categories")}
            names = {number: str(c["name"]) for number, c in categories.items()}
            points = [list(map(str, c.get("keypoints") or ())) for c in categories.values()]
            found, by_id = self._images(images)
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{where}: cannot be read as JSON: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            said = f"lacks {error}" if isinstance(error, KeyError) else str(error)[:140]
            raise ValueError(f"{where}: is no COCO file: {said}") from error
        entries = matched(
            records.keys,
            list(found),
            self.missing,
            place=records.place,
            where=where,
            what="entry",
            its_own=not records.part or "{part}" in self.path,
        )
        rows = [None if entry is None else found[entry] for entry in entries]
        for number, annotation in enumerate(annotations):
            self._add(annotation, number, by_id, names, where)
        objects = [Objects() if row is None else by_id[row] for row in rows]
        called = {"box_labels": [names[number] for number in sorted(names)]}
        # If classes name keypoints differently, a keypoint number has several names.
        if points and points[0] and all(one == points[0] for one in points):
            called["keypoints"] = points[0]
        return objects, called

    @staticmethod
    def _images(images: Sequence[Any]) -> tuple[dict[str, int], dict[int, Objects | str]]:
        """Read image ids by file name, and create the objects of each image by id."""
        found: dict[str, int] = {}
        by_id: dict[int, Objects | str] = {}
        for image in images:
            number, name = _whole(image["id"]), plain(str(image["file_name"]))
            if number in by_id or name in found:
                raise ValueError(f"image {number}, {name!r}, stands twice")
            found[name] = number
            size = (_whole(image.get("width") or 0), _whole(image.get("height") or 0))
            extras: dict[str, list[int]] = {"crowd": [], "id": []}
            by_id[number] = Objects(extras=extras, size=size if min(size) > 0 else None)
        return found, by_id

    def _add(
        self,
        annotation: Any,
        number: int,
        by_id: dict[Any, Objects | str],
        names: Mapping[int, str],
        where: str,
    ) -> None:
        """Add an annotation to its image; a broken one makes the image's record bad."""
        image = annotation.get("image_id") if isinstance(annotation, dict) else None
        if not isinstance(image, int) or image not in by_id:
            raise ValueError(
                f"{where}: annotation {number} is of image {image!r}, which is not listed; "
                f"remove it, or list the image"
            )
        objects = by_id[image]
        if isinstance(objects, str):
            return
        try:
            category = annotation["category_id"]
            if category not in names:
                raise ValueError(f"category {category!r} is not listed")
            crowd, name = (_whole(annotation.get(key) or 0) for key in ("iscrowd", "id"))
            if crowd and self.crowd == "drop":
                return
            x, y, width, height = map(float, annotation["bbox"])
            mask = _mask(annotation["segmentation"], objects.size) if self.masks else None
            points = [float(value) for value in annotation.get("keypoints") or ()]
            if len(points) % 3:
                raise ValueError(f"{len(points)} values of keypoints, expected x, y, v of each")
            if not all(map(math.isfinite, points)):
                raise ValueError("a keypoint is not a finite number")
        except MissingPackageError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            said = f"lacks {error}" if isinstance(error, KeyError) else str(error)[:140]
            by_id[image] = f"annotation {number} of {os.path.basename(where)}: {said}"
            return
        objects.boxes.append((x, y, x + width, y + height))
        if mask is not None:
            objects.masks.append(mask)
        objects.names.append(names[category])
        objects.extras["crowd"].append(crowd)
        objects.extras["id"].append(name)
        objects.keypoints += [points[i : i + 3] for i in range(0, len(points), 3)]


def _mask(segmentation: Any, size: tuple[int, int] | None) -> bytes:
    """Encode polygons or run lengths as ``height,width,counts``, compressed."""
    try:
        from pycocotools import mask
    except ImportError as error:
        raise MissingPackageError(
            "dataset.annotations.masks=true needs pycocotools; "
            "pip install -c constraints.txt '.[detection]'"
        ) from error
    if isinstance(segmentation, dict):
        height, width = map(_whole, segmentation["size"])
        counts = segmentation["counts"]
        if size not in (None, (width, height)):
            raise ValueError(f"its mask has {width}x{height} pixels, the image {size}")
        if isinstance(counts, list):
            if any(_whole(run) < 0 for run in counts) or sum(counts) != height * width:
                raise ValueError(f"the runs of its mask are not {width}x{height} pixels")
            counts = mask.frPyObjects(segmentation, height, width)["counts"]
    else:
        if size is None:
            raise ValueError("its image lacks the width and height that polygons need")
        polygons = [[float(value) for value in polygon] for polygon in segmentation]
        if not polygons or any(len(one) < 6 or len(one) % 2 for one in polygons):
            raise ValueError("a polygon of its mask has fewer than 3 corners")
        if not all(map(math.isfinite, itertools.chain(*polygons))):
            raise ValueError("a corner of its mask is not a finite number")
        width, height = size
        counts = mask.merge(mask.frPyObjects(polygons, height, width))["counts"]
    text = counts.encode("ascii") if isinstance(counts, str) else counts
    return b"%d,%d,%s" % (height, width, text)


def _whole(value: Any) -> int:
    """Return an integer; raise ValueError or TypeError if it does not fit int64."""
    if not abs(float(value)) < 1 << 62:
        raise ValueError(f"got {str(value)[:40]}, expected a whole number")
    return int(value)


def _listed(content: Any, name: str) -> list[Any]:
    value = content[name] if isinstance(content, dict) else None
    if not isinstance(value, list):
        raise ValueError(f"expected an object with a list {name!r}")
    return value
