"""Move boxes and keypoints with their image."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.sample import Sample, require_pixels
from penstock.transforms.amounts import Share

# Three corners that turn left; if they turn right afterwards, the image is mirrored.
_CORNERS = np.array([(0, 0), (1, 0), (0, 1)], np.float32)
# Rounding error in pixels: libraries keep boxes as shares of the image.
_ROUNDING = 1e-3
_SIDE = re.compile(r"left|right|(?<![a-z])[lr](?![a-z])", re.IGNORECASE)
_OTHER_SIDE = {"left": "right", "Left": "Right", "LEFT": "RIGHT", "l": "r", "L": "R"}
_OTHER_SIDE |= {right: left for left, right in _OTHER_SIDE.items()}
_Floats = NDArray[np.floating[Any]]
_Least = Annotated[float, Ge(0)]


@register("settings", "boxes")
@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSettings:
    """Limits below which an augmentation stack drops boxes.

    The stack checks them after every step of a library, and after each window. The rows of every
    ``box_*`` field follow. A box with a mask is cut to the rest of its mask.

    Attributes:
        min_area: Minimum area, in square pixels of the current image.
        min_visibility: Minimum share of a box's area that a step must leave in the image, 0 .. 1.
        min_width: Minimum width, in pixels.
        min_height: Minimum height, in pixels.
    """

    min_area: _Least = 0.0
    min_visibility: Share = 0.0
    min_width: _Least = 0.0
    min_height: _Least = 0.0

    def cut(self, boxes: _Floats, shape: tuple[int, ...]) -> tuple[NDArray[np.float32], Any]:
        """Cut boxes, xyxy [N, 4], at the edges of an image; also return which to keep, bool [N]."""
        cut = boxes_inside(boxes, shape)  # float64, since rounding would hide a part
        kept = self.kept(cut) & (_areas(cut) >= self.min_visibility * _areas(boxes))
        return cut.astype(np.float32), kept

    def kept(self, boxes: _Floats) -> NDArray[np.bool_]:
        """Return which boxes have an area and are large enough, bool [N]."""
        areas, sides = _areas(boxes), boxes[:, 2:] - boxes[:, :2]
        large: NDArray[np.bool_] = (areas > 0) & (areas >= self.min_area)
        return large & (sides >= [self.min_width, self.min_height]).all(1)


def boxes_inside(boxes: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Cut boxes, xyxy [N, 4], at the edges of an image of `shape`."""
    return np.asarray(boxes, np.float64).reshape(-1, 4).clip(0, [shape[1], shape[0]] * 2)


def _areas(boxes: _Floats) -> NDArray[np.float64]:
    boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
    areas: NDArray[np.float64] = np.maximum(boxes[:, 2:] - boxes[:, :2], 0).prod(1)
    return areas


@register("settings", "keypoints")
@dataclass(frozen=True, slots=True, kw_only=True)
class KeypointSettings:
    """Keypoints that trade places when an image is mirrored.

    Attributes:
        swaps: Pairs of keypoints to swap, by name or number, such as ``[[left_eye, right_eye]]``
            or ``[[1, 2], [3, 4]]``; null: pairs whose names differ by left and right, or L and R.
        per_object: Keypoints per object, if an image holds several objects; null: the number of
            keypoints that the data names, or all.
    """

    swaps: list[list[int | str]] | None = None
    per_object: Annotated[int, Ge(1)] | None = None

    def __post_init__(self) -> None:
        points = [point for pair in self.swaps or () for point in pair]
        least = min((point for point in points if isinstance(point, int)), default=0)
        paired = all(len(pair) == 2 for pair in self.swaps or ())
        if not paired or least < 0 or len(set(points)) < len(points):
            raise ValueError(
                f"augment.keypoints.swaps: {self.swaps}, expected pairs of different keypoints, by "
                f"name or by number from 0 on, each in one pair, such as [[1, 2], [3, 4]]"
            )

    def settled(self, names: Sequence[str] | None) -> KeypointSettings:
        """Return the settings with pairs by number, given the names of an object's points."""
        known = {name: number for number, name in enumerate(names or ())}
        swaps = self.swaps
        if swaps is None and known:
            mirrored = (
                (name, _SIDE.sub(lambda side: _OTHER_SIDE.get(side[0], side[0]), name))
                for name in known
            )
            swaps = [[a, b] for a, b in mirrored if known[a] < known.get(b, -1)] or None
        unknown = {p for pair in swaps or () for p in pair if isinstance(p, str)} - known.keys()
        if unknown:
            there = f"has {', '.join(known)}" if known else "names none, give their numbers"
            raise ValueError(
                f"augment.keypoints.swaps: no keypoint is called {min(unknown)!r}, the data {there}"
            )
        if swaps is not None:
            swaps = [[known[p] if isinstance(p, str) else p for p in pair] for pair in swaps]
        return KeypointSettings(swaps=swaps, per_object=self.per_object or len(known) or None)

    def swapped(self, keypoints: NDArray[np.float32], key: str) -> NDArray[np.float32]:
        """Return the keypoints of a mirrored image, [K, 3], after `settled` resolved names."""
        swaps: Any = self.swaps
        per_object = self.per_object or max(len(keypoints), 1)
        most = max((point for pair in swaps or () for point in pair), default=0)
        unnamed = swaps is None and per_object > 1
        if unnamed or len(keypoints) % per_object or most >= per_object:
            raise ValueError(
                f"augment.keypoints: {key!r} is mirrored and has {len(keypoints)} keypoints, "
                f"{per_object} for each object, swaps={swaps}; set "
                f"augment.keypoints.swaps=[[0,1]] to the pairs that a mirror exchanges, by name or "
                f"number, or to [] if there are none"
            )
        by_object = keypoints.reshape(-1, per_object, 3).copy()
        for a, b in swaps or ():
            by_object[:, [a, b]] = by_object[:, [b, a]]
        return by_object.reshape(-1, 3)


