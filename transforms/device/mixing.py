"""Mix pairs of a batch's images and labels on the device: mixup and CutMix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from penstock.core.contracts import BatchTransformCapabilities
from penstock.core.registry import register
from penstock.core.rng import batch_key
from penstock.core.sample import Batch
from penstock.transforms.device.rows.draws import row_by_row, symmetric_beta, uniforms
from penstock.transforms.device.rows.windows import Windows

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of rows to mix.

    Attributes:
        partner: Row of the partner, or the row itself without one, int64 [B].
        mixed: Whether the row is mixed with its partner, bool [B].
        draws: Uniforms, float32 [count, B], equal for both rows of a pair.
    """

    partner: torch.Tensor
    mixed: torch.Tensor
    draws: Any


def drawn_pairs(batch: Batch, key: int, count: int, *, p: float) -> Pairs:
    """Pair positions 2k and 2k + 1 if both are in the batch, valid, and not mixed yet.

    Args:
        batch: ``epoch`` and ``position`` int64 [B], in the order of a loader; perhaps ``valid``
            bool [B] and ``label_weight`` float32 [B].
        key: The step's `core.rng.batch_key`.
        count: How many numbers to draw for each pair, by its first position.
        p: Probability that a pair is mixed; other pairs keep their partners.
    """
    import torch

    draws = uniforms({**batch, "position": batch["position"] & -2}, key, count + 1)
    positions, epochs = batch["position"], batch["epoch"]
    rows = torch.arange(len(positions), device=positions.device)
    other = (rows + 1 - 2 * (positions & 1)).clamp(0, len(positions) - 1)
    mixed = (positions[other] == positions ^ 1) & (epochs[other] == epochs)
    if "valid" in batch:
        mixed &= batch["valid"] & batch["valid"][other]
    if "label_weight" in batch:
        whole = batch["label_weight"] == 1
        mixed &= whole & whole[other]
    partner = other.where(mixed, rows)
    return Pairs(partner, mixed & torch.as_tensor(draws[count] < p), draws[:count])


def check_mixable(batch: Batch, step: str, *, refused: tuple[str, ...]) -> None:
    """Raise ValueError for a batch that cannot be mixed.

    The images must have one size and no `refused` field. ``label`` must be a class; a batch with
    boxes, or numbers by name, needs none.
    """
    prefix = f"augment.device.{step}"
    if isinstance(batch["image"], list):
        raise ValueError(
            f"{prefix}: images are a list, and two are mixed pixel by pixel; give them one size "
            f"and stack them, or set {prefix}=null"
        )
    for field in refused:
        if field in batch:
            raise ValueError(
                f"{prefix}: the batch has {field}, for which a mixture of two images has no "
                f"meaning; set {prefix}=null, or drop them with dataset.keys={{{field}:null}}"
            )
    label = batch.get("label")
    if label is None and any(field in batch for field in ("boxes", *_BLENDED)):
        return
    if label is None or isinstance(label, list) or label.ndim != 1 or label.is_floating_point():
        raise ValueError(
            f"{prefix}: needs a label for each image, int64 [B], and the batch has "
            f"{'none' if label is None else 'another'}; set {prefix}=null"
        )


_BLENDED = ("labels", "values")  # a number for each name


def mixed_labels(batch: Batch, pairs: Pairs, share: torch.Tensor) -> Batch:
    """Return the labels of mixed images and their weights.

    Args:
        batch: ``label`` int64 [B]; perhaps the result of an earlier step.
        pairs: The pairs of rows.
        share: The row's own share of its mixed image, float [B].

    Returns:
        ``label_other`` int64 [B], if there is a ``label``, and ``label_weight`` float32 [B];
        ``labels`` and ``values``, float [B, C], are blended as the images are.
    """
    weight = batch.get("label_weight", 1.0)
    mixed: Batch = {}
    if "label" in batch:
        label = batch["label"]
        other = batch.get("label_other", label)
        mixed["label_other"] = label[pairs.partner].where(pairs.mixed, other)
    for field in _BLENDED:
        if field in batch:
            one, own = batch[field], share.float()[:, None]
            both = own * one + (1 - own) * one[pairs.partner]
            mixed[field] = both.where(pairs.mixed[:, None], one)
    return {**mixed, "label_weight": share.float().where(pairs.mixed, weight)}


