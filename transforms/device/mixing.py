"""Mix pairs of a batch's images and labels on the device: mixup and CutMix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from penstock.core.contracts import BatchTransformCapabilities
from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.transforms.device.draws import symmetric_beta, uniforms
from penstock.transforms.device.steps import (
    Draws,
    PixelStep,
    Rows,
    is_float,
    joined,
    like,
    rows_at_once,
)
from penstock.transforms.device.windows import inside

if TYPE_CHECKING:
    import torch

_BLENDED = ("labels", "values")  # a number for each name
_LEAST_ALPHA_OF_BOXES = 8.0


class PairStep(PixelStep):
    """A step that mixes positions 2k and 2k + 1 of an epoch.

    Draws: ``partner``, the row to mix with or the row itself, int64 [B]; ``mixed``, bool [B];
    ``share``, the row's own share of its mixed image, float32 [B]; ``rows``, the rows that are
    mixed, int64 [k].
    """

    refused: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        *,
        alpha: Annotated[float, Ge(0.05), Le(1000)] = 0.2,
        p: Annotated[float, Ge(0), Le(1)] = 1.0,
        seed: int,
        split: Literal["train", "val"],
        step: str,
    ) -> None:
        super().__init__(seed=seed, split=split, step=step)
        self.alpha = alpha
        self.p = p
        self.capabilities = BatchTransformCapabilities(group=2 if split == "train" else 1)

    def draw_pairs(self, rows: Rows, count: int) -> tuple[Draws, NDArray[np.float32]]:
        """Pair positions 2k and 2k + 1 if both are in the batch, valid, and not mixed yet.

        Returns:
            ``partner``, ``mixed`` and ``rows``; and uniforms, float32 [count, B], equal for both
            rows of a pair.
        """
        fields = rows.fields
        positions, epochs = np.asarray(fields["position"]), np.asarray(fields["epoch"])
        draws = uniforms({**fields, "position": positions & -2}, self._key, count + 1)
        own = np.arange(len(positions))
        other = (own + 1 - 2 * (positions & 1)).clip(0, len(positions) - 1)
        paired = (positions[other] == positions ^ 1) & (epochs[other] == epochs)
        if "valid" in fields:
            valid = np.asarray(fields["valid"])
            paired &= valid & valid[other]
        if rows.mixed is None:
            weight = np.asarray(fields.get("label_weight", np.ones(len(own))))
            rows.mixed = weight != 1
        paired &= ~(rows.mixed | rows.mixed[other])
        mixed = paired & (draws[count] < self.p)
        pairs = {"partner": np.where(paired, other, own), "mixed": mixed}
        return {**pairs, "rows": np.flatnonzero(mixed)}, draws[:count]

    def shared(self, rows: Rows, pairs: Draws, share: NDArray[np.floating[Any]]) -> Draws:
        """Return the draws with ``share``, and note for later steps which rows are mixed."""
        share = share.astype(np.float32)
        rows.mixed = rows.mixed | pairs["mixed"] & (share != 1)
        return {**pairs, "share": share}

    def check(self, rows: Rows) -> None:
        """Raise ValueError for a batch that cannot be mixed.

        The images must have one size and no refused field. ``label`` must be a class; a batch with
        boxes, or numbers by name, needs none.
        """
        prefix = f"augment.device.{self._step}"
        if not rows.stacked:
            raise ValueError(
                f"{prefix}: images are a list, and two are mixed pixel by pixel; give them one "
                f"size and stack them, or set {prefix}=null"
            )
        for field in self.refused:
            if field in rows.fields:
                raise ValueError(
                    f"{prefix}: the batch has {field}, for which mixing two images is undefined; "
                    f"set {prefix}=null, or drop them with dataset.keys={{{field}:null}}"
                )
        label = rows.fields.get("label")
        if label is None and any(field in rows.fields for field in ("boxes", *_BLENDED)):
            return
        if label is None or isinstance(label, list) or label.ndim != 1 or is_float(label):
            raise ValueError(
                f"{prefix}: needs a label for each image, int64 [B], and the batch has "
                f"{'none' if label is None else 'another'}; set {prefix}=null"
            )

    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """Mix pixels and labels of pairs; in evaluation return the same batch.

        Args:
            batch: With ``image`` uint8 [B, H, W, C] or float [B, C, H, W], ``label`` int64 [B];
                perhaps the result of an earlier step.
            draws: See the class.

        Returns:
            The batch with new images, ``label_other`` int64 [B], the neighbour's class, and
            ``label_weight`` float32 [B], the weight of ``label``, 1 if unmixed. ``labels`` and
            ``values``, float [B, C], are blended as the images are.
        """
        if not draws:
            return batch
        result = super().apply(batch, draws)
        partner, mixed, share = (
            like(batch["image"], draws[name]) for name in ("partner", "mixed", "share")
        )
        if "label" in batch:
            label = batch["label"]
            other = batch.get("label_other", label)
            result["label_other"] = _where(mixed, label[partner], other)
        for field in _BLENDED:
            if field in batch:
                one, own = batch[field], share[:, None]
                both = own * one + (1 - own) * one[partner]
                result[field] = _where(mixed[:, None], both, one)
        result["label_weight"] = _where(mixed, share, batch.get("label_weight", share * 0 + 1))
        return result


def _where(condition: Any, one: Any, other: Any) -> Any:
    if isinstance(condition, np.ndarray):
        return np.where(condition, one, other)
    return one.where(condition, other)


@register("batch_transform", "mixup")
class Mixup(PairStep):
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

    refused = ("mask", "keypoints")

    def draw(self, rows: Rows) -> Draws:
        """Draw pairs and shares, and join the boxes of each pair.

        Raises:
            ValueError: See `check`; or the batch has boxes and `alpha` is below 8.
        """
        if not self._active:
            return {}
        self.check(rows)
        if "boxes" in rows.fields and self.alpha < _LEAST_ALPHA_OF_BOXES:
            prefix = f"augment.device.{self._step}"
            raise ValueError(
                f"{prefix}: the batch has boxes and alpha is {self.alpha:g}, which leaves next to "
                f"nothing of many images whose boxes would count; set {prefix}.alpha=32"
            )
        pairs, draws = self.draw_pairs(rows, 2)
        if "boxes" in rows.fields:
            rows.fields.update(joined_boxes(rows.fields, pairs["partner"], pairs["mixed"]))
        return self.shared(rows, pairs, symmetric_beta(draws[0], draws[1], self.alpha))

    def arrays(self, pixels: NDArray[Any], draws: Draws) -> NDArray[Any]:
        """Blend row by row; bytes are rounded to the nearest."""
        result = pixels.copy("K")
        for row in draws["rows"].tolist():
            share = draws["share"][row]
            blend = pixels[row] * share + pixels[draws["partner"][row]] * (1 - share)
            result[row] = blend if pixels.dtype.kind == "f" else np.rint(blend, out=blend)
        return result

    def tensors(self, pixels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Blend in chunks, so that few rows are floats at once."""
        result = pixels.clone()
        for rows in draws["rows"].split(rows_at_once(pixels)):
            share = draws["share"][rows].reshape(-1, *[1] * (pixels.ndim - 1))
            if pixels.is_floating_point():
                share = share.to(pixels.dtype)
            blend = pixels[rows] * share
            blend.add_(pixels[draws["partner"][rows]] * (1 - share))
            if not pixels.is_floating_point():
                blend = blend.round_().to(pixels.dtype)
            result.index_copy_(0, rows, blend)
        return result


