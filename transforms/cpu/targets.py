"""Move boxes and keypoints with their image."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.sample import Sample, require_pixels


@register("settings", "boxes")
@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSettings:
    """Limits below which an augmentation stack drops boxes.

    The stack checks them after every step of a library, and after consecutive window steps.
    Boxes are cut at the edges of the image. Boxes outside the image are always dropped. The rows
    of every ``box_*`` field follow.

    Attributes:
        min_area: Minimum area, in square pixels of the current image.
        min_visibility: Minimum share of a box's area that a step must leave in the image, 0 .. 1.
        min_width: Minimum width, in pixels.
        min_height: Minimum height, in pixels.
    """

    min_area: Annotated[float, Ge(0)] = 0.0
    min_visibility: Annotated[float, Ge(0), Le(1)] = 0.0
    min_width: Annotated[float, Ge(0)] = 0.0
    min_height: Annotated[float, Ge(0)] = 0.0


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
        """Validate the pairs."""
        points = [point for pair in self.swaps or () for point in pair]
        numbers = [point for point in points if isinstance(point, int)]
        for pair in self.swaps or ():
            if len(pair) != 2 or pair[0] == pair[1] or any(n in pair for n in numbers if n < 0):
                raise ValueError(
                    f"augment.keypoints.swaps: {pair}, expected two different keypoints, by "
                    f"name or by number from 0 on, such as [1, 2]"
                )
        if len(set(points)) < len(points):
            raise ValueError("augment.keypoints.swaps: a keypoint is in two pairs; keep one")
        if self.per_object is not None and numbers and max(numbers) >= self.per_object:
            raise ValueError(
                f"augment.keypoints.swaps: keypoint {max(numbers)} of objects with "
                f"{self.per_object}; numbers begin at 0"
            )

    def settled(self, names: Sequence[str] | None) -> KeypointSettings:
        """Return the settings with pairs by number, given the data's names of an object's points.

        Raises:
            ValueError: A pair names an unknown keypoint.
        """
        known = {name: number for number, name in enumerate(names or ())}
        pairs = [list(pair) for pair in self.swaps or ()]
        for name in (point for pair in pairs for point in pair if isinstance(point, str)):
            if name not in known:
                there = f"has {', '.join(known)}" if known else "names none, give their numbers"
                raise ValueError(
                    f"augment.keypoints.swaps: no keypoint is called {name!r}, the data {there}"
                )
        if self.swaps is None:
            mirrored = ((name, _SIDE.sub(_other_side, name)) for name in known)
            pairs = [[a, b] for a, b in mirrored if known[a] < known.get(b, -1)]
        numbers: list[list[int | str]] = [
            [known[p] if isinstance(p, str) else p for p in pair] for pair in pairs
        ]
        return KeypointSettings(
            swaps=numbers if pairs or self.swaps is not None else None,
            per_object=self.per_object or len(known) or None,
        )


_SIDE = re.compile(r"left|right|(?<![a-z])[lr](?![a-z])", re.IGNORECASE)
_OTHER_SIDE = {"left": "right", "right": "left", "l": "r", "r": "l"}


def _other_side(found: re.Match[str]) -> str:
    side = _OTHER_SIDE[found[0].lower()]
    if found[0].isupper():
        return side.upper()
    return side.capitalize() if found[0][0].isupper() else side


# Three corners that turn left; if they turn right afterwards, the image is mirrored.
_CORNERS = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))
# Rounding error in pixels: libraries keep boxes as shares of the image.
_ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class Targets:
    """Pass boxes and keypoints to an augmentation library, and take them back.

    Attributes:
        boxes: Limits below which boxes are dropped; None drops only boxes outside the image.
        keypoints: Keypoints that a mirror swaps; None: none.
    """

    boxes: BoxSettings | None = None
    keypoints: KeypointSettings | None = None

    @property
    def box_limits(self) -> dict[str, float]:
        """Limits by albumentations' names."""
        return {} if self.boxes is None else asdict(self.boxes)

    def points(self, sample: Sample) -> NDArray[np.float32]:
        """Return the points to move with the image, float32 [K, 2] or [K + 3, 2]."""
        points: NDArray[np.float32] = sample["keypoints"][:, :2]
        if self.keypoints is not None and self.keypoints.swaps != []:
            points = np.concatenate([points, np.array(_CORNERS, np.float32)])
        return points

    def put_boxes(self, sample: Sample, boxes: Any, rows: Any, shape: tuple[int, ...]) -> None:
        """Store the remaining boxes, [n, 4], of a sample's `rows`, [n], in an image of `shape`.

        A box thinner than a rounding error is dropped.
        """
        count = len(sample["boxes"])
        height, width = shape[:2]
        cut = np.asarray(boxes, np.float32).reshape(-1, 4)
        cut = np.minimum(cut, np.array([width, height, width, height], np.float32))
        there = (cut[:, 2:] - cut[:, :2] > _ROUNDING).all(1)
        sample["boxes"], kept = cut[there], np.asarray(rows, np.int64)[there]
        for key in [key for key in sample if key.startswith("box_")]:
            if len(sample[key]) == count:
                sample[key] = np.asarray(sample[key])[kept]
        if "box_masks" in sample:
            _fit_to_masks(sample)

    def put_points(
        self,
        sample: Sample,
        points: Any,
        lost: NDArray[np.bool_],
        *,
        mirrored: bool | None = None,
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
        if mirrored and self.keypoints is not None and self.keypoints.swaps != []:
            keypoints = self._swapped(keypoints, str(sample.get("key")))
        sample["keypoints"] = keypoints

    def _swapped(self, keypoints: NDArray[np.float32], key: str) -> NDArray[np.float32]:
        assert self.keypoints is not None
        per_object = self.keypoints.per_object or max(len(keypoints), 1)
        if len(keypoints) % per_object:
            raise ValueError(
                f"{key!r} has {len(keypoints)} keypoints, expected a multiple of "
                f"augment.keypoints.per_object={per_object}"
            )
        by_object = keypoints.reshape(-1, per_object, 3).copy()
        if self.keypoints.swaps is None and per_object > 1:
            raise ValueError(
                "the image is mirrored, and no names of its keypoints differ by left and right; "
                "set augment.keypoints.swaps=[[0,1]] with the pairs that a mirror exchanges, by "
                "name or number, or to [] if there are none"
            )
        swaps: Any = self.keypoints.swaps or ()  # numbers, since `settled` resolved names
        for a, b in swaps:
            if max(a, b) >= per_object:
                raise ValueError(
                    f"augment.keypoints.swaps names keypoint {max(a, b)}, {key!r} has "
                    f"0 to {per_object - 1}; set augment.keypoints.swaps=[[left,right],...] to the "
                    f"pairs that a mirror exchanges, or to [] if there are none"
                )
            by_object[:, [a, b]] = by_object[:, [b, a]]
        return by_object.reshape(-1, 3)


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


def _fit_to_masks(sample: Sample) -> None:
    """Shrink boxes to their masks, and drop boxes with empty masks."""
    masks = sample["box_masks"]
    rows, columns = masks.any(2), masks.any(1)
    there = rows.any(1)
    for key in [key for key in sample if key.startswith("box_")]:
        sample[key] = sample[key][there]
    rows, columns = rows[there], columns[there]
    edges = [columns.argmax(1), rows.argmax(1)]
    edges += [each.shape[1] - each[:, ::-1].argmax(1) for each in (columns, rows)]
    sample["boxes"] = np.stack(edges, 1).astype(np.float32)


def check_together(step: str, samples: Sequence[Sample], fields: Sequence[str]) -> None:
    """Check that samples have `fields` and images of as many channels, and no ``box_masks``.

    Raises:
        ValueError: A field is missing, or a step would have to move masks of boxes.
    """
    for one in samples:
        key = one.get("key")
        if "box_masks" in one:
            raise ValueError(
                f"{step}: {key!r} has box_masks, which it does not move; leave the step out, or "
                f"drop them with dataset.annotations.masks=false"
            )
        for name in fields:
            if name not in one:
                raise ValueError(
                    f"{step}: {name} missing in {key!r}; choose annotations with it, such as "
                    f"dataset/annotations=coco, or drop the field with dataset.keys"
                )
        shape, first = one["image"].shape, samples[0]["image"].shape
        if shape[2:] != first[2:]:
            raise ValueError(
                f"{step}: {key!r} is an image of shape {shape}, {samples[0].get('key')!r} of "
                f"{first}; channels must agree"
            )


class LostPoints:
    """Record which points leave the image in any step.

    A later step may add a border and move a point's place back inside; its pixels are still gone.

    Attributes:
        marks: Whether a point was ever outside, bool [n].
    """

    marks: NDArray[np.bool_]

    def begin(self, points: NDArray[np.float32], shape: tuple[int, ...]) -> None:
        """Mark points outside an image of `shape`, before the first step."""
        self.marks = outside(points, shape[:2])

    def note(self, points: NDArray[np.floating[Any]], shape: Any) -> NDArray[np.floating[Any]]:
        """Mark points outside the image after a step; replaces the `filter` of a processor."""
        if len(points) != len(self.marks):
            raise ValueError(
                f"{len(self.marks)} keypoints became {len(points)}, as where an image is mirrored "
                f"at its border; set border_mode: 0"
            )
        self.marks |= outside(points, (shape["height"], shape["width"]))
        return points


def outside(points: NDArray[np.floating[Any]], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return which points (x, y, ...) are outside an image of `shape`, bool [n]; NaN is outside."""
    x, y = points[:, 0], points[:, 1]
    height, width = shape
    inside: NDArray[np.bool_] = (x >= 0) & (y >= 0) & (x < width) & (y < height)
    return ~inside  # true for NaN


def _turn_right(corners: NDArray[np.float32]) -> bool:
    (ax, ay), (bx, by), (cx, cy) = corners.astype(float).tolist()
    return (bx - ax) * (cy - ay) - (by - ay) * (cx - ax) < 0


def rows_of(samples: Sequence[Sample], rows: Sequence[Any] | None = None) -> dict[str, Any]:
    """Concatenate the ``box_*`` fields of several samples.

    Args:
        samples: The first sample decides the fields: all that are as long as its boxes.
        rows: Rows to take of each sample; None takes all.
    """
    first = samples[0]
    count = len(first["boxes"])
    names = [name for name in first if name.startswith("box_") and len(first[name]) == count]
    fields = {}
    for name in names:
        parts = []
        for number, sample in enumerate(samples):
            if name not in sample:
                raise ValueError(
                    f"the field {name!r} of {first.get('key')!r} is missing in "
                    f"{sample.get('key')!r}; combined samples need the same fields"
                )
            values = np.asarray(sample[name])
            parts.append(values if rows is None else values[rows[number]])
        fields[name] = np.concatenate(parts)
    return fields


def cut_boxes(
    boxes: NDArray[np.floating[Any]], shape: tuple[int, ...], limits: BoxSettings | None
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Cut boxes, xyxy [N, 4], at the edges of an image of `shape`.

    Returns:
        The cut boxes, float32 [N, 4], and which of them to keep, bool [N].
    """
    height, width = shape[:2]
    cut = np.clip(boxes, 0, [width, height, width, height]).astype(np.float32)
    return cut, left_over(cut, areas(boxes), limits)


def areas(boxes: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return the areas of boxes, [N], in square pixels."""
    sides = np.asarray(boxes, np.float64).reshape(-1, 4)
    return np.maximum(sides[:, 2] - sides[:, 0], 0) * np.maximum(sides[:, 3] - sides[:, 1], 0)


def left_over(
    boxes: NDArray[np.float32], before: NDArray[np.float64], limits: BoxSettings | None
) -> NDArray[np.bool_]:
    """Return which boxes to keep, bool [N], given their areas `before` the cut, [N]."""
    now = areas(boxes)
    kept: NDArray[np.bool_] = now > 0
    if limits is not None:
        kept &= (now >= limits.min_area) & (now >= limits.min_visibility * before)
        kept &= boxes[:, 2] - boxes[:, 0] >= limits.min_width
        kept &= boxes[:, 3] - boxes[:, 1] >= limits.min_height
    return kept
