"""Crop images of a batch at random places and scales, and resize them, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.registry import register
from penstock.core.rng import batch_key
from penstock.core.sample import Batch
from penstock.transforms.device.rows.draws import uniforms
from penstock.transforms.device.rows.windows import (
    DRAWS,
    Windows,
    checked_range,
    drawn_windows,
    moved_boxes,
    moved_keypoints,
    resized_image,
    resized_mask,
)

if TYPE_CHECKING:
    import torch


@register("batch_transform", "random_resized_crop")
class RandomResizedCrop:
    """Crop each image to a random window and resize it to `size`, in training.

    In evaluation the window is the largest of `size`'s shape, at the centre. Masks, boxes and
    keypoints follow their image. Interpolation is linear without antialiasing: if images are more
    than twice as large as the result, shrink them in ``augment.train`` first. Windows depend only
    on seed, epoch, position and step name.

    Source: Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6. If none of 10
    tries fits, the window is the largest with an allowed ratio at the centre, as in torchvision.

    Args:
        size: Height and width of the result, or one number for both.
        scale: Least and largest share of the image's area.
        ratio: Least and largest width / height of the window.
        seed: The run's seed.
        split: ``train`` or ``val``.
        step: The name of this step.
    """

    def __init__(
        self,
        *,
        size: int | list[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (0.75, 1.3333),
        seed: int,
        split: Literal["train", "val"],
        step: str,
    ) -> None:
        sides = [size, size] if isinstance(size, int) else list(size)
        prefix = f"augment.device.{step}"
        if len(sides) != 2 or min(sides) < 1:
            raise ValueError(
                f"{prefix}.size is {size}, expected one side or [height, width], in pixels from "
                f"1 on"
            )
        self._size = (sides[0], sides[1])
        self._scale = checked_range(scale, f"{prefix}.scale", least=1e-6, most=1)
        self._ratio = checked_range(ratio, f"{prefix}.ratio", least=0.01, most=100)
        self._active = split == "train"
        self._step = step
        self._key = batch_key(seed, step)

    def __call__(self, batch: Batch) -> Batch:
        """Crop and resize every row.

        Args:
            batch: With ``image`` uint8 [B, H, W, C] or float [B, C, H, W], or a list of images
                of any sizes; perhaps ``mask`` [B, H, W], ``boxes``, a list of B [N, 4] with
                their other ``box_*`` fields, and ``keypoints`` [B, K, 3], or lists of these;
                ``epoch`` and ``position`` int64 [B].

        Returns:
            The batch with images and masks of `size`, stacked. Boxes are cut at the window's edges,
            and empty boxes dropped; keypoints outside get visibility 0.

        Raises:
            ValueError: Boxes are padded to one tensor, or have masks.
        """
        image = batch["image"]
        if "box_masks" in batch:
            raise ValueError(
                f"augment.device.{self._step}: boxes have masks, which it does not move; crop per "
                f"sample in augment.train"
            )
        if not isinstance(batch.get("boxes", []), list):
            raise ValueError(
                f"augment.device.{self._step}: boxes are padded, and some have to be dropped; "
                f"choose collate=list, or crop per sample in augment.train"
            )
        if not self._active and not isinstance(image, list) and _sides(image) == self._size:
            return batch
        draws = uniforms(batch, self._key, DRAWS) if self._active else None
        if not isinstance(image, list):
            return self._cropped(batch, self._windows(image, draws))
        import torch

        rows = []
        for row, one in enumerate(image):
            single = {name: value[row : row + 1] for name, value in _moving(batch).items()}
            single["image"] = one[None]
            if isinstance(single.get("mask"), list):
                single["mask"] = single["mask"][0][None]
            here = None if draws is None else draws[:, [row]]
            rows.append(self._cropped(single, self._windows(single["image"], here)))
        joined = {
            name: torch.cat([row[name] for row in rows])
            if not isinstance(value, list)
            else [item for row in rows for item in row[name]]
            for name, value in rows[0].items()
        }
        return {**batch, **joined}

    def _windows(self, image: torch.Tensor, draws: Any) -> Windows:
        import torch

        height, width = _sides(image)
        shape = self._size[1] / self._size[0]
        low, high = self._ratio if draws is not None else (shape, shape)
        whole = (min(height, max(1, round(width / low))), min(width, max(1, round(height * high))))
        edges = ((height - whole[0]) // 2, (width - whole[1]) // 2, *whole)
        if draws is None:
            top, left, rows, columns = torch.tensor([edges] * len(image), device=image.device).T
            return Windows(top, left, rows, columns, torch.ones_like(top).bool())
        drawn = drawn_windows(draws, height, width, scale=self._scale, ratio=self._ratio)
        return Windows(
            drawn.top.where(drawn.found, edges[0]),
            drawn.left.where(drawn.found, edges[1]),
            drawn.height.where(drawn.found, edges[2]),
            drawn.width.where(drawn.found, edges[3]),
            torch.ones_like(drawn.found),
        )

    def _cropped(self, batch: Batch, windows: Windows) -> Batch:
        """Crop the fields of rows whose images have one size."""
        result = {**batch, "image": resized_image(batch["image"], windows, self._size)}
        if "mask" in batch:
            result["mask"] = resized_mask(batch["mask"], windows, self._size)
        if "boxes" in batch:
            result |= moved_boxes(batch, windows, self._size)
        if "keypoints" in batch:
            result["keypoints"] = moved_keypoints(batch["keypoints"], windows, self._size)
        return result


def _sides(image: torch.Tensor) -> tuple[int, int]:
    """Return height and width of uint8 [B, H, W, C] or float [B, C, H, W]."""
    height, width = image.shape[2:4] if image.is_floating_point() else image.shape[1:3]
    return height, width


def _moving(batch: Batch) -> Batch:
    """Return the fields that a crop changes, apart from ``image``."""
    return {
        name: value
        for name, value in batch.items()
        if name in ("mask", "boxes", "keypoints") or name.startswith("box_")
    }
