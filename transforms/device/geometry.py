"""Crop, flip and erase images of a batch on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.transforms.amounts import Positive, Share, Sides, check_ordered, sides_of
from penstock.transforms.cpu.window import Window
from penstock.transforms.device.draws import (
    WINDOW_DRAWS,
    Integers,
    drawn_windows,
    inside,
    row_words,
    uniforms,
)
from penstock.transforms.device.steps import Draws, PixelStep, Rows, rows_at_once

if TYPE_CHECKING:
    import torch

_WORD = (1 << 32) - 1
_MAX_PIXEL_BYTES = 512  # limit of OpenCV's flip
_Scale = Annotated[float, Gt(0), Le(1)]


class _Moving(PixelStep):
    """A step that moves pixels of image and mask alike, and cannot move boxes and keypoints.

    A crop in evaluation also changes ``to_image``, so that `predict` finds the file's pixels.
    """

    fields = ("image", "mask")
    refused = ("boxes", "keypoints")

    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """Change the pixels, and take ``to_image`` from the draws."""
        changed = super().apply(batch, draws)
        if "to_image" not in draws:
            return changed
        to_image = draws["to_image"]
        if not isinstance(batch["image"], np.ndarray):
            import torch

            to_image = torch.as_tensor(to_image)
        return {**changed, "to_image": to_image}

    @staticmethod
    def located(rows: Rows, top: int, left: int, height: int, width: int) -> Draws:
        """Return ``to_image`` after a window becomes an image of `rows.size`; none if not given."""
        if "to_image" not in rows.fields:
            return {}
        scales = np.array([[rows.size[1] / width], [rows.size[0] / height]])
        moved = (np.asarray(rows.fields["to_image"]) - [[0, 0, left], [0, 0, top]]) * scales
        rows.fields = {**rows.fields, "to_image": moved}
        return {"to_image": moved}


@register("batch_transform", "random_crop")
@dataclass(kw_only=True, eq=False)
class RandomCrop(_Moving):
    """Crop each image, with its mask, at a random place in training, at the centre in evaluation.

    Args:
        size: Height and width of the crop, or one number for both; None keeps the images' size.
        padding: Pixels of zeros to add to every side before cropping, in training.
    """

    moves_only = True

    size: Sides | None = None
    padding: Annotated[int, Ge(0)] = 0

    def choose(self, rows: Rows) -> Draws:
        """Draw top and left of each crop in the padded image, int64 [B, 2]."""
        down, across = self._room(rows, self.padding)
        # A product maps 32 bits to a number below n (Lemire, "Fast random integer generation in an
        # interval", 2019, section 3); the bias is below n / 2^32.
        words = row_words(rows.fields, self.key)
        places = [(words & _WORD) * down >> 32, (words >> 32 & _WORD) * across >> 32]
        return {"places": np.stack(places, 1)}

    def fixed(self, rows: Rows) -> Draws:
        """Return top and left of the centre, int64 [B, 2]."""
        if self.size is None:
            return {}
        down, across = self._room(rows, 0)
        top, left = (down - 1) // 2, (across - 1) // 2
        places = np.tile([top, left], (rows.count, 1))
        return {"places": places, **self.located(rows, top, left, *rows.size)}

    def _room(self, rows: Rows, padding: int) -> tuple[int, int]:
        """Return the number of places of the crop, down and across."""
        self.check(rows)
        given, rows.size = rows.size, sides_of(self.size or rows.size)
        down, across = (a + 2 * padding - b + 1 for a, b in zip(given, rows.size, strict=True))
        if down < 1 or across < 1:
            raise ValueError(
                f"augment.device.{self.step}: images are {given[0]} x {given[1]} pixels and the "
                f"crop is {rows.size[0]} x {rows.size[1]} with padding {padding}; lower size, "
                f"raise padding, or resize before"
            )
        return down, across

    @property
    def _border(self) -> int:
        return self.padding if self.split == "train" else 0

    def arrays(self, pixels: NDArray[Any], draws: Draws) -> NDArray[Any]:
        """Pad all rows and copy the crops from a view that holds all possible ones."""
        height, width = sides_of(self.size or pixels.shape[1:3])
        if border := self._border:  # three times as fast as np.pad
            shape = np.add(pixels.shape[:3], (0, 2 * border, 2 * border))
            padded = np.zeros((*shape, *pixels.shape[3:]), pixels.dtype)
            padded[:, border:-border, border:-border] = pixels
            pixels = padded
        pixels = np.ascontiguousarray(pixels)
        count, down, across = np.subtract(pixels.shape[:3], (0, height - 1, width - 1)).tolist()
        row = np.dtype((np.void, width * pixels[:1, :1, :1].nbytes))
        strides = (*pixels.strides[:3], pixels.strides[1])
        every = np.ndarray((count, down, across, height), row, pixels, 0, strides)
        chosen = every[np.arange(count), draws["places"][:, 0], draws["places"][:, 1]]
        return chosen.view(pixels.dtype).reshape(count, height, width, *pixels.shape[3:])

    def tensors(self, pixels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Gather rows, then columns, without a padded copy."""
        import torch

        size = pixels.shape[1:3] if self.size is None else sides_of(self.size)
        for axis, length in enumerate(size, start=1):
            places = torch.arange(length, device=pixels.device) - self._border
            places = places + draws["places"][:, axis - 1, None]
            within = places.clamp(0, pixels.shape[axis] - 1)
            pixels = gathered(pixels, axis, within)
            if self._border:
                shape = [len(pixels), *[1] * (pixels.ndim - 1)]
                shape[axis] = length
                pixels.masked_fill_((within != places).reshape(shape), 0)
        return pixels


