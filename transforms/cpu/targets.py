"""Move boxes and keypoints with their image: settings, limits, and what a library is handed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.sample import Sample


@register("settings", "boxes")
@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSettings:
    """Which boxes an augmentation stack drops; each limit is applied after every step.

    Boxes are cut at the edges of the image, and those that leave it are always dropped; the rows
    of every ``box_*`` field go with them.

    Attributes:
        min_area: Least area, in square pixels of the image as it then is.
        min_visibility: Least share of a box's area that a step may leave in the image, 0 .. 1.
        min_width: Least width in pixels.
        min_height: Least height in pixels.
    """

    min_area: Annotated[float, Ge(0)] = 0.0
    min_visibility: Annotated[float, Ge(0), Le(1)] = 0.0
    min_width: Annotated[float, Ge(0)] = 0.0
    min_height: Annotated[float, Ge(0)] = 0.0


@register("settings", "keypoints")
@dataclass(frozen=True, slots=True, kw_only=True)
class KeypointSettings:
    """Say what a mirrored image means for its keypoints.

    Attributes:
        swaps: Pairs of keypoints that change places when the image is mirrored, by their names
            or numbers, such as ``[[left_eye, right_eye]]`` or ``[[1, 2], [3, 4]]``; null: those
            whose names differ by left and right, or L and R.
        per_object: How many keypoints an object has, where an image has those of several one
            after the other; null: as many as the data names, or all.
    """

    swaps: list[list[int | str]] | None = None
    per_object: Annotated[int, Ge(1)] | None = None

    def __post_init__(self) -> None:
        """Refuse pairs that are none."""
        points = [point for pair in self.swaps or () for point in pair]
        numbers = [point for point in points if isinstance(point, int)]
        for pair in self.swaps or ():
            if len(pair) != 2 or pair[0] == pair[1] or any(n in pair for n in numbers if n < 0):
                raise ValueError(
                    f"augment.keypoints.swaps: {pair} is no pair of two keypoints' names or "
                    f"numbers, from 0 on; give pairs such as [1, 2]"
                )
        if len(set(points)) < len(points):
            raise ValueError("augment.keypoints.swaps: a keypoint is in two pairs; keep one")
        if self.per_object is not None and numbers and max(numbers) >= self.per_object:
            raise ValueError(
                f"augment.keypoints.swaps: keypoint {max(numbers)} of objects with "
                f"{self.per_object}; numbers begin at 0"
            )

    def settled(self, names: Sequence[str] | None) -> KeypointSettings:
        """Say pairs by number, and how many keypoints an object has, as the data names them.

        Args:
            names: Those of the keypoints of an object; None: the data has none.

        Raises:
            ValueError: A pair names a keypoint that the data does not have.
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


# Three corners that turn left; where they turn right afterwards, the image is mirrored.
_CORNERS = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))
# Boxes are shares of an image meanwhile; these pixels, and less, are their rounding.
_ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class Targets:
    """Hand boxes and keypoints to an augmentation library, and take them back.

    Attributes:
        boxes: Which boxes are dropped; None: those that leave the image.
        keypoints: What mirroring means for keypoints; None: nothing.
    """

    boxes: BoxSettings | None = None
    keypoints: KeypointSettings | None = None

    @property
    def box_limits(self) -> dict[str, float]:
        """Limits by the names that albumentations has for them."""
        return {} if self.boxes is None else asdict(self.boxes)

    def points(self, sample: Sample) -> NDArray[np.float32]:
        """Points to be moved with the image, float32 [K, 2] or [K + 3, 2]."""
        points: NDArray[np.float32] = sample["keypoints"][:, :2]
        if self.keypoints is not None and self.keypoints.swaps != []:
            points = np.concatenate([points, np.array(_CORNERS, np.float32)])
        return points

    def put_boxes(self, sample: Sample, boxes: Any, rows: Any, shape: tuple[int, ...]) -> None:
        """Give a sample its boxes as they are now, in an image of `shape`.

        A box that ends where the image begins may be left as thin as a rounding; it is dropped.

        Args:
            sample: The sample.
            boxes: What is left of its boxes, [n, 4].
            rows: Which are left, [n].
            shape: Height and width of the image.
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

    def put_points(self, sample: Sample, points: Any, lost: NDArray[np.bool_]) -> None:
        """Give a sample its keypoints as they are now.

        Points that left the image get visibility 0 and stay.

        Args:
            sample: The sample.
            points: What became of those of `points`.
            lost: Which of them were outside of the image at any time, bool [n].
        """
        moved = np.asarray(points, np.float32).reshape(-1, 2)
        keypoints = np.array(sample["keypoints"], np.float32)
        count = len(keypoints)
        keypoints[:, :2] = moved[:count]
        keypoints[lost[:count], 2] = 0
        if len(moved) > count and _turn_right(moved[count:]):
            keypoints = self._swapped(keypoints, str(sample.get("key")))
        sample["keypoints"] = keypoints

    def _swapped(self, keypoints: NDArray[np.float32], key: str) -> NDArray[np.float32]:
        assert self.keypoints is not None
        per_object = self.keypoints.per_object or max(len(keypoints), 1)
        if len(keypoints) % per_object:
            raise ValueError(
                f"{key!r} has {len(keypoints)} keypoints, which are no multiple of "
                f"augment.keypoints.per_object={per_object}"
            )
        by_object = keypoints.reshape(-1, per_object, 3).copy()
        if self.keypoints.swaps is None and per_object > 1:
            raise ValueError(
                "the image is mirrored, and no names of its keypoints differ by left and right; "
                "set augment.keypoints.swaps=[[0,1]] with the pairs that a mirror exchanges, by "
                "name or number, or to [] if there are none"
            )
        swaps: Any = self.keypoints.swaps or ()  # by number: they are settled
        for a, b in swaps:
            if max(a, b) >= per_object:
                raise ValueError(
                    f"augment.keypoints.swaps names keypoint {max(a, b)}, {key!r} has "
                    f"0 to {per_object - 1}; set augment.keypoints.swaps=[[left,right],...] to the "
                    f"pairs that a mirror exchanges, or to [] if there are none"
                )
            by_object[:, [a, b]] = by_object[:, [b, a]]
        return by_object.reshape(-1, 3)


def _fit_to_masks(sample: Sample) -> None:
    """Make boxes those of their masks, and drop those of which nothing is left."""
    masks = sample["box_masks"]
    rows, columns = masks.any(2), masks.any(1)
    there = rows.any(1)
    for key in [key for key in sample if key.startswith("box_")]:
        sample[key] = sample[key][there]
    rows, columns = rows[there], columns[there]
    edges = [columns.argmax(1), rows.argmax(1)]
    edges += [each.shape[1] - each[:, ::-1].argmax(1) for each in (columns, rows)]
    sample["boxes"] = np.stack(edges, 1).astype(np.float32)


def refuse_box_masks(sample: Sample, step: str) -> None:
    """Refuse a sample whose boxes have masks, for a step that does not move them.

    Raises:
        ValueError: They have.
    """
    if "box_masks" in sample:
        raise ValueError(
            f"{step}: {sample.get('key')!r} has box_masks, which it does not move; leave it out, "
            f"or drop them with dataset.annotations.masks=false"
        )


class LostPoints:
    """Notes which points a step of albumentations moves out of the image.

    Where a later step adds a border, their place may be in the image again; what was there is
    not. Boxes are cut after every step in the same way.

    Attributes:
        marks: Which points were outside at any time, bool [n].
    """

    marks: NDArray[np.bool_]

    def begin(self, points: NDArray[np.float32], shape: tuple[int, ...]) -> None:
        """Look at points before the first step, in an image of `shape`."""
        self.marks = outside(points, shape[:2])

    def note(self, points: NDArray[np.floating[Any]], shape: Any) -> NDArray[np.floating[Any]]:
        """Look at points after a step: in the place of a processor's own `filter`."""
        if len(points) != len(self.marks):
            raise ValueError(
                f"{len(self.marks)} keypoints became {len(points)}, as where an image is mirrored "
                f"at its border; set border_mode: 0"
            )
        self.marks |= outside(points, (shape["height"], shape["width"]))
        return points