def joined_boxes(batch: Batch, pairs: Pairs) -> Batch:
    """Concatenate the boxes of both rows of a pair, each row's own first.

    Args:
        batch: ``boxes`` and ``box_*``: lists of B tensors [N, ...], or padded [B, N, ...] with
            ``_mask`` bool [B, N] and ``_lengths`` int64 [B].
        pairs: The pairs of rows.

    Returns:
        These fields; padded fields are [B, 2 N, ...], so that no shape depends on the draws.
    """
    import torch

    fields = [name for name in batch if name == "boxes" or name.startswith("box_")]
    joined: Batch = {}
    in_lists = isinstance(batch["boxes"], list)
    # Padded boxes need no wait for the device.
    partners = pairs.partner.where(pairs.mixed, -1).tolist() if in_lists else []
    for name in fields:
        values = batch[name]
        if isinstance(values, list):
            joined[name] = [
                values[row] if other < 0 else torch.cat([values[row], values[other]])
                for row, other in enumerate(partners)
            ]
        elif f"{name}_mask" in batch:
            mask = batch[f"{name}_mask"]
            there = torch.cat([mask, mask[pairs.partner] & pairs.mixed[:, None]], 1)
            order = (~there).to(torch.uint8).argsort(dim=1, stable=True)
            both = torch.cat([values, values[pairs.partner]], 1)
            places = order.reshape(*order.shape, *[1] * (both.ndim - 2)).expand_as(both)
            joined |= {
                name: both.gather(1, places),
                f"{name}_mask": there.gather(1, order),
                f"{name}_lengths": there.sum(1),
            }
    return joined


_LEAST_ALPHA_OF_BOXES = 8.0