@register("batch_transform", "random_flip")
@dataclass(kw_only=True, eq=False)
class RandomFlip(_Moving):
    """Flip each image, with its mask, left to right with probability `p`, in training.

    Args:
        p: The probability.
    """

    moves_only = True

    p: Share = 0.5

    def choose(self, rows: Rows) -> Draws:
        """Draw which rows to flip, bool [B]."""
        self.check(rows)
        # 53 bits of the word, the precision of a float.
        words = row_words(rows.fields, self.key) >> 11 & (1 << 53) - 1
        return {"flips": words < round(self.p * (1 << 53))}

    def arrays(self, pixels: NDArray[Any], draws: Draws) -> NDArray[Any]:
        """Flip the chosen rows, all together as one tall image."""
        import cv2

        pixels, flips = pixels.copy(), np.flatnonzero(draws["flips"])
        count, height, width = len(flips), *pixels.shape[1:3]
        if not count:
            return pixels
        chosen = pixels.take(flips, 0)
        tall = chosen.view(np.uint8).reshape(count * height, width, -1)
        if tall.shape[2] > _MAX_PIXEL_BYTES:
            chosen = chosen[:, :, ::-1]
        else:  # in place: from one buffer to another takes OpenCV twice as long
            cv2.flip(tall, 1, dst=tall)
        pixels[flips] = chosen
        return pixels

    def tensors(self, pixels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Gather the columns of each row, forwards or backwards."""
        import torch

        columns = torch.arange(pixels.shape[2], device=pixels.device)
        places = columns.flip(0).where(draws["flips"][:, None], columns)
        return gathered(pixels, 2, places)


@register("batch_transform", "random_resized_crop")
@dataclass(kw_only=True, eq=False)
class RandomResizedCrop(_Moving):
    """Crop each image, with its mask, to a random window and resize it to `size`, in training.

    In evaluation the window is the largest of `size`'s shape, at the centre. Interpolation is
    linear without antialiasing: if images are more than twice as large as the result, shrink them
    in ``augment.train`` first. Source: Szegedy et al., "Going deeper with convolutions", CVPR 2015,
    section 6. If none of 10 tries fits, the window is the largest with an allowed ratio at the
    centre, as in torchvision.

    Args:
        size: Height and width of the result, or one number for both.
        scale: Least and largest share of the image's area.
        ratio: Least and largest width / height of the window.
    """

    size: Sides
    scale: tuple[_Scale, _Scale] = (0.08, 1.0)
    ratio: tuple[Positive, Positive] = (0.75, 1.3333)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ordered(f"augment.device.{self.step}", scale=self.scale, ratio=self.ratio)

    def choose(self, rows: Rows) -> Draws:
        """Draw top, left, height and width of each window, int64 [B, 4]."""
        self.check(rows)
        draws = uniforms(rows.fields, self.key, WINDOW_DRAWS)
        windows = drawn_windows(draws, rows.size, scale=self.scale, ratio=self.ratio)
        centre = self._centre(rows.size, *self.ratio)
        rows.size = sides_of(self.size)
        return {"windows": np.where(windows[:, 2:3] > 0, windows, centre)}

    def fixed(self, rows: Rows) -> Draws:
        """Return the window at the centre for each row, int64 [B, 4]."""
        given, rows.size = rows.size, sides_of(self.size)
        if given == rows.size:
            return {}
        self.check(rows)
        shape = rows.size[1] / rows.size[0]
        window = self._centre(given, shape, shape)
        located = self.located(rows, *window.tolist())
        return {"windows": np.tile(window, (rows.count, 1)), **located}

    @staticmethod
    def _centre(size: tuple[int, int], low: float, high: float) -> Integers:
        """Return the largest window with a ratio from `low` to `high`, int64 [4]."""
        height, width = size
        rows, columns = min(height, round(width / low)), min(width, round(height * high))
        rows, columns = max(1, rows), max(1, columns)
        return np.array([(height - rows) // 2, (width - columns) // 2, rows, columns])

    def arrays(self, pixels: NDArray[Any], draws: Draws) -> NDArray[Any]:
        """Resize by OpenCV, which may round bytes differently by 1; masks by nearest pixels."""
        size = sides_of(self.size)
        result = np.empty((len(pixels), *size, *pixels.shape[3:]), pixels.dtype)
        for row, (top, left, height, width) in enumerate(draws["windows"].tolist()):
            window = Window((left, top, left + width, top + height), size)
            if pixels.ndim == 3:
                result[row] = window.masks(pixels[row])
            else:
                window.pixels(pixels[row], result[row])
        return result

    def tensors(self, pixels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Interpolate a few rows at a time, so that few are floats at once."""
        import torch
        from torch.nn import functional

        sides = sides_of(self.size)
        starts, lengths = draws["windows"][:, :2, None], draws["windows"][:, 2:, None]
        if pixels.ndim == 3:
            for axis, side in enumerate(sides):
                middles = 2 * torch.arange(side, device=pixels.device) + 1
                places = starts[:, axis] + middles * lengths[:, axis] // (2 * side)
                pixels = gathered(pixels, axis + 1, places)
            return pixels
        y, x = (
            _centres(starts[:, axis], lengths[:, axis], side, pixels.shape[axis + 1])
            for axis, side in enumerate(sides)
        )
        result = pixels.new_empty((len(pixels), *sides, pixels.shape[3]))
        at_once = rows_at_once(pixels)
        for start in range(0, len(pixels), at_once):
            rows = slice(start, start + at_once)
            planes = pixels[rows].permute(0, 3, 1, 2).float()  # halves cannot hold the places
            shape = (len(planes), *sides)
            grid = torch.stack([x[rows, None].expand(shape), y[rows, :, None].expand(shape)], 3)
            resized = functional.grid_sample(planes, grid, align_corners=False)
            if not pixels.is_floating_point():
                resized = resized.round_().clamp_(0, 255)
            result[rows] = resized.permute(0, 2, 3, 1)
        return result


@register("batch_transform", "random_erasing")
@dataclass(kw_only=True, eq=False)
class RandomErasing(PixelStep):
    """Erase a random rectangle of each image with probability `p`, in training, but of no mask.

    Source: Zhong et al., "Random Erasing Data Augmentation", AAAI 2020.

    Args:
        p: The probability.
        scale: Least and largest share of the image's area.
        ratio: Least and largest width / height.
        value: Fill value. After ``normalize`` 0 is the mean, before it 0 is black and 255 white.
    """

    p: Share = 0.25
    scale: tuple[Share, Share] = (0.02, 0.33)
    ratio: tuple[Positive, Positive] = (0.3, 3.3)
    value: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ordered(f"augment.device.{self.step}", scale=self.scale, ratio=self.ratio)

    def choose(self, rows: Rows) -> Draws:
        """Draw top, left, height and width of each rectangle, int64 [B, 4]; zeros erase nothing."""
        self.check(rows)
        draws = uniforms(rows.fields, self.key, WINDOW_DRAWS + 1)
        windows = drawn_windows(draws[:WINDOW_DRAWS], rows.size, scale=self.scale, ratio=self.ratio)
        windows[draws[WINDOW_DRAWS] >= self.p] = 0
        return {"windows": windows}

    def arrays(self, pixels: NDArray[Any], draws: Draws) -> NDArray[Any]:
        """Fill the rectangles."""
        result = pixels.copy("K")
        for row, (top, left, height, width) in enumerate(draws["windows"].tolist()):
            result[row, top : top + height, left : left + width] = self.value
        return result

    def tensors(self, pixels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Fill the rectangles, in one pass."""
        erased = inside(draws["windows"], *pixels.shape[1:3])[..., None]
        return pixels.masked_fill(erased, self.value)


def _centres(start: torch.Tensor, length: torch.Tensor, size: int, whole: int) -> torch.Tensor:
    """Return places of the result's pixels, from -1 to 1 over the image, float [n, size]."""
    import torch

    places = torch.arange(size, device=start.device) + 0.5
    within = places * (length / size) - 0.5
    within = within.clamp(min=0).minimum(length - 1.0)
    return (start + within + 0.5) * (2 / whole) - 1


def gathered(pixels: torch.Tensor, axis: int, places: torch.Tensor) -> torch.Tensor:
    """Gather places, int64 [B, n], of an axis of [B, H, W, ...] for each row of the batch."""
    shape = [*pixels.shape]
    shape[axis] = places.shape[1]
    own = [1] * pixels.ndim
    own[0], own[axis] = places.shape
    return pixels.gather(axis, places.reshape(own).expand(shape))
