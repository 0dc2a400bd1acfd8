"""Windows of a random area and shape, one for each row of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

TRIES = 10
DRAWS = 2 * TRIES + 2


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows in whole pixels, int64 [n] each.

    Attributes:
        top: First row of pixels.
        left: First column.
        height: Rows.
        width: Columns.
        found: bool [n]; False where no try fitted, and height and width are 0.
    """

    top: torch.Tensor
    left: torch.Tensor
    height: torch.Tensor
    width: torch.Tensor
    found: torch.Tensor

    def inside(self, image_height: int, image_width: int) -> torch.Tensor:
        """Which pixels of the image lie within, bool [n, image_height, image_width]."""
        down = _between(self.top, self.height, image_height)
        across = _between(self.left, self.width, image_width)
        return down[:, :, None] & across[:, None]


def _between(start: torch.Tensor, length: torch.Tensor, size: int) -> torch.Tensor:
    import torch

    places = torch.arange(size, device=start.device)
    return (places >= start[:, None]) & (places < (start + length)[:, None])


def drawn_windows(
    draws: Any,
    image_height: int,
    image_width: int,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Windows:
    """For each row the first of `TRIES` windows that lies within the image, at a random place.

    Source: Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6, as torchvision
    draws them: the area is uniform, and so is the logarithm of the ratio.

    Args:
        draws: Uniforms, float32 [DRAWS, n], of `transforms.row_draws.uniforms`.
        image_height: Pixels.
        image_width: Pixels.
        scale: Least and largest share of the image's area.
        ratio: Least and largest width / height.
    """
    import torch

    shares, ratios = draws[:TRIES], draws[TRIES : 2 * TRIES]
    area = (scale[0] + shares * (scale[1] - scale[0])) * (image_height * image_width)
    shape = ratio[0] * (ratio[1] / ratio[0]) ** ratios
    widths, heights = ((area * shape) ** 0.5).round(), ((area / shape) ** 0.5).round()
    fits = (widths <= image_width) & (heights <= image_height) & (widths > 0) & (heights > 0)
    first = fits & (fits.cumsum(0) == 1)
    width, height = (widths * first).sum(0), (heights * first).sum(0)
    # Whole numbers below 2^24 and draws below 1: the products stay below what they may reach.
    top = draws[-2] * (image_height - height + 1) // 1
    left = draws[-1] * (image_width - width + 1) // 1
    found = fits.any(0)
    top, left, height, width = (torch.as_tensor(v).long() for v in (top, left, height, width))
    return Windows(top, left, height, width, torch.as_tensor(found))


def checked_range(value: Any, name: str, *, least: float, most: float) -> tuple[float, float]:
    """Two numbers in order and within bounds.

    Raises:
        ValueError: They are not.
    """
    if len(value) != 2 or not least <= value[0] <= value[1] <= most:
        raise ValueError(
            f"{name} is {list(value)}, expected [least, largest] within {least:g} .. {most:g}"
        )
    return float(value[0]), float(value[1])
