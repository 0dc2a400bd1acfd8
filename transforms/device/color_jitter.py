"""Change the colours of a batch's images on the device, or make images grey."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.transforms.amounts import Amount, amount_range
from penstock.transforms.device import colours
from penstock.transforms.device.draws import uniforms
from penstock.transforms.device.steps import Draws, PixelStep, Rows, rows_at_once

if TYPE_CHECKING:
    import torch

_ON_ARRAYS = (colours.brighten, colours.contrast, colours.saturate, colours.turn)
_ON_TENSORS = (colours.brightened, colours.contrasted, colours.saturated, colours.turned)
_HUE = 3
_NEUTRAL = ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0))


class ColourStep(PixelStep):
    """A step that changes the colours of some rows; other rows stay, bit for bit.

    Draws: ``factors`` of brightness, contrast, saturation and hue, float32 [4, B], and the indices
    of rows for each order of changes, int64 [k], such as ``rows 0123``.
    """

    def arrays(self, pixels: NDArray[Any], draws: Draws) -> NDArray[Any]:
        """Change the chosen rows one by one, so that the cache holds a row."""
        self._check_channels(pixels)
        result = pixels.copy("K")
        white = 1.0 if pixels.dtype.kind == "f" else 255.0
        for order, rows in _rows_by_order(draws):
            for row in rows.tolist():
                floats = np.array(pixels[row], np.float32, order="C")
                for number in order:
                    factor = float(draws["factors"][number, row])
                    floats = _ON_ARRAYS[number](floats, factor, white)
                result[row] = floats if white == 1 else np.rint(floats, out=floats)
        return result

    def tensors(self, pixels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Change the chosen rows in chunks, so that few are floats at once."""
        import torch

        self._check_channels(pixels)
        result = pixels.clone()
        white = 1.0 if pixels.is_floating_point() else 255.0
        contiguous: Any = {"memory_format": torch.contiguous_format}
        for order, rows in _rows_by_order(draws):
            at_once = rows_at_once(pixels, 9 if _HUE in order else 6)  # hue needs more memory
            every = len(rows) == len(pixels)  # then they are in order
            for start, part in zip(count(0, at_once), rows.split(at_once)):
                factors = draws["factors"].index_select(1, part)[..., None, None, None]
                here = slice(start, start + at_once)
                chosen = pixels[here] if every else pixels.index_select(0, part)
                floats = chosen.permute(0, 3, 1, 2).to(torch.float32, copy=every, **contiguous)
                for number in order:
                    floats = _ON_TENSORS[number](floats, factors[number], white)
                changed = (floats if white == 1 else floats.round_()).permute(0, 2, 3, 1)
                if every:
                    result[here] = changed
                else:
                    result.index_copy_(0, part, changed.to(pixels.dtype, **contiguous))
        return result

    def _check_channels(self, pixels: Any) -> None:
        if pixels.ndim != 4 or pixels.shape[3] != 3:
            raise ValueError(
                f"augment.device.{self._step}: images are {list(pixels.shape[1:])}, expected 3 "
                f"channels, uint8 [H, W, 3] or float [3, H, W] from 0 to 1; leave the step out"
            )


def _rows_by_order(draws: Draws) -> list[tuple[list[int], Any]]:
    """Return orders of changes, and the rows to change in each."""
    orders = [name for name in draws if name.startswith("rows ")]
    return [([*map(int, name.removeprefix("rows "))], draws[name]) for name in orders]


@register("batch_transform", "color_jitter")
class ColorJitter(ColourStep):
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
            batch; otherwise in the order of these arguments.
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
            amount_range(brightness, f"{prefix}.brightness"),
            amount_range(contrast, f"{prefix}.contrast"),
            amount_range(saturation, f"{prefix}.saturation"),
            amount_range(hue, f"{prefix}.hue", hue=True),
        ]
        self.p = p
        self._random_order = random_order
        super().__init__(seed=seed, split=split, step=step)

    def draw(self, rows: Rows) -> Draws:
        """Draw factors, float32 [4, B], and the rows of each order of changes, such as ``0123``."""
        used = [number for number in range(4) if self._ranges[number] != _NEUTRAL[number]]
        if not self._active or not used:
            return {}
        draws = uniforms(rows.fields, self._key, 9)
        factors = [low + draws[i] * (high - low) for i, (low, high) in enumerate(self._ranges)]
        chosen = np.flatnonzero(draws[4] < self.p)
        by_order: Draws = {}
        if self._random_order:
            # Sorting further draws gives a random order.
            orders = draws[5:, chosen].argsort(0).T
            orders = orders[np.isin(orders, used)].reshape(len(chosen), len(used))
            for order in np.unique(orders, axis=0):
                name = "rows " + "".join(map(str, order.tolist()))
                by_order[name] = chosen[(orders == order).all(1)]
        elif len(chosen):
            by_order["rows " + "".join(map(str, used))] = chosen
        return {"factors": np.stack(factors), **by_order} if by_order else {}


@register("batch_transform", "grayscale")
class Grayscale(ColourStep):
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
        super().__init__(seed=seed, split=split, step=step)

    def draw(self, rows: Rows) -> Draws:
        """Draw the rows to make grey."""
        if not self._active:
            return {}
        chosen = np.flatnonzero(uniforms(rows.fields, self._key, 1)[0] < self.p)
        # Saturation 0: 0.299 red + 0.587 green + 0.114 blue (ITU-R BT.601).
        factors = np.zeros((4, rows.count), np.float32)
        return {"factors": factors, "rows 2": chosen} if len(chosen) else {}
