"""Draw windows for the rows of a batch, and resize their content to one size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.sample import Batch
from penstock.transforms.device.rows.draws import row_by_row

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
        found: bool [n]; False if no try fitted, and then height and width are 0.
    """

    top: torch.Tensor
    left: torch.Tensor
    height: torch.Tensor
    width: torch.Tensor
    found: torch.Tensor

    def edges(self) -> list[list[int]]:
        """Return top, left, height and width of each window."""
        import torch

        return torch.stack([self.top, self.left, self.height, self.width], 1).tolist()

    def inside(self, image_height: int, image_width: int) -> torch.Tensor:
        """Return which pixels are inside, bool [n, image_height, image_width]."""
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
    """Draw for each row the first of `TRIES` windows that fits into the image, at a random place.

    Source: Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6. As in
    torchvision, the area and the logarithm of the ratio are uniform.

    Args:
        draws: Uniforms, float32 [DRAWS, n], of `transforms.device.rows.draws.uniforms`.
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
    # Whole numbers below 2^24 times draws below 1 stay below the limit after rounding.
    top = draws[-2] * (image_height - height + 1) // 1
    left = draws[-1] * (image_width - width + 1) // 1
    found = fits.any(0)
    top, left, height, width = (torch.as_tensor(v).long() for v in (top, left, height, width))
    return Windows(top, left, height, width, torch.as_tensor(found))


def checked_range(value: Any, name: str, *, least: float, most: float) -> tuple[float, float]:
    """Return two numbers as a range; raise ValueError if unordered or out of bounds."""
    if len(value) != 2 or not least <= value[0] <= value[1] <= most:
        raise ValueError(
            f"{name} is {list(value)}, expected [least, largest] within {least:g} .. {most:g}"
        )
    return float(value[0]), float(value[1])


def resized_image(image: torch.Tensor, windows: Windows, size: tuple[int, int]) -> torch.Tensor:
    """Resize each row's window with linear interpolation, without pixels outside the window.

    The image is uint8 [n, H, W, C] or float [n, C, H, W]. On the CPU OpenCV resizes bytes, and may
    round differently by 1.
    """
    import torch

    if image.is_floating_point():
        return _sampled(image, windows, size)
    if row_by_row(image) and image.shape[3] <= 4:
        return _resized_on_cpu(image, windows, size)
    planes = _sampled(image.permute(0, 3, 1, 2).float(), windows, size)
    return planes.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _resized_on_cpu(image: torch.Tensor, windows: Windows, size: tuple[int, int]) -> torch.Tensor:
    import cv2
    import torch

    result = torch.empty((len(image), *size, image.shape[3]), dtype=torch.uint8)
    pixels, slots = image.numpy(), result.numpy()
    for row, (top, left, height, width) in enumerate(windows.edges()):
        window = pixels[row, top : top + height, left : left + width]
        cv2.resize(window, size[::-1], dst=slots[row], interpolation=cv2.INTER_LINEAR)
    return result


def _sampled(planes: torch.Tensor, windows: Windows, size: tuple[int, int]) -> torch.Tensor:
    """Interpolate windows of [n, C, H, W] linearly."""
    import torch
    from torch.nn import functional

    height, width = planes.shape[2:]
    y = _centres(windows.top, windows.height, size[0], height)
    x = _centres(windows.left, windows.width, size[1], width)
    shape = (len(planes), *size)
    grid = torch.stack([x[:, None].expand(shape), y[:, :, None].expand(shape)], 3)
    return functional.grid_sample(planes, grid.to(planes.dtype), align_corners=False)


def _centres(start: Any, length: Any, size: int, whole: int) -> torch.Tensor:
    """Return places of the result's pixels, from -1 to 1 over the image, float [n, size]."""
    import torch

    places = torch.arange(size, device=start.device) + 0.5
    within = places * (length[:, None] / size) - 0.5
    within = within.clamp(min=0).minimum(length[:, None] - 1.0)
    return (start[:, None] + within + 0.5) * (2 / whole) - 1


def resized_mask(mask: torch.Tensor, windows: Windows, size: tuple[int, int]) -> torch.Tensor:
    """Resize each row's window of [n, H, W] by nearest pixels, to [n, *size]."""
    import torch

    rows = torch.arange(len(mask), device=mask.device)[:, None, None]
    y = _nearest(windows.top, windows.height, size[0])
    x = _nearest(windows.left, windows.width, size[1])
    return mask[rows, y[:, :, None], x[:, None]]


def _nearest(start: torch.Tensor, length: torch.Tensor, size: int) -> torch.Tensor:
    import torch

    places = 2 * torch.arange(size, device=start.device) + 1
    return start[:, None] + places * length[:, None] // (2 * size)


def moved_boxes(batch: Batch, windows: Windows, size: tuple[int, int]) -> Batch:
    """Move ``boxes`` to the new pixels, cut them at the windows' edges, and drop empty ones.

    ``boxes`` is a list of n float [N, 4], xyxy; ``box_*`` are lists of n [N, ...].
    """
    import torch

    fields = [name for name in batch if name == "boxes" or name.startswith("box_")]
    moved: Batch = {name: [] for name in fields}
    limit = torch.tensor([size[1], size[0]] * 2)
    for row, boxes in enumerate(batch["boxes"]):
        start, factor = _placing(windows, row, size, boxes)
        most = limit.to(boxes.device, boxes.dtype)
        cut = ((boxes - start.repeat(2)) * factor.repeat(2)).clamp(min=0).minimum(most)
        kept = (cut[:, 2] > cut[:, 0]) & (cut[:, 3] > cut[:, 1])
        for name in fields:
            moved[name].append((cut if name == "boxes" else batch[name][row])[kept])
    return moved


def moved_keypoints(keypoints: Any, windows: Windows, size: tuple[int, int]) -> Any:
    """Move points (x, y, visibility) to the new pixels; points outside get visibility 0."""
    import torch

    moved = []
    limit = torch.tensor([size[1], size[0]])
    for row, points in enumerate(keypoints):
        start, factor = _placing(windows, row, size, points)
        places = (points[:, :2] - start) * factor
        most = limit.to(points.device, points.dtype)
        inside = ((places >= 0) & (places < most)).all(1)
        seen = points[:, 2:].where(inside[:, None], 0)
        moved.append(torch.cat([places, seen], 1))
    return moved if isinstance(keypoints, list) else torch.stack(moved)


def _placing(
    windows: Windows, row: int, size: tuple[int, int], like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return left and top of a row's window, and the factors of x and y, in the type of `like`."""
    import torch

    start = torch.stack([windows.left[row], windows.top[row]]).to(like.dtype)
    sides = torch.stack([windows.width[row], windows.height[row]]).to(like.dtype)
    return start, torch.tensor(size[::-1], device=like.device, dtype=like.dtype) / sides
