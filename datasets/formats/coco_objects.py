"""What is drawn in the demo set, as COCO lays out objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets.demo import Scene


def categories(names: Sequence[str], keypoints: Sequence[str]) -> list[dict[str, Any]]:
    """The classes, numbered from 1, which have all the same keypoints."""
    return [
        {"id": 1 + i, "name": name, "supercategory": "shape", "keypoints": list(keypoints),
         "skeleton": []}
        for i, name in enumerate(names)
    ]  # fmt: skip


def scene_objects(image_id: int, scene: Scene, *, first_id: int) -> list[dict[str, Any]]:
    """The shapes of an image as COCO annotations; the first, the largest, has keypoints."""
    objects: list[dict[str, Any]] = []
    for number, (box, kind) in enumerate(zip(scene.boxes, scene.box_labels, strict=True)):
        left, top, right, bottom = box
        objects.append(
            {
                "id": first_id + number,
                "image_id": image_id,
                "category_id": 1 + kind,
                "bbox": [left, top, right - left, bottom - top],
                "area": int((scene.mask[top:bottom, left:right] == 1 + kind).sum()),
                "iscrowd": 0,
            }
        )
    points = [value for point in scene.keypoints for value in point]
    objects[0] |= {"keypoints": points, "num_keypoints": len(scene.keypoints)}
    return objects
