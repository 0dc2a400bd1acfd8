"""Change the colours of a batch's images on the device, or make images grey.

All functions compute on planes from 0 to 1, whatever the batch's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from penstock.core.registry import register
from penstock.core.rng import batch_key
from penstock.core.sample import Batch
from penstock.transforms.device.rows.draws import row_by_row, uniforms

if TYPE_CHECKING:
    import torch

Amount = float | Sequence[float]
Change = Callable[["torch.Tensor", slice], "torch.Tensor"]

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue (ITU-R BT.601)."""


@register("batch_transform", "color_jitter")
class ColorJitter:
    """Change brightness, contrast, saturation and hue of each image at random, in training.

    The formulas are those in torchvision's ``ColorJitter``. Brightness is a factor, contrast
    blends with the mean grey of the image, and saturation with the grey image. Hue rotates the
    colour circle. Each result is clamped to 0 .. 1, and bytes are rounded once, at the end. Put
    this step before ``normalize``. Draws depend only on seed, epoch, position and step name.

    Args:
        brightness: A factor from 1 - b to 1 + b, or from [least, largest].
        contrast: Likewise.
        saturation: Likewise.
        hue: Turns from -h to h, or from [least, largest], within -0.5 .. 0.5.
        p: Probability that an image is changed.
        random_order: Apply the four to each image in a random order, as torchvision does per
            batch; otherwise in the order of these arguments. On an accelerator this computes each
            of them four times.
        seed: The run's seed.
        split: ``train``; in ``val`` nothing is changed.
        step: The name of this step.
    """

    def __init__(
        self,
        *,
        brightness: Amount = 0.4,
        contrast: Amount = 0.4,
        saturation: Amount = 0.4,
        hue: Amount = 0.1,
        p: Annotated[float, Ge(0), Le(1)] = 1.0,
        random_order: bool = False,
        seed: int,
        split: Literal["train", "val"],
        step: str,
    ) -> None:
        prefix = f"augment.device.{step}"
        self._ranges = [
            _range(brightness, f"{prefix}.brightness", centre=1.0, least=0.0, most=float("inf")),
            _range(contrast, f"{prefix}.contrast", centre=1.0, least=0.0, most=float("inf")),
            _range(saturation, f"{prefix}.saturation", centre=1.0, least=0.0, most=float("inf")),
            _range(hue, f"{prefix}.hue", centre=0.0, least=-0.5, most=0.5),
        ]
        self.p = p
        self._random_order = random_order
        self._active = split == "train"
        self._step = step
        self._key = batch_key(seed, step)

    def __call__(self, batch: Batch) -> Batch:
        """Change the colours of every row; in evaluation return the same batch.

        Args:
            batch: With ``image`` uint8 [B, H, W, 3] or float [B, 3, H, W] from 0 to 1, or a
                list of these without B; ``epoch`` and ``position`` int64 [B].
        """
        if not self._active:
            return batch
        draws = uniforms(batch, self._key, 9)
        amounts = [low + draws[i] * (high - low) for i, (low, high) in enumerate(self._ranges)]
        # Sorting further draws gives a random order.
        orders = draws[5:].argsort(0)

        def change(pixels: torch.Tensor, rows: slice) -> torch.Tensor:
            here = [per_row(amount[rows], pixels) for amount in amounts]
            if not self._random_order:
                return self._in_order(pixels, here, range(4))
            if row_by_row(pixels):  # one row, so one order
                return self._in_order(pixels, here, orders[:, rows.start].tolist())
            return self._by_row(pixels, here, orders[:, rows])

        return changed_colours(batch, change, draws[4] < self.p, self._step)

    def _in_order(self, pixels: torch.Tensor, amounts: Any, order: Any) -> torch.Tensor:
        for number in order:
            if self._ranges[number] != _NEUTRAL[number]:
                pixels = ADJUST[number](pixels, amounts[number])
        return pixels

    def _by_row(self, pixels: torch.Tensor, amounts: Any, orders: torch.Tensor) -> torch.Tensor:
        for place in range(4):
            before = pixels
            for number in range(4):
                changed = self._in_order(before, amounts, [number])
                here = (orders[place] == number)[:, None, None, None]
                pixels = changed.where(here, pixels)
        return pixels


def brightened(pixels: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Multiply [n, 3, H, W] from 0 to 1 by a factor [n, 1, 1, 1]."""
    return (pixels * factor).clamp_(0, 1)


def contrasted(pixels: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Blend with the mean grey of the image; 0 is that grey, 1 the image."""
    mean = luma(pixels).mean((1, 2, 3), keepdim=True)
    return (pixels * factor).add_((1 - factor) * mean).clamp_(0, 1)


def saturated(pixels: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Blend with the grey image; 0 is grey, 1 the image."""
    return (pixels * factor).add_((1 - factor) * luma(pixels)).clamp_(0, 1)


def turned(pixels: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Shift the hue of HSV by turns, -0.5 .. 0.5; keep saturation and value.

    Convert back from hue, value and chroma by f(n) = V - C max(0, min(k, 4 - k, 1)) with
    k = (n + 6 H) mod 6 and n = 5, 3, 1 for red, green and blue, without branches.
    """
    import torch

    red, green, blue = pixels.unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    inverse = 1 / chroma.clamp(min=1e-8)
    sixths = ((red - green) * inverse).add_(4)
    sixths = torch.where(value == green, ((blue - red) * inverse).add_(2), sixths)
    sixths = torch.where(value == red, (green - blue) * inverse, sixths)
    sixths += 6 * turns[:, 0]
    planes = []
    for number in (5, 3, 1):
        k = (sixths + number) * (1 / 6)
        k = k.sub_(k.floor()).mul_(6)
        planes.append(value - torch.minimum(k, 4 - k).clamp_(0, 1).mul_(chroma))
    return torch.stack(planes, 1)


ADJUST = (brightened, contrasted, saturated, turned)
_NEUTRAL = ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0))


