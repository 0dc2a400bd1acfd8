"""Read boxes, masks and keypoints from COCO: one JSON file per split."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from penstock.core.contracts import RecordsToLabel
from penstock.core.json_text import parse_json
from penstock.core.registry import register
from penstock.datasets.annotations.label_source import (
    Found,
    LabelSource,
    Objects,
    RecordFields,
    whole_number,
)
from penstock.datasets.records.matching import plain

log = logging.getLogger(__name__)

_BROKEN = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


@register("annotations", "coco")
@dataclass
class CocoAnnotations:
    """Read boxes, masks and keypoints from COCO: one JSON file per split.

    Records get ``boxes`` float32 [N, 4] (xyxy, pixels, right and bottom edge exclusive),
    ``box_labels`` and ``box_crowd`` int64 [N], and ``keypoints`` float32 [K, 3] of all instances.

    Args:
        path: The JSON file, in the data's folder or beside it; ``{part}`` is train or val.
        masks: Also read ``box_masks``, uint8 [N, H, W] once the image is decoded.
        crowd: ``keep`` or ``drop`` boxes around crowds.
        rescale: Scale boxes and keypoints from another image size; false: such a record is bad.
        missing: Raise an ``error`` for images outside the file, or accept them as ``empty``.
    """

    path: str = "annotations/{part}.json"
    _: KW_ONLY
    masks: bool = False
    crowd: Literal["keep", "drop"] = "keep"
    missing: Literal["error", "empty"] = "error"
    rescale: bool = False

    def __post_init__(self) -> None:
        if self.rescale and self.masks:
            raise ValueError("dataset.annotations.rescale=true scales no masks; set masks=false")

    def of(self, records: RecordsToLabel) -> list[RecordFields]:
        if self.masks and find_spec("pycocotools") is None:
            raise ValueError("dataset.annotations.masks=true needs: pip install pycocotools")
        source = LabelSource.find(self, records, "file", self.path)
        return [RecordFields(source.table(lambda: self._read(source)))]

    def _read(self, source: LabelSource) -> Found:
        objects, images = Objects(source), {}
        try:
            content = parse_json(Path(source.path).read_bytes())
            categories = {each["id"]: each for each in content["categories"]}
            names = {number: str(each["name"]) for number, each in sorted(categories.items())}
            points = [list(map(str, each.get("keypoints") or ())) for each in categories.values()]
            for image in content["images"]:
                name = plain(str(image["file_name"]))
                sides = [whole_number(image.get(side) or 0, side) for side in ("width", "height")]
                images[name] = image["id"], sides
            rows = dict.fromkeys([number for number, _ in images.values()], -1)
            if len(rows) < len(content["images"]):
                raise ValueError("two images have the same id or file_name")
            stray = [i for each in content["annotations"] if (i := each["image_id"]) not in rows]
            rows |= dict.fromkeys(stray, -1)
        except (OSError, *_BROKEN) as error:
            raise ValueError(f"{source.where}: is no COCO file: {_said(error)}") from error
        if stray:
            said = f"{len(stray):,} annotations have an image_id of no image, such as {stray[0]!r}"
            log.warning("%s: %s; they are left out", source.where, said)
        for row, entry in enumerate(source.match(list(images), what="entry")):
            if entry is not None:
                number, sides = images[entry]
                rows[number] = row
                if min(sides) > 0:
                    objects.sizes[row] = sides
        for n, annotation in enumerate(content["annotations"]):
            row = rows[annotation["image_id"]]  # -1: of no record
            try:
                if row >= 0:
                    self._add(annotation, row, objects, names)
            except _BROKEN as error:
                file = os.path.basename(source.path)
                objects.bad.setdefault(row, f"annotation {n} of {file}: {_said(error)}")
        called = {"box_labels": list(names.values())}
        # If classes name keypoints differently, a keypoint number has several names.
        if points and points[0] and all(one == points[0] for one in points):
            called["keypoints"] = points[0]
        return objects.found(called)

    def _add(self, annotation: Any, row: int, objects: Objects, names: Mapping[Any, str]) -> None:
        """Add an annotation of a record; many errors mean that it is broken."""
        crowd = whole_number(annotation.get("iscrowd") or 0, "iscrowd")
        if crowd and self.crowd == "drop":
            return
        category = annotation["category_id"]
        if category not in names:
            raise ValueError(f"category {category!r} is not listed")
        x, y, width, height = map(float, annotation["bbox"])
        masks = [_mask(annotation["segmentation"], objects.sizes.get(row))] if self.masks else []
        points = [float(value) for value in annotation.get("keypoints") or ()]
        if len(points) % 3 or not all(map(math.isfinite, points)):
            raise ValueError(f"{len(points)} values of keypoints, expected finite x, y, v of each")
        objects.boxes.append((row, x, y, x + width, y + height))
        objects.names.append(names[category])
        objects.crowd.append(crowd)
        objects.masks += masks
        objects.points += [(row, *points[i : i + 3]) for i in range(0, len(points), 3)]


def _mask(segmentation: Any, size: Sequence[float] | None) -> str:
    """Encode polygons or run lengths as ``height,width,counts``, compressed."""
    from pycocotools import mask

    if isinstance(segmentation, dict):
        height, width = (whole_number(side, "a side of its mask") for side in segmentation["size"])
        counts = segmentation["counts"]
        if isinstance(counts, list):
            runs = [whole_number(run, "a run of its mask") for run in counts]
            if min(runs, default=0) < 0 or sum(runs) != height * width:
                raise ValueError(f"the runs of its mask are not {width}x{height} pixels")
            counts = mask.frPyObjects(segmentation, height, width)["counts"]
    else:
        if size is None:
            raise ValueError("its image lacks the width and height that polygons need")
        polygons = [[float(value) for value in polygon] for polygon in segmentation]
        good = [len(p) >= 6 and len(p) % 2 == 0 and all(map(math.isfinite, p)) for p in polygons]
        if not good or not all(good):
            raise ValueError("a polygon of its mask has fewer than 3 corners of finite numbers")
        width, height = map(int, size)
        counts = mask.merge(mask.frPyObjects(polygons, height, width))["counts"]
    text = counts if isinstance(counts, str) else counts.decode("ascii")
    return f"{height},{width},{text}"


def _said(error: Exception) -> str:
    return f"lacks {error}" if isinstance(error, KeyError) else str(error)[:140]
