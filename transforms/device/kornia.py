"""Run augmentations of the kornia library on batches on the device."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.core.registry import register
from penstock.core.rng import batch_key
from penstock.core.sample import Batch
from penstock.transforms.device.draws import row_words
from penstock.transforms.device.steps import (
    DeviceStep,
    Draws,
    Rows,
    is_planes,
    refuse_fixed_fields,
)

if TYPE_CHECKING:
    import torch


@register("batch_transform", "kornia")
class Kornia(DeviceStep):
    """Run augmentations of kornia on images, one after the other, in training.

    Install the extra `kornia`. To add an augmentation, set
    ``augment.device.<step>.augmentations.blur._target_=kornia.augmentation.RandomGaussianBlur``.
    Put this step before ``normalize``. Kornia draws for a whole batch from torch's global
    generator. This step seeds the generator by seed, epoch and the first position of the rank's
    part of the batch, and restores its state. So runs repeat and resume exactly with any engine and
    number of workers, *for the same number of ranks*. Another number of ranks or another batch size
    changes the draws, unlike with this package's own steps.

    Args:
        augmentations: Classes of ``kornia.augmentation`` by freely chosen names, in order; null
            removes one. Masks use nearest-pixel interpolation.
        seed: The run's seed.
        split: ``train``; in ``val`` nothing is changed.
        step: The name of this step.
    """

    def __init__(
        self,
        *,
        augmentations: Mapping[str, Any],
        seed: int,
        split: Literal["train", "val"],
        step: str,
    ) -> None:
        given = {name: module for name, module in augmentations.items() if module is not None}
        for name, module in given.items():
            _check(f"augment.device.{step}.augmentations.{name}", module)
        self._modules = list(given.values())
        self._stacks: dict[bool, Any] = {}
        self._sizes: dict[tuple[int, int], tuple[int, int]] = {}
        self._active = split == "train" and bool(given)
        self._step = step
        self._key = batch_key(seed, step)

    def draw(self, rows: Rows) -> Draws:
        """Draw a seed; the name of the draw carries it, so that no device has to return it.

        Raises:
            ValueError: The images differ in size, or the batch has boxes or keypoints.
        """
        if not self._active:
            return {}
        if not rows.stacked:
            raise ValueError(
                f"augment.device.{self._step}: images are a list, and kornia takes one tensor; "
                f"give them one size and stack them"
            )
        refuse_fixed_fields(rows.fields, self._step)
        seed = int(row_words(rows.fields, self._key)[0]) & (1 << 63) - 1
        rows.size = self._size_after(rows.fields["image"][0][None], rows.size)
        return {f"seed {seed}": np.zeros(1, np.uint8)}

    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """Change the images, and a mask with them; in evaluation return the same batch.

        Args:
            batch: With ``image`` uint8 [B, H, W, C], or float [B, C, H, W] from 0 to 1; perhaps
                ``mask`` [B, H, W].
            draws: The seed.
        """
        if not draws:
            return batch
        import torch

        image, mask = batch["image"], batch.get("mask")
        pixels = torch.as_tensor(image)
        planes = pixels
        if not pixels.is_floating_point():
            planes = pixels.permute(0, 3, 1, 2).float().div_(255)
        given = [planes] if mask is None else [planes, torch.as_tensor(mask)[:, None].to(planes)]
        seed = int(next(iter(draws)).removeprefix("seed "))
        with _seeded(seed, pixels.device):
            changed = self._stack(mask is not None)(*given)
        if mask is None:
            return {**batch, "image": _as_before(changed, image)}
        moved = changed[1][:, 0].round().to(torch.as_tensor(mask).dtype)
        moved = moved.numpy() if isinstance(mask, np.ndarray) else moved
        return {**batch, "image": _as_before(changed[0], image), "mask": moved}

    def _stack(self, with_mask: bool) -> Any:
        from kornia.augmentation import AugmentationSequential

        if with_mask not in self._stacks:
            keys = ["input", "mask"] if with_mask else ["input"]
            self._stacks[with_mask] = AugmentationSequential(*self._modules, data_keys=keys)
        return self._stacks[with_mask]

    def _size_after(self, image: Any, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size of augmented images, found by augmenting a black one on the CPU."""
        import torch

        if size not in self._sizes:
            black = torch.zeros(1, image.shape[1 if is_planes(image) else 3], *size)
            with _seeded(0, black.device):
                result = copy.deepcopy(self)._stack(False)(black)
            self._sizes[size] = result.shape[2], result.shape[3]
        return self._sizes[size]


def _check(key: str, module: Any) -> None:
    """Refuse other objects than augmentations, and augmentations that mix images."""
    if not type(module).__module__.startswith("kornia."):
        raise ValueError(
            f"{key} is {module!r}, expected a class of kornia.augmentation, such as "
            f"{{_target_: kornia.augmentation.RandomGaussianBlur, ...}}"
        )
    from kornia.augmentation import MixAugmentationBaseV2

    if any(isinstance(part, MixAugmentationBaseV2) for part in module.modules()):
        raise ValueError(
            f"{key} mixes images and would leave their labels as they are; use "
            f"batch_transform=mixup or batch_transform=cutmix"
        )


def _as_before(planes: torch.Tensor, image: Any) -> Any:
    if not is_planes(image):
        planes = planes.mul(255).round_().clamp_(0, 255).byte().permute(0, 2, 3, 1).contiguous()
    return planes.numpy() if isinstance(image, np.ndarray) else planes


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators of the CPU and of a device, and restore them afterwards."""
    import torch

    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