def _range(
    value: Amount, name: str, *, centre: float, least: float, most: float
) -> tuple[float, float]:
    if isinstance(value, (int, float)):
        low, high = max(centre - value, least if centre else -value), centre + value
        correct = value >= 0 and high <= most
    else:
        low, high = (float(value[0]), float(value[1])) if len(value) == 2 else (1.0, 0.0)
        correct = least <= low <= high <= most
    if not correct:
        wanted = "0 .. 0.5, or [least, largest] within -0.5 .. 0.5"
        wanted = wanted if centre == 0 else "0 or more, or [least, largest] from 0 on"
        raise ValueError(f"{name} is {value}, expected {wanted}")
    return low, high


def changed_colours(batch: Batch, change: Change, chosen: Any, step: str) -> Batch:
    """Apply a change to the colours of ``image``, and keep its layout and type.

    On the CPU, rows are changed one by one; on a device, all at once.

    Args:
        batch: With ``image`` uint8 [B, H, W, 3] or float [B, 3, H, W] from 0 to 1, or a list
            of these without B.
        change: Maps float [n, 3, H, W] from 0 to 1, which it may overwrite, and the slice of these
            rows to new pixels. Bytes are rounded to the nearest.
        chosen: Rows to change, bool [B]; other rows stay, bit for bit.
        step: The name of the step, for messages.

    Raises:
        ValueError: The images do not have three channels.
    """
    import torch

    image, chosen = batch["image"], torch.as_tensor(chosen)
    rows = range(len(image))
    if isinstance(image, list):
        flags = chosen.tolist()
        changed = [
            _changed(image[i][None], change, i, step)[0] if flags[i] else image[i] for i in rows
        ]
        return {**batch, "image": changed}
    _check_channels(image, step)
    if not row_by_row(image):
        shape = (-1, 1, 1, 1)
        return {
            **batch,
            "image": _changed(image, change, 0, step).where(chosen.reshape(shape), image),
        }
    result = image.clone()
    for row in chosen.nonzero()[:, 0].tolist():
        result[row] = _changed(image[row : row + 1], change, row, step)[0]
    return {**batch, "image": result}


def luma(pixels: torch.Tensor) -> torch.Tensor:
    """Return the brightness [n, 1, H, W] of [n, 3, H, W]."""
    red, green, blue = pixels.unbind(1)
    return (red * LUMA[0] + green * LUMA[1] + blue * LUMA[2])[:, None]


def per_row(draws: Any, like: torch.Tensor) -> torch.Tensor:
    """Reshape one number per row, [n], to [n, 1, 1, 1]."""
    import torch

    return torch.as_tensor(draws, device=like.device).to(like.dtype)[:, None, None, None]


def _changed(image: torch.Tensor, change: Change, first: int, step: str) -> torch.Tensor:
    import torch

    _check_channels(image, step)
    rows = slice(first, first + len(image))
    if image.is_floating_point():
        return change(image.clone(memory_format=torch.contiguous_format), rows)
    planes = image.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    changed = change(planes.mul_(1 / 255), rows).mul_(255).round_().clamp_(0, 255)
    return changed.permute(0, 2, 3, 1).to(torch.uint8, memory_format=torch.contiguous_format)


def _check_channels(image: torch.Tensor, step: str) -> None:
    channels = image.shape[1 if image.is_floating_point() else -1] if image.ndim == 4 else 0
    if channels != 3:
        raise ValueError(
            f"augment.device.{step}: images are {list(image.shape[1:])}, expected 3 channels, "
            f"uint8 [H, W, 3] or float [3, H, W] from 0 to 1; leave the step out"
        )


@register("batch_transform", "grayscale")
class Grayscale:
    """Make each image grey with probability `p` in training; keep three channels.

    Put this step before ``normalize``. Draws depend only on seed, epoch, position and step name.

    Args:
        p: The probability.
        seed: The run's seed.
        split: ``train``; in ``val`` nothing is changed.
        step: The name of this step.
    """

    def __init__(
        self,
        *,
        p: Annotated[float, Ge(0), Le(1)] = 0.1,
        seed: int,
        split: Literal["train", "val"],
        step: str,
    ) -> None:
        self.p = p
        self._active = split == "train"
        self._step = step
        self._key = batch_key(seed, step)

    def __call__(self, batch: Batch) -> Batch:
        """Make some rows grey: 0.299 red + 0.587 green + 0.114 blue (ITU-R BT.601)."""
        if not self._active:
            return batch
        chosen = uniforms(batch, self._key, 1)[0] < self.p

        def change(pixels: torch.Tensor, rows: slice) -> torch.Tensor:
            return luma(pixels).expand_as(pixels).clone()

        return changed_colours(batch, change, chosen, self._step)
