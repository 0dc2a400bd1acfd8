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
        if self.keypoints is None or not self.keypoints.swaps:
            return points
        return np.concatenate([points, np.array(_CORNERS, np.float32)])

    def put_boxes(self, sample: Sample, boxes: Any, rows: Any) -> None:
        """Give a sample its boxes as they are now; `rows` says which are left."""
        import numpy as np

        kept = np.asarray(rows, np.int64)
        count = len(sample["boxes"])
        sample["boxes"] = np.asarray(boxes, np.float32).reshape(-1, 4)
        for key in [key for key in sample if key.startswith("box_")]:
            if len(sample[key]) == count:
                sample[key] = np.asarray(sample[key])[kept]

    def put_points(self, sample: Sample, points: Any, shape: tuple[int, ...]) -> None:
        """Give a sample its keypoints as they are now, in an image of `shape`.

        Points outside of the image get visibility 0 and stay.
        """
        import numpy as np

        moved = np.asarray(points, np.float32).reshape(-1, 2)
        keypoints = np.array(sample["keypoints"], np.float32)
        count = len(keypoints)
        keypoints[:, :2] = moved[:count]
        x, y = keypoints[:, 0], keypoints[:, 1]
        keypoints[(x < 0) | (y < 0) | (x >= shape[1]) | (y >= shape[0]), 2] = 0
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


def _turn_right(corners: NDArray[np.float32]) -> bool:
    (ax, ay), (bx, by), (cx, cy) = corners.astype(float).tolist()
    return (bx - ax) * (cy - ay) - (by - ay) * (cx - ax) < 0
