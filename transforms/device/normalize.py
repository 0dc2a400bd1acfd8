"""Convert pixels to floats on the device: uint8 [B, H, W, C] to float32 [B, C, H, W]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.transforms.device.steps import DeviceStep, Draws, is_planes

if TYPE_CHECKING:
    import torch

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@register("batch_transform", "normalize")
class Normalize(DeviceStep):
    """Convert images to float32, subtract the mean, and divide by the standard deviation.

    The transfer to the device takes uint8, a quarter of the bytes of floats. The result is
    [B, C, H, W] in channels_last memory format, so no pixel moves.

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
                f"normalize: mean {list(mean)} and std {list(std)} need one value per channel "
                f"each, std above 0"
            )
        # (x / 255 - mean) / std as one factor and one offset.
        self._scale = [1 / (255 * value) for value in std]
        self._shift = [-m / s for m, s in zip(mean, std, strict=True)]
        self._constants: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """Normalise ``image``, uint8 [B, H, W, C] or a list of [H, W, C], if there is one.

        Raises:
            ValueError: The number of channels differs from `mean`, or the images are floats.
        """
        if (image := batch.get("image")) is None:
            return batch
        if isinstance(image, list):
            return {**batch, "image": [self._normalised(one[None])[0] for one in image]}
        return {**batch, "image": self._normalised(image)}

    def _normalised(self, image: Any) -> Any:
        if is_planes(image):
            raise ValueError(
                "normalize: images are floats already, expected uint8 [B, H, W, C]; "
                "leave Normalize and the like out of augment.train and augment.eval, or set "
                "augment.device=null"
            )
        if image.shape[-1] != len(self._scale):
            channels = len(self._scale)
            raise ValueError(
                f"normalize: images are {list(image.shape)}, expected [B, H, W, {channels}] as "
                f"mean and std have; set augment.device.normalize.mean and std, and leave "
                f"ToTensor out of augment.train and augment.eval: this step puts the channels first"
            )
        if isinstance(image, np.ndarray):
            factor, offset = np.array([self._scale, self._shift], np.float32)[..., None, None]
            return image.transpose(0, 3, 1, 2).astype(np.float32) * factor + offset
        scale, shift = self._on(image.device)
        return image.permute(0, 3, 1, 2).float().mul_(scale).add_(shift)

    def _on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return factor and offset [C, 1, 1], cached by device."""
        made = self._constants.get(device)
        if made is None:
            import torch

            scale, shift = torch.tensor([self._scale, self._shift])[..., None, None].to(device)
            made = self._constants[device] = scale, shift
        return made

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_constants": {}}


@register("batch_transform", "to_float")
def to_float(batch: Batch) -> Batch:
    """Convert images to float32 from 0 to 1, in channels_last memory format.

    Args:
        batch: With ``image`` uint8 [B, H, W, C], or a list of [H, W, C].

    Returns:
        The batch with ``image`` float32 [B, C, H, W], or a list of [C, H, W].
    """
    image = batch["image"]
    if isinstance(image, list):
        return {**batch, "image": [_floats(one[None])[0] for one in image]}
    return {**batch, "image": _floats(image)}


def _floats(image: Any) -> Any:
    if isinstance(image, np.ndarray):
        return image.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    return image.permute(0, 3, 1, 2).float().div_(255)
