"""Move predictions from the image that a model got to the pixels of the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Batch
from penstock.pipeline.learning.outputs import size_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Map between one image of a batch and its file.

    Attributes:
        height: Height of the file's image, in pixels.
        width: Width of the file's image, in pixels.
        to_image: Map of points of the file to points of the image, float64 [2, 3].
    """

    height: int
    width: int
    to_image: NDArray[np.float64]

    def boxes(self, boxes: torch.Tensor) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Move boxes to the file and cut them at its edges.

        Args:
            boxes: xyxy in pixels of the image, [N, 4].

        Returns:
            xyxy in pixels of the file, [N, 4], and which boxes have an area in it, bool [N].
        """
        left, top, right, bottom = np.asarray(boxes.cpu(), np.float64).reshape(-1, 4).T
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
        moved = np.stack([self.points(np.stack(corner, 1)) for corner in corners])
        ends = np.array([self.width, self.height], np.float64)
        low, high = (np.clip(each, 0, ends) for each in (moved.min(0), moved.max(0)))
        return np.concatenate([low, high], 1), (high > low).all(1)

    def points(self, points: Any) -> NDArray[np.float64]:
        """Move points x, y [N, 2] to the file."""
        linear, shift = self.to_image[:, :2], self.to_image[:, 2]
        moved: NDArray[np.float64] = (np.asarray(points, np.float64) - shift) @ np.linalg.inv(
            linear
        ).T
        return moved

    def mask(self, mask: NDArray[Any], *, outside: int) -> NDArray[Any]:
        """Resample a mask of the image, [h, w], at the pixels of the file, [height, width].

        Args:
            mask: The mask.
            outside: Value of pixels that the image does not show.
        """
        (a, b, c), (d, e, f) = self.to_image
        x, y = np.arange(self.width) + 0.5, np.arange(self.height) + 0.5
        if b == d == 0:
            columns, rows = np.floor(a * x + c)[None], np.floor(e * y + f)[:, None]
        else:
            columns = np.floor(a * x[None] + b * y[:, None] + c)
            rows = np.floor(d * x[None] + e * y[:, None] + f)
        height, width = mask.shape
        seen = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
        nearest = mask[
            rows.clip(0, height - 1).astype(np.int64), columns.clip(0, width - 1).astype(np.int64)
        ]
        return np.where(seen, nearest, np.asarray(outside, mask.dtype))


def file_places(batch: Batch) -> list[FilePlace]:
    """Return the place of each image; without ``to_image`` its pixels are those of the file."""
    images: Any = batch["image"]
    if "to_image" not in batch:
        identity = np.eye(2, 3)
        return [FilePlace(*size_of(image), identity) for image in images]
    sizes = [size.tolist() for size in batch["file_size"]]
    return [
        FilePlace(height, width, np.asarray(matrix.cpu(), np.float64))
        for (height, width), matrix in zip(sizes, batch["to_image"], strict=True)
    ]


def file_sizes(places: list[FilePlace]) -> dict[str, list[int]]:
    """Return ``image_height`` and ``image_width`` of each file, in pixels."""
    return {
        "image_height": [place.height for place in places],
        "image_width": [place.width for place in places],
    }


def boxes_in_files(
    found: list[dict[str, torch.Tensor]], places: list[FilePlace]
) -> tuple[list[NDArray[np.float64]], list[dict[str, torch.Tensor]]]:
    """Move boxes to the pixels of their files.

    Returns:
        The boxes of each file, [N, 4], and for each file what was found, without boxes that lie
        outside of the file.
    """
    import torch

    boxes, kept = [], []
    for row, place in zip(found, places, strict=True):
        moved, inside = place.boxes(row["boxes"])
        rows = torch.from_numpy(inside).to(row["boxes"].device)
        boxes.append(moved[inside])
        kept.append({name: values[rows] for name, values in row.items()})
    return boxes, kept
