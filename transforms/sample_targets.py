"""Boxes and keypoints of a sample, handed to an augmentation library and taken back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from datasets.sample import Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from transforms.target_settings import BoxSettings, KeypointSettings

# Three corners that turn left; where they turn right afterwards, the image is mirrored.
_CORNERS = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))
# Boxes are shares of an image meanwhile; these pixels, and less, are their rounding.
_ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class Targets:
    """What an augmentation stack does with boxes and keypoints.

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
        import numpy as np

        points: NDArray[np.float32] = sample["keypoints"][:, :2]
        if self.keypoints is not None and self.keypoints.swaps:
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
        import numpy as np

        count = len(sample["boxes"])
        height, width = shape[:2]
        cut = np.asarray(boxes, np.float32).reshape(-1, 4)
        cut = np.minimum(cut, np.array([width, height, width, height], np.float32))
        there = (cut[:, 2:] - cut[:, :2] > _ROUNDING).all(1)
        sample["boxes"], kept = cut[there], np.asarray(rows, np.int64)[there]
        for key in [key for key in sample if key.startswith("box_")]:
            if len(sample[key]) == count:
                sample[key] = np.asarray(sample[key])[kept]

    def put_points(self, sample: Sample, points: Any, lost: NDArray[np.bool_]) -> None:
        """Give a sample its keypoints as they are now.

        Points that left the image get visibility 0 and stay.

        Args:
            sample: The sample.
            points: What became of those of `points`.
            lost: Which of them were outside of the image at any time, bool [n].
        """
        import numpy as np

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
        for a, b in self.keypoints.swaps or ():
            if max(a, b) >= per_object:
                raise ValueError(
                    f"augment.keypoints.swaps names keypoint {max(a, b)}, {key!r} has {per_object}"
                )
            by_object[:, [a, b]] = by_object[:, [b, a]]
        return by_object.reshape(-1, 3)


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
