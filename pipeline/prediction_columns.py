"""What the predictions of several tasks have in common: names of classes, sizes of images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from datasets.sample import Batch


def named(ids: Iterable[int], names: Sequence[str] | None) -> list[str | int]:
    """The names of class ids; the ids themselves where classes have no names."""
    return [number if names is None else names[number] for number in ids]


def size_of(image: torch.Tensor) -> tuple[int, int]:
    """Height and width of float images [..., C, H, W], or uint8 [..., H, W, C]."""
    height, width = image.shape[-2:] if image.is_floating_point() else image.shape[-3:-1]
    return height, width


def image_sizes(batch: Batch) -> dict[str, list[int]]:
    """``image_height`` and ``image_width`` of each image as the model got it, in pixels."""
    images: Any = batch["image"]
    sizes = [size_of(image) for image in images]
    return {
        "image_height": [height for height, _ in sizes],
        "image_width": [width for _, width in sizes],
    }