def joined_boxes(fields: Batch, partner: NDArray[np.int64], mixed: NDArray[np.bool_]) -> Batch:
    """Concatenate the boxes of both rows of a pair, each row's own first.

    Args:
        fields: ``boxes`` and ``box_*``: lists of B arrays [N, ...], or padded [B, N, ...] with
            ``_mask`` bool [B, N] and ``_lengths`` int64 [B].
        partner: The row to join with, int64 [B].
        mixed: The rows to join, bool [B].

    Returns:
        These fields; padded fields are [B, 2 N, ...], so that no shape depends on the draws.
    """
    result: Batch = {}
    for name in [name for name in fields if name == "boxes" or name.startswith("box_")]:
        values = fields[name]
        if isinstance(values, list):
            result[name] = [
                joined([own, values[partner[row]]]) if mixed[row] else own
                for row, own in enumerate(values)
            ]
        elif f"{name}_mask" in fields:
            mask, given = np.asarray(fields[f"{name}_mask"]), np.asarray(values)
            there = np.concatenate([mask, mask[partner] & mixed[:, None]], 1)
            order = (~there).argsort(1, kind="stable")
            both = np.concatenate([given, given[partner]], 1)
            places = order.reshape(*order.shape, *[1] * (both.ndim - 2))
            arrays = {
                name: np.take_along_axis(both, places, 1),
                f"{name}_mask": np.take_along_axis(there, order, 1),
                f"{name}_lengths": there.sum(1),
            }
            result |= {field: like(values, array) for field, array in arrays.items()}
    return result


@register("batch_transform", "cutmix")
class CutMix(PairStep):
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

    fields = ("image", "mask")
    refused = ("boxes", "keypoints")

    def __init__(
        self,
        *,
        alpha: Annotated[float, Ge(0.05), Le(1000)] = 1.0,
        p: Annotated[float, Ge(0), Le(1)] = 1.0,
        seed: int,
        split: Literal["train", "val"],
        step: str,
    ) -> None:
        super().__init__(alpha=alpha, p=p, seed=seed, split=split, step=step)

    def draw(self, rows: Rows) -> Draws:
        """Draw pairs, and ``windows``: top, left, height and width, int64 [B, 4], zeros if unmixed.

        Raises:
            ValueError: See `check`.
        """
        if not self._active:
            return {}
        self.check(rows)
        pairs, draws = self.draw_pairs(rows, 4)
        side = (1 - symmetric_beta(draws[0], draws[1], self.alpha)) ** 0.5
        starts, lengths = [], []
        for draw, size in zip(draws[2:], rows.size, strict=True):
            half, centre = side * size // 2, draw * size // 1
            starts.append((centre - half).clip(0, size))
            lengths.append((centre + half).clip(0, size) - starts[-1])
        windows = np.stack([*starts, *lengths], 1).astype(np.int64)
        area = np.float32(rows.size[0] * rows.size[1])
        share = 1 - windows[:, 2:].prod(1).astype(np.float32) / area
        windows[~pairs["mixed"]] = 0
        return {**self.shared(rows, pairs, share), "windows": windows}

    def arrays(self, pixels: NDArray[Any], draws: Draws) -> NDArray[Any]:
        """Copy the partners' rectangles."""
        result = pixels.copy("K")
        for row in draws["rows"].tolist():
            top, left, height, width = draws["windows"][row].tolist()
            place = (slice(top, top + height), slice(left, left + width))
            result[(row, *place)] = pixels[(draws["partner"][row], *place)]
        return result

    def tensors(self, pixels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Choose between both images of a pair, pixel by pixel."""
        within = inside(draws["windows"], *pixels.shape[1:3])
        within = within.reshape(*within.shape, *[1] * (pixels.ndim - 3))
        return pixels.index_select(0, draws["partner"]).where(within, pixels)