def outside(points: NDArray[np.floating[Any]], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Which points, x and y in the first columns, are outside of an image of `shape`, bool [n]."""
    x, y = points[:, 0], points[:, 1]
    height, width = shape
    inside: NDArray[np.bool_] = (x >= 0) & (y >= 0) & (x < width) & (y < height)
    return ~inside  # which one that is NaN is not


def _turn_right(corners: NDArray[np.float32]) -> bool:
    (ax, ay), (bx, by), (cx, cy) = corners.astype(float).tolist()
    return (bx - ax) * (cy - ay) - (by - ay) * (cx - ax) < 0


def rows_of(samples: Sequence[Sample], rows: Sequence[Any] | None = None) -> dict[str, Any]:
    """The ``box_*`` fields of several samples, one after the other.

    Args:
        samples: The first says which fields there are: those as long as its boxes.
        rows: The rows to be taken of each sample; None takes all.

    Raises:
        ValueError: Another sample lacks one of the fields.
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
                    f"{sample.get('key')!r} has no field {name!r}, which {first.get('key')!r} "
                    f"has; samples that are put together need the same fields"
                )
            values = np.asarray(sample[name])
            parts.append(values if rows is None else values[rows[number]])
        fields[name] = np.concatenate(parts)
    return fields


def cut_boxes(
    boxes: NDArray[np.floating[Any]], shape: tuple[int, ...], limits: BoxSettings | None
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Cut boxes at the edges of an image.

    Args:
        boxes: [N, 4], xyxy, pixels of the image; they may lie outside.
        shape: Height and width of the image.
        limits: Which are dropped; None: those without any area inside.

    Returns:
        float32 [N, 4], and which of them are left, bool [N].
    """
    height, width = shape[:2]
    cut = np.clip(boxes, 0, [width, height, width, height]).astype(np.float32)
    return cut, left_over(cut, areas(boxes), limits)


def areas(boxes: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Areas of boxes, [N], in square pixels."""
    sides = np.asarray(boxes, np.float64).reshape(-1, 4)
    return np.maximum(sides[:, 2] - sides[:, 0], 0) * np.maximum(sides[:, 3] - sides[:, 1], 0)


def left_over(
    boxes: NDArray[np.float32], before: NDArray[np.float64], limits: BoxSettings | None
) -> NDArray[np.bool_]:
    """Which boxes are large enough still, bool [N]; `before`, [N], are their areas before."""
    now = areas(boxes)
    kept: NDArray[np.bool_] = now > 0
    if limits is not None:
        kept &= (now >= limits.min_area) & (now >= limits.min_visibility * before)
        kept &= boxes[:, 2] - boxes[:, 0] >= limits.min_width
        kept &= boxes[:, 3] - boxes[:, 1] >= limits.min_height
    return kept
