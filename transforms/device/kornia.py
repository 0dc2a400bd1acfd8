"""Run augmentations of the kornia library on batches on the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.transforms.device.draws import row_words
from penstock.transforms.device.steps import Draws, RandomStep, Rows, is_planes

if TYPE_CHECKING:
    import torch


@register("batch_transform", "kornia")
@dataclass(kw_only=True, eq=False)
class Kornia(RandomStep):
    """Run augmentations of kornia on images, one after the other, in training.

    Install the extra `kornia`. To add an augmentation, set
    ``augment.device.<step>.augmentations.blur._target_=kornia.augmentation.RandomGaussianBlur``.
    Put this step before ``normalize``. Unlike with other steps, the number of ranks and the batch
    size change the draws, because Kornia draws for a whole batch.

    Args:
        augmentations: Classes of ``kornia.augmentation`` by freely chosen names, in order; null
            removes one.
    """

    refused = ("mask", "boxes", "keypoints")

    augmentations: Mapping[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {name: module for name, module in self.augmentations.items() if module is not None}
        for name, module in given.items():
            _check(f"augment.device.{self.step}.augmentations.{name}", module)
        self._modules = list(given.values())
        self._stack: Any = None

    def choose(self, rows: Rows) -> Draws:
        """Draw a seed; the name of the draw carries it, so that no device has to return it."""
        if not self._modules:
            return {}
        self.check(rows)
        seed = int(row_words(rows.fields, self.key)[0]) & (1 << 63) - 1
        return {f"seed {seed}": np.zeros(1, np.uint8)}

    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """Change ``image``, uint8 [B, H, W, C] or float [B, C, H, W] from 0 to 1."""
        if not draws:
            return batch
        import torch
        from kornia.augmentation import AugmentationSequential

        self._stack = self._stack or AugmentationSequential(*self._modules, data_keys=["input"])
        image, planes = batch["image"], torch.as_tensor(batch["image"])
        is_bytes = not is_planes(image)
        if is_bytes:
            planes = planes.permute(0, 3, 1, 2).float().div_(255)
        seed = int(next(iter(draws)).removeprefix("seed "))
        with _seeded(seed, planes.device):
            changed = self._stack(planes)
        if changed.shape[2:] != planes.shape[2:]:
            raise ValueError(
                f"augment.device.{self.step}: an augmentation resizes {list(planes.shape[2:])} to "
                f"{list(changed.shape[2:])}; use batch_transform=random_resized_crop or random_crop"
            )
        if is_bytes:
            changed = changed.mul(255).round_().clamp_(0, 255).byte().permute(0, 2, 3, 1)
            changed = changed.contiguous()
        return {**batch, "image": changed.numpy() if isinstance(image, np.ndarray) else changed}


def _check(key: str, module: Any) -> None:
    """Refuse other objects than augmentations, and augmentations that mix images."""
    from kornia.augmentation import MixAugmentationBaseV2

    ours = type(module).__module__.startswith("kornia.")
    if not ours or any(isinstance(part, MixAugmentationBaseV2) for part in module.modules()):
        raise ValueError(
            f"{key} is a {type(module).__name__}, expected a class of kornia.augmentation that "
            f"mixes no images; to mix images with labels, use batch_transform=mixup or cutmix"
        )


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
