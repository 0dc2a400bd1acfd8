"""Windows of a batch's rows resized to one size, and what lies in them moved along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from datasets.sample import Batch
from transforms.row_draws import row_by_row

if TYPE_CHECKING:
    import torch

    from transforms.row_windows import Windows


def resized_image(image: torch.Tensor, windows: Windows, size: tuple[int, int]) -> torch.Tensor:
    """Each row's window, interpolated linearly; pixels outside of the window play no part.

    Args:
        image: uint8 [n, H, W, C] or float [n, C, H, W].
        windows: Of n rows.
        size: Height and width of the result.

    Returns:
        The same layout and type, of `size`. In ordinary memory bytes are resized by OpenCV,
        which may round to the neighbouring value where a device does not.
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
    for row, (top, left, height, width) in enumerate(_edges(windows)):
        window = pixels[row, top : top + height, left : left + width]
        cv2.resize(window, size[::-1], dst=slots[row], interpolation=cv2.INTER_LINEAR)
    return result


def _sampled(planes: torch.Tensor, windows: Windows, size: tuple[int, int]) -> torch.Tensor:
    """Linear interpolation in [n, C, H, W]."""
    import torch
    from torch.nn import functional

    height, width = planes.shape[2:]
    y = _centres(windows.top, windows.height, size[0], height)
    x = _centres(windows.left, windows.width, size[1], width)
    shape = (len(planes), *size)
    grid = torch.stack([x[:, None].expand(shape), y[:, :, None].expand(shape)], 3)
    return functional.grid_sample(planes, grid.to(planes.dtype), align_corners=False)


def _centres(start: Any, length: Any, size: int, whole: int) -> torch.Tensor:
    """Where the pixels of the result lie, from -1 to 1 over the image, float [n, size]."""
    import torch

    places = torch.arange(size, device=start.device) + 0.5
    within = places * (length[:, None] / size) - 0.5
    within = within.clamp(min=0).minimum(length[:, None] - 1.0)
    return (start[:, None] + within + 0.5) * (2 / whole) - 1


def resized_mask(mask: torch.Tensor, windows: Windows, size: tuple[int, int]) -> torch.Tensor:
    """Each row's window of [n, H, W], of the nearest pixels, [n, *size]."""
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
    """``boxes`` and the other fields of boxes, cut at the windows' edges, in the new pixels.

    Args:
        batch: ``boxes``, a list of n float [N, 4], xyxy; ``box_*``, lists of n [N, ...].
        windows: Of n rows.
        size: Height and width of the result.
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
    """Points in the new pixels; those outside of the window get visibility 0.

    Args:
        keypoints: float [n, K, 3], or a list of n [K, 3]: x, y, visibility.
        windows: Of n rows.
        size: Height and width of the result.
    """
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
    """Left and top of a row's window, and by what x and y grow, in the type of `like`."""
    import torch

    start = torch.stack([windows.left[row], windows.top[row]]).to(like.dtype)
    sides = torch.stack([windows.width[row], windows.height[row]]).to(like.dtype)
    return start, torch.tensor(size[::-1], device=like.device, dtype=like.dtype) / sides


def _edges(windows: Windows) -> list[list[int]]:
    import torch

    return torch.stack([windows.top, windows.left, windows.height, windows.width], 1).tolist()
