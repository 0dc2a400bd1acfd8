"""Move boxes and keypoints into windows on the host, and mark the pixels of windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.sample import Batch
from penstock.transforms.device.draws import Integers
from penstock.transforms.device.steps import joined, like

if TYPE_CHECKING:
    import torch


def inside(windows: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return which pixels are in windows, int64 [n, 4], as bool [n, height, width]."""
    top, left, rows, columns = windows.unbind(1)
    return _between(top, rows, height)[:, :, None] & _between(left, columns, width)[:, None]


def _between(start: torch.Tensor, length: torch.Tensor, size: int) -> torch.Tensor:
    import torch

    places = torch.arange(size, device=start.device)
    return (places >= start[:, None]) & (places < (start + length)[:, None])


def moved_boxes(fields: Batch, windows: Integers, size: tuple[int, int]) -> Batch:
    """Move ``boxes`` to the new pixels, cut them at the windows' edges, and drop empty ones.

    Args:
        fields: ``boxes``, a list of n float [N, 4], xyxy, and ``box_*``, lists of n [N, ...].
        windows: Top, left, height and width, int64 [n, 4].
        size: Height and width of the resized windows.
    """
    names = [name for name in fields if name == "boxes" or name.startswith("box_")]
    moved: Batch = {name: [] for name in names}
    for row, given in enumerate(fields["boxes"]):
        boxes = np.asarray(given)
        start, factor = _placing(windows[row], size, boxes.dtype)
        places = (boxes.reshape(-1, 2, 2) - start) * factor
        cut = places.clip(0, np.array(size[::-1], boxes.dtype)).reshape(-1, 4)
        kept = (cut[:, 2] > cut[:, 0]) & (cut[:, 3] > cut[:, 1])
        for name in names:
            value = fields[name][row]
            moved[name].append(like(value, (cut if name == "boxes" else np.asarray(value))[kept]))
    return moved


def moved_keypoints(keypoints: Any, windows: Integers, size: tuple[int, int]) -> Any:
    """Move points (x, y, visibility) to the new pixels; points outside get visibility 0."""
    moved = []
    for given, window in zip(keypoints, windows, strict=True):
        points = np.asarray(given).copy()
        start, factor = _placing(window, size, points.dtype)
        points[:, :2] = (points[:, :2] - start) * factor
        seen = ((points[:, :2] >= 0) & (points[:, :2] < size[::-1])).all(1)
        points[~seen, 2:] = 0
        moved.append(like(given, points))
    return moved if isinstance(keypoints, list) else joined([points[None] for points in moved])


def _placing(window: Integers, size: tuple[int, int], dtype: Any) -> tuple[Any, Any]:
    """Return left and top of a window, and the factors of x and y."""
    return window[1::-1].astype(dtype), np.array(size[::-1], dtype) / window[:1:-1].astype(dtype)
