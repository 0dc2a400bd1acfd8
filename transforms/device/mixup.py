"""Blend pairs of a batch's images with one another, and their labels, on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Le

from penstock.core.contracts import BatchTransformCapabilities
from penstock.core.registry import register
from penstock.core.rng import batch_key
from penstock.core.sample import Batch
from penstock.transforms.device.rows.draws import row_by_row, symmetric_beta
from penstock.transforms.device.rows.pairs import (
    check_mixable,
    drawn_pairs,
    joined_boxes,
    mixed_labels,
)

if TYPE_CHECKING:
    import torch

_REFUSED = ("mask", "keypoints")
_LEAST_ALPHA_OF_BOXES = 8.0


@register("batch_transform", "mixup")
class Mixup:
    """In training, positions 2k and 2k + 1 are blended with one another, and their labels.

    Each image becomes w times itself and 1 - w times its neighbour, w from Beta(alpha, alpha),
    the same for both. A row whose neighbour is missing or invalid stays as it is, and so does a
    pair that an earlier step has mixed: ``mixup`` with ``p: 0.5`` and then ``cutmix`` gives
    half of each. Ranks are never cut between two of a pair, so the result follows from seed,
    epoch, position and the name of the step alone. `loader.batch_size` must be even.

    An image with boxes gets its neighbour's too, with all that belongs to them. They count as its
    own, as detectors of the YOLO family train them, so both images have to be seen: `alpha` must
    be 8 or more then.

    Sources: Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018; for boxes,
    Zhang et al., "Bag of Freebies for Training Object Detection Neural Networks",
    arXiv:1902.04103, section 3.1, where they also weigh as much as their image.

    Args:
        alpha: The smaller, the more of an image is left in most; for boxes, 32 is usual.
        p: Probability that a pair is blended at all.
        seed: The run's seed.
        split: ``train``; in ``val`` nothing is mixed.
        step: The name of this step.
    """

    def __init__(
        self,
        *,
        alpha: Annotated[float, Ge(0.05), Le(1000)] = 0.2,
        p: Annotated[float, Ge(0), Le(1)] = 1.0,
        seed: int,
        split: Literal["train", "val"],
        step: str,
    ) -> None:
        self.alpha = alpha
        self.p = p
        self.capabilities = BatchTransformCapabilities(group=2 if split == "train" else 1)
        self._active = split == "train"
        self._step = step
        self._key = batch_key(seed, step)

    def __call__(self, batch: Batch) -> Batch:
        """Blend pairs of rows.

        Args:
            batch: With ``image`` [B, ...] of any layout and type, ``label`` int64 [B]; ``epoch``
                and ``position`` int64 [B]; perhaps ``boxes`` and ``box_*``, in lists or padded.

        Returns:
            The batch with new images, ``label_other`` int64 [B], the neighbour's class, and
            ``label_weight`` float32 [B], the share of ``label``, 1 where nothing is mixed; and
            with the boxes of both, see `joined_boxes`. In evaluation the
            batch as it was.

        Raises:
            ValueError: The images are of several sizes, or the batch holds masks or keypoints,
                or neither labels nor boxes, or has boxes and `alpha` is below 8.
        """
        import torch

        if not self._active:
            return batch
        check_mixable(batch, self._step, refused=_REFUSED)
        if "boxes" in batch and self.alpha < _LEAST_ALPHA_OF_BOXES:
            prefix = f"augment.device.{self._step}"
            raise ValueError(
                f"{prefix}: the batch has boxes and alpha is {self.alpha:g}, which leaves next to "
                f"nothing of many images whose boxes would count; set {prefix}.alpha=32"
            )
        pairs = drawn_pairs(batch, self._key, 2, p=self.p)
        share = torch.as_tensor(symmetric_beta(pairs.draws[0], pairs.draws[1], self.alpha)).float()
        image = _blended(batch["image"], pairs.partner, pairs.mixed, share)
        mixed = {**batch, "image": image, **mixed_labels(batch, pairs, share)}
        return {**mixed, **joined_boxes(batch, pairs)} if "boxes" in batch else mixed


def _blended(
    image: torch.Tensor, partner: torch.Tensor, mixed: torch.Tensor, share: torch.Tensor
) -> torch.Tensor:
    """Rows with their partners; bytes are rounded to the nearest."""
    import torch

    if not row_by_row(image):
        weight = share.reshape(-1, *[1] * (image.ndim - 1))
        blend = _weighted(image, image[partner], weight)
        return blend.where(mixed.reshape(weight.shape), image)
    result = torch.empty_like(image)
    for row, (other, is_mixed) in enumerate(zip(partner.tolist(), mixed.tolist(), strict=True)):
        one = image[row]
        result[row] = _weighted(one, image[other], share[row]) if is_mixed else one
    return result


def _weighted(one: torch.Tensor, other: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    if one.is_floating_point():
        share = share.to(one.dtype)
        return (one * share).add_(other * (1 - share))
    return (one * share).add_(other * (1 - share)).round_().clamp_(0, 255).to(one.dtype)