@dataclass(frozen=True, slots=True)
class Targets:
    """Pass boxes and keypoints to an augmentation library, and take them back."""

    boxes: BoxSettings = field(default_factory=BoxSettings)
    keypoints: KeypointSettings = field(default_factory=lambda: KeypointSettings(swaps=[]))

    def points(self, sample: Sample) -> NDArray[np.float32]:
        """Return the points to move with the image, float32 [K, 2] or [K + 3, 2]."""
        points: NDArray[np.float32] = sample["keypoints"][:, :2]
        return points if self.keypoints.swaps == [] else np.concatenate([points, _CORNERS])

    def put_boxes(self, sample: Sample, boxes: Any, rows: Any, shape: tuple[int, ...]) -> None:
        """Store the remaining boxes, [n, 4], of a sample's `rows`, [n], in an image of `shape`."""
        fields = box_fields(sample)
        height, width = shape[:2]
        cut = np.asarray(boxes, np.float32).reshape(-1, 4)
        cut = np.minimum(cut, np.array([width, height, width, height], np.float32))
        there = (cut[:, 2:] - cut[:, :2] > _ROUNDING).all(1)
        sample["boxes"], kept = cut[there], np.asarray(rows, np.int64)[there]
        if "box_masks" in sample:
            masks = sample["box_masks"][kept]
            seen = masks.any((1, 2))
            around, kept = _boxes_around(masks[seen]), kept[seen]
            large = self.boxes.kept(around)
            sample["boxes"], kept = around[large], kept[large]
        for name in fields:
            sample[name] = np.asarray(sample[name])[kept]

    def put_points(
        self, sample: Sample, points: Any, lost: NDArray[np.bool_], *, mirrored: bool | None = None
    ) -> None:
        """Store the moved points of `points`; `lost` ones, bool [n], get visibility 0.

        `mirrored` tells whether the image is mirrored; None: see the corners after the points.
        """
        moved = np.asarray(points, np.float32).reshape(-1, 2)
        keypoints = np.array(sample["keypoints"], np.float32)
        count = len(keypoints)
        keypoints[:, :2] = moved[:count]
        keypoints[lost[:count], 2] = 0
        if mirrored is None:
            mirrored = len(moved) > count and _turn_right(moved[count:])
        if mirrored and self.keypoints.swaps != []:
            keypoints = self.keypoints.swapped(keypoints, str(sample.get("key")))
        sample["keypoints"] = keypoints


def _turn_right(corners: NDArray[np.float32]) -> bool:
    (ax, ay), (bx, by), (cx, cy) = corners.astype(float).tolist()
    return (bx - ax) * (cy - ay) - (by - ay) * (cx - ax) < 0


def _boxes_around(masks: NDArray[Any]) -> NDArray[np.float32]:
    """Return the boxes, float32 [n, 4], around the pixels of masks, [n, H, W]."""
    sides: list[NDArray[Any]] = [np.asarray(masks.any(axis)) for axis in (1, 2)]
    edges = [each.argmax(1) for each in sides]
    edges += [each.shape[1] - each[:, ::-1].argmax(1) for each in sides]
    return np.stack(edges, 1).astype(np.float32)


def outside(points: _Floats, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return which points (x, y, ...) are outside an image of `shape`, bool [n]; NaN is outside."""
    inside = (points[:, :2] >= 0) & (points[:, :2] < [shape[1], shape[0]])
    lost: NDArray[np.bool_] = np.logical_not(inside.all(1))  # true for NaN
    return lost


def image_of(sample: Sample) -> Any:
    """Return a sample's image, pixels or pending; raise ValueError if there is none."""
    image = sample.get("image")
    if image is None:
        raise ValueError(
            f"no image to augment, fields: {', '.join(sample)}; leave samples as they are with "
            f"augment=as_is, or say which field is the image with dataset.keys={{FIELD:image}}"
        )
    require_pixels(image)
    return image


def box_fields(sample: Sample) -> list[str]:
    """Return the names of fields with a row for each box, other than the boxes."""
    count = len(sample.get("boxes", ()))
    return [name for name in sample if name.startswith("box_") and len(sample[name]) == count]


def rows_of(samples: Sequence[Sample], rows: Sequence[Any]) -> Sample:
    """Concatenate `rows` of the fields with a row for each box of several samples."""
    pairs = [*zip(samples, rows, strict=True)]
    return {
        name: np.concatenate([np.asarray(sample[name])[chosen] for sample, chosen in pairs])
        for name in box_fields(samples[0])
    }


def check_together(step: str, samples: Sequence[Sample], fields: Sequence[str]) -> None:
    """Raise ValueError unless samples have equal fields, types and channels, as steps need them."""
    first = samples[0]
    for one in samples:
        key = one.get("key")
        missing = [name for name in (*fields, *box_fields(first)) if name not in one]
        if missing or "box_masks" in one:
            masks = "box_masks" in one
            remedy = "dataset.annotations.masks=false" if masks else "dataset/annotations=coco"
            raise ValueError(
                f"{step}: {key!r} has {', '.join(one)}, expected {', '.join(fields)} and no "
                f"box_masks; type {remedy}, or leave the step out"
            )
        for name in [name for name in ("image", "mask") if name in fields]:
            a, b = one[name], first[name]
            if (a.dtype, a.shape[2:]) != (b.dtype, b.shape[2:]):
                raise ValueError(
                    f"{step}: the {name} of {key!r} is {a.dtype} {list(a.shape)}, of "
                    f"{first.get('key')!r} {b.dtype} {list(b.shape)}; types and channels must agree"
                )
