"""Crop images of a batch at random places and scales, and resize them, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.transforms.device.draws import (
    WINDOW_DRAWS,
    checked_range,
    checked_size,
    drawn_windows,
    uniforms,
)
from penstock.transforms.device.random_flip import gathered
from penstock.transforms.device.steps import Draws, PixelStep, Rows, rows_at_once
from penstock.transforms.device.windows import moved_boxes, moved_keypoints

if TYPE_CHECKING:
    import torch


@register("batch_transform", "random_resized_crop")
class RandomResizedCrop(PixelStep):
    """Crop each image to a random window and resize it to `size`, in training.

    In evaluation the window is the largest of `size`'s shape, at the centre. Masks, boxes and
    keypoints follow their image. Boxes are cut at the window's edges and dropped if empty;
    keypoints outside get visibility 0. Interpolation is linear without antialiasing: if images are
    more than twice as large as the result, shrink them in ``augment.train`` first. Windows depend
    only on seed, epoch, position and step name.

    Source: Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6. If none of 10
    tries fits, the window is the largest with an allowed ratio at the centre, as in torchvision.

    Args:
        size: Height and width of the result, or one number for both.
        scale: Least and largest share of the image's area.
        ratio: Least and largest width / height of the window.
        seed: The run's seed.
        split: ``train`` or ``val``.
        step: The name of this step.
    """

    fields = ("image", "mask")
    stacks = True

    def __init__(
        self,
        *,
        size: int | list[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (0.75, 1.3333),
        seed: int,
        split: Literal["train", "val"],
        step: str,
    ) -> None:
        self._size = checked_size(size, step)
        prefix = f"augment.device.{step}"
        self._scale = checked_range(scale, f"{prefix}.scale", least=1e-6, most=1)
        self._ratio = checked_range(ratio, f"{prefix}.ratio", least=0.01, most=100)
        super().__init__(seed=seed, split=split, step=step)

    def draw(self, rows: Rows) -> Draws:
        """Draw top, left, height and width of each window, int64 [B, 4].

        Raises:
            ValueError: Boxes are padded to one tensor, or have masks.
        """
        fields = rows.fields
        if "box_masks" in fields:
            raise ValueError(
                f"augment.device.{self._step}: boxes have masks, which the step does not move; "
                f"crop per sample in augment.train"
            )
        if not isinstance(fields.get("boxes", []), list):
            raise ValueError(
                f"augment.device.{self._step}: boxes are padded, and some have to be dropped; "
                f"choose collate=list, or crop per sample in augment.train"
            )
        if not self._active and rows.stacked and rows.size == self._size:
            return {}
        windows = self._windows(rows)
        rows.size = self._size
        if "boxes" in fields:
            fields.update(moved_boxes(fields, windows, self._size))
        if "keypoints" in fields:
            fields["keypoints"] = moved_keypoints(fields["keypoints"], windows, self._size)
        return {"windows": windows}

    def _windows(self, rows: Rows) -> NDArray[np.int64]:
        height, width = rows.size
        shape = self._size[1] / self._size[0]
        low, high = self._ratio if self._active else (shape, shape)
        whole = min(height, max(1, round(width / low))), min(width, max(1, round(height * high)))
        centre = np.array([(height - whole[0]) // 2, (width - whole[1]) // 2, *whole])
        if not self._active:
            return np.tile(centre, (rows.count, 1))
        draws = uniforms(rows.fields, self._key, WINDOW_DRAWS)
        windows, found = drawn_windows(draws, rows.size, scale=self._scale, ratio=self._ratio)
        return np.where(found[:, None], windows, centre)

    def arrays(self, pixels: NDArray[Any], draws: Draws) -> NDArray[Any]:
        """Resize by OpenCV, which may round bytes differently by 1; masks by nearest pixels."""
        import cv2

        result = np.empty((len(pixels), *self._size, *pixels.shape[3:]), pixels.dtype)
        for row, (top, left, height, width) in enumerate(draws["windows"].tolist()):
            window = pixels[row, top : top + height, left : left + width]
            if pixels.ndim == 3:
                y, x = _nearest(height, self._size[0]), _nearest(width, self._size[1])
                result[row] = window[y[:, None], x]
            else:
                slot = cv2.resize(window, self._size[::-1], interpolation=cv2.INTER_LINEAR)
                result[row] = slot.reshape(result.shape[1:])
        return result

    def tensors(self, pixels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Interpolate a few rows at a time, so that few are floats at once."""
        import torch
        from torch.nn import functional

        windows, sides = draws["windows"], pixels.shape[1:3]
        starts, lengths = windows[:, :2, None], windows[:, 2:, None]
        if pixels.ndim == 3:
            for axis, size in enumerate(self._size):
                middles = 2 * torch.arange(size, device=pixels.device) + 1
                places = starts[:, axis] + middles * lengths[:, axis] // (2 * size)
                pixels = gathered(pixels, axis + 1, places)
            return pixels
        y, x = (
            _centres(starts[:, axis], lengths[:, axis], self._size[axis], sides[axis])
            for axis in (0, 1)
        )
        result = pixels.new_empty((len(pixels), *self._size, pixels.shape[3]))
        at_once = rows_at_once(pixels)
        for start in range(0, len(pixels), at_once):
            rows = slice(start, start + at_once)
            planes = pixels[rows].permute(0, 3, 1, 2)
            floats = planes if planes.is_floating_point() else planes.float()
            shape = (len(planes), *self._size)
            grid = torch.stack([x[rows, None].expand(shape), y[rows, :, None].expand(shape)], 3)
            resized = functional.grid_sample(floats, grid.to(floats.dtype), align_corners=False)
            if floats is not planes:
                resized = resized.round_().clamp_(0, 255)
            result[rows] = resized.permute(0, 2, 3, 1)
        return result


def _nearest(length: int, size: int) -> NDArray[np.int64]:
    """Return the place in a window of each pixel of the result, int64 [size]."""
    return (2 * np.arange(size) + 1) * length // (2 * size)


def _centres(start: torch.Tensor, length: torch.Tensor, size: int, whole: int) -> torch.Tensor:
    """Return places of the result's pixels, from -1 to 1 over the image, float [n, size]."""
    import torch

    places = torch.arange(size, device=start.device) + 0.5
    within = places * (length / size) - 0.5
    within = within.clamp(min=0).minimum(length - 1.0)
    return (start + within + 0.5) * (2 / whole) - 1
