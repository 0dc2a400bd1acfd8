"""Run augmentations of the kornia library on batches on the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.registry import register
from penstock.core.rng import batch_key, words_at
from penstock.core.sample import Batch
from penstock.transforms.device.rows.changes import refuse_fixed_fields

if TYPE_CHECKING:
    import torch


@register("batch_transform", "kornia")
class Kornia:
    """Run augmentations of kornia on images, one after the other, in training.

    Install the extra `kornia`. To add an augmentation, set
    ``augment.device.<step>.augmentations.blur._target_=kornia.augmentation.RandomGaussianBlur``.
    Put this step before ``normalize``. Kornia draws for a whole batch from torch's global
    generator. This step seeds the generator by seed, epoch and the first position of the rank's
    part of the batch, and restores its state. So runs repeat and resume exactly with any engine and
    number of workers, *for the same number of ranks*. Another number of ranks or another batch size
    changes the draws, unlike with this package's own steps. On an accelerator the step waits for
    the position once a batch.

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
        self._active = split == "train" and bool(given)
        self._step = step
        self._key = batch_key(seed, step)

    def __call__(self, batch: Batch) -> Batch:
        """Change the images, and a mask with them; in evaluation return the same batch.

        Args:
            batch: With ``image`` uint8 [B, H, W, C], or float [B, C, H, W] from 0 to 1; perhaps
                ``mask`` [B, H, W]; ``epoch`` and ``position`` int64 [B].

        Raises:
            ValueError: The images differ in size, or the batch has boxes or keypoints.
        """
        if not self._active:
            return batch
        image, mask = batch["image"], batch.get("mask")
        if isinstance(image, list):
            raise ValueError(
                f"augment.device.{self._step}: images are a list, and kornia takes one tensor; "
                f"give them one size and stack them"
            )
        refuse_fixed_fields(batch, self._step)
        planes = image
        if not image.is_floating_point():
            planes = image.permute(0, 3, 1, 2).float().div_(255)
        given = [planes] if mask is None else [planes, mask[:, None].to(planes.dtype)]
        word = int(words_at(self._key, batch["epoch"][:1], batch["position"][:1])[0])
        with _seeded(word & (1 << 63) - 1, image.device):
            changed = self._stack(mask is not None)(*given)
        if mask is None:
            return {**batch, "image": _as_before(changed, image)}
        moved = changed[1][:, 0].round().to(mask.dtype)
        return {**batch, "image": _as_before(changed[0], image), "mask": moved}

    def _stack(self, with_mask: bool) -> Any:
        from kornia.augmentation import AugmentationSequential

        if with_mask not in self._stacks:
            keys = ["input", "mask"] if with_mask else ["input"]
            self._stacks[with_mask] = AugmentationSequential(*self._modules, data_keys=keys)
        return self._stacks[with_mask]


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


def _as_before(planes: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    if image.is_floating_point():
        return planes
    return planes.mul(255).round_().clamp_(0, 255).to(image.dtype).permute(0, 2, 3, 1).contiguous()


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
