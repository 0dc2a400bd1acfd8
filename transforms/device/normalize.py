"""Convert pixels to floats on the device: uint8 [B, H, W, C] to float32 [B, C, H, W]."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.transforms.device.steps import DeviceStep, Draws

if TYPE_CHECKING:
    import torch

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@register("batch_transform", "normalize")
class Normalize(DeviceStep):
    """Convert images to float32, subtract the mean, and divide by the standard deviation.

    The transfer to the device takes uint8, a quarter of the bytes of floats. The result is
    [B, C, H, W] in channels_last memory format, so no pixel moves. Lists of images stay lists.

    Args:
        mean: Mean of each channel, for values 0..1; null: the mean of the model's weights, else
            ImageNet's.
        std: Standard deviation of each channel, for values 0..1; null likewise.
    """

    def __init__(
        self, *, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
    ) -> None:
        mean = IMAGENET_MEAN if mean is None else mean
        std = IMAGENET_STD if std is None else std
        if len(mean) != len(std) or not all(value > 0 for value in std):
            raise ValueError(
                f"normalize: mean {list(mean)}, std {list(std)}; give one per channel, std above 0"
            )
        # (x / 255 - mean) / std as one factor and one offset.
        self._scale = tuple(1 / (255 * value) for value in std)
        self._shift = tuple(-m / s for m, s in zip(mean, std, strict=True))

    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """Normalise ``image``, uint8, if there is one; raise ValueError for other channels."""
        return _converted(batch, self._normalised) if "image" in batch else batch

    def _normalised(self, image: Any) -> Any:
        remedy = (
            "leave ToTensor, Normalize and the like out of augment.train and augment.eval, or set "
            "augment.device.normalize.mean and std"
        )
        _check(image, "normalize", len(self._scale), remedy)
        if isinstance(image, np.ndarray):
            factor, offset = np.array([self._scale, self._shift], np.float32)[..., None, None]
            return image.transpose(0, 3, 1, 2).astype(np.float32) * factor + offset
        scale, shift = _on(image.device, (self._scale, self._shift))
        return image.permute(0, 3, 1, 2).float().mul_(scale).add_(shift)


@functools.cache
def _on(device: torch.device, values: tuple[tuple[float, ...], ...]) -> torch.Tensor:
    """Return factor and offset on a device, [2, C, 1, 1]."""
    import torch

    return torch.tensor(values)[..., None, None].to(device)


@register("batch_transform", "to_float")
def to_float(batch: Batch) -> Batch:
    """Convert images, or lists of them, to float32 from 0 to 1, in channels_last memory format."""
    return _converted(batch, _floats)


def _floats(image: Any) -> Any:
    _check(image, "to_float", image.shape[-1], "leave the step out")
    if isinstance(image, np.ndarray):
        return image.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    return image.permute(0, 3, 1, 2).float().div_(255)


def _check(image: Any, step: str, channels: int, remedy: str) -> None:
    if not str(image.dtype).endswith("uint8") or image.ndim != 4 or image.shape[-1] != channels:
        raise ValueError(
            f"{step}: images are {image.dtype} {list(image.shape)}, expected uint8 "
            f"[B, H, W, {channels}]; {remedy}"
        )


def _converted(batch: Batch, convert: Callable[[Any], Any]) -> Batch:
    image = batch["image"]
    if isinstance(image, list):
        return {**batch, "image": [convert(one[None])[0] for one in image]}
    return {**batch, "image": convert(image)}
