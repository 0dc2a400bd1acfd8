"""Demo images whose shapes have numbers, and transforms with given partners."""

from __future__ import annotations

import cv2
import numpy as np

from penstock.core.rng import KeyedRng
from penstock.datasets.demo.shapes import draw_scene


def scene(number: int, *, split: int = 0, mask: bool = True) -> dict:
    """A demo image whose mask numbers its shapes, so that tests know each of them."""
    drawn = draw_scene(split, number)
    ids = np.zeros(drawn.mask.shape, np.int64)
    for row, (box, label) in enumerate(zip(drawn.boxes, drawn.box_labels, strict=True)):
        # The boxes of two shapes may meet; the shapes do not.
        _, parts = cv2.connectedComponents((drawn.mask == label + 1).astype(np.uint8))
        own = [p for p in range(1, parts.max() + 1) if bounds(parts == p) == box]
        assert len(own) == 1
        ids[parts == own[0]] = 100 * number + row + 1
    sample = {
        "image": drawn.image,
        "boxes": np.array(drawn.boxes, np.float32).reshape(-1, 4),
        "box_labels": 100 * number + np.arange(len(drawn.boxes)),
        "box_areas": np.arange(len(drawn.boxes)) + 0.5 * number,
        "keypoints": np.array(drawn.keypoints, np.float32).reshape(-1, 3),
        "label": drawn.label,
        "key": str(number),
        "index": number,
    }
    return {**sample, "mask": ids} if mask else sample


def shapes_of(made: dict):
    """Yield the box and the pixels of each shape, whose other fields are in step."""
    assert len(made["boxes"]) == len(made["box_labels"]) == len(made["box_areas"])
    labels = made["box_labels"].tolist()
    for box, label, area in zip(made["boxes"], labels, made["box_areas"], strict=True):
        assert area == label % 100 + 0.5 * (label // 100)
        yield box, made["mask"] == label + 1


def rng(position: int):
    return KeyedRng().at(3, 0, position)


class Alone:
    """A transform of samples alone, with the others that it is tested with."""

    def __init__(self, transform, partners: list[dict]) -> None:
        self.transform, self.partners = transform, partners

    def __call__(self, sample, draws):
        return self.transform(sample, draws, self.partners)


def bounds(pixels: np.ndarray) -> list[int]:
    rows, columns = np.flatnonzero(pixels.any(1)), np.flatnonzero(pixels.any(0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