@register("batch_transform", "mixup")
class Mixup:
    """Blend positions 2k and 2k + 1, and their labels, in training.

    Each image becomes w times itself and 1 - w times its neighbour, with w from Beta(alpha, alpha),
    the same for both. A row without a valid neighbour stays as it is, and so does a pair that an
    earlier step has mixed: ``mixup`` with ``p: 0.5`` and then ``cutmix`` gives half of each. The
    ranks' parts of a batch never split a pair, so results depend only on seed, epoch, position and
    step name. `loader.batch_size` must be even.

    An image with boxes also gets its neighbour's boxes with all their fields. They count fully, as
    detectors of the YOLO family train them. Both images must stay visible, so boxes need an `alpha`
    of 8 or more.

    Sources: Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018; for boxes,
    Zhang et al., "Bag of Freebies for Training Object Detection Neural Networks",
    arXiv:1902.04103, section 3.1, which also weights boxes like their image.

    Args:
        alpha: Smaller values leave most images almost unmixed; for boxes, 32 is usual.
        p: Probability that a pair is blended.
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
        """Blend pairs of rows; in evaluation return the same batch.

        Args:
            batch: With ``image`` [B, ...] of any layout and type, ``label`` int64 [B]; ``epoch``
                and ``position`` int64 [B]; perhaps ``boxes`` and ``box_*``, in lists or padded.

        Returns:
            The batch with new images, ``label_other`` int64 [B], the neighbour's class, and
            ``label_weight`` float32 [B], the weight of ``label``, 1 if unmixed; boxes as in
            `joined_boxes`.

        Raises:
            ValueError: See `check_mixable`; or the batch has boxes and `alpha` is below 8.
        """
        import torch

        if not self._active:
            return batch
        check_mixable(batch, self._step, refused=("mask", "keypoints"))
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
    """Blend rows with their partners; bytes are rounded to the nearest."""
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


@register("batch_transform", "cutmix")
class CutMix:
    """Exchange a rectangle of positions 2k and 2k + 1, and a share of their labels, in training.

    The rectangle has the shape of the image and a share 1 - w of its area, with w from
    Beta(alpha, alpha). Its centre is anywhere in the image, which cuts it at the edges. Masks are
    exchanged with their images. A row without a valid neighbour stays as it is, and so does a pair
    that an earlier step has mixed. The ranks' parts of a batch never split a pair, so results
    depend only on seed, epoch, position and step name. `loader.batch_size` must be even.

    Source: Yun et al., "CutMix: Regularization Strategy to Train Strong Classifiers with
    Localizable Features", ICCV 2019.

    Args:
        alpha: At 1 every share is equally likely.
        p: Probability that a pair is mixed.
        seed: The run's seed.
        split: ``train``; in ``val`` nothing is mixed.
        step: The name of this step.
    """

    def __init__(
        self,
        *,
        alpha: Annotated[float, Ge(0.05), Le(1000)] = 1.0,
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
        """Exchange rectangles between pairs of rows; in evaluation return the same batch.

        Args:
            batch: With ``image`` uint8 [B, H, W, C] or float [B, C, H, W], ``label`` int64 [B],
                perhaps ``mask`` [B, H, W]; ``epoch`` and ``position`` int64 [B].

        Returns:
            The batch with new images, ``label_other`` int64 [B], the neighbour's class, and
            ``label_weight`` float32 [B], the row's own share of the area, 1 if unmixed.

        Raises:
            ValueError: The images differ in size, or the batch has boxes or keypoints, or no
                labels.
        """
        if not self._active:
            return batch
        check_mixable(batch, self._step, refused=("boxes", "keypoints"))
        image = batch["image"]
        pairs = drawn_pairs(batch, self._key, 4, p=self.p)
        height, width = image.shape[2:4] if image.is_floating_point() else image.shape[1:3]
        windows = self._windows(pairs.draws, height, width)
        share = 1 - (windows.height * windows.width).float() / (height * width)
        result = {**batch, **mixed_labels(batch, pairs, share)}
        for field in ("image", "mask"):
            if field in batch:
                planes = field == "image" and image.is_floating_point()
                result[field] = _exchanged(batch[field], pairs, windows, planes=planes)
        return result

    def _windows(self, draws: Any, height: int, width: int) -> Windows:
        import torch

        side = (1 - symmetric_beta(draws[0], draws[1], self.alpha)) ** 0.5
        edges = []
        for draw, size in ((draws[2], height), (draws[3], width)):
            half, centre = side * size // 2, draw * size // 1
            edges += [(centre - half).clip(0, size), (centre + half).clip(0, size)]
        top, bottom, left, right = (torch.as_tensor(edge).long() for edge in edges)
        return Windows(top, left, bottom - top, right - left, torch.ones_like(top).bool())


def _exchanged(value: torch.Tensor, pairs: Pairs, windows: Windows, *, planes: bool) -> Any:
    """Copy the partners' rectangles into rows of [B, H, W, ...], or [B, C, H, W] for `planes`."""
    last = value.permute(0, 2, 3, 1) if planes else value
    if row_by_row(value):
        changed, edges = last.clone(), windows.edges()
        for row in pairs.mixed.nonzero()[:, 0].tolist():
            top, left, rows, columns = edges[row]
            place = (slice(top, top + rows), slice(left, left + columns))
            changed[(row, *place)] = last[(int(pairs.partner[row]), *place)]
    else:
        inside = windows.inside(*last.shape[1:3]) & pairs.mixed[:, None, None]
        inside = inside.reshape(*inside.shape, *[1] * (last.ndim - 3))
        changed = last[pairs.partner].where(inside, last)
    return changed.permute(0, 3, 1, 2) if planes else changed
