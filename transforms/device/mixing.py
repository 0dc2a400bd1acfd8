"""Mix pairs of a batch's images and labels on the device: mixup and CutMix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.transforms.amounts import Share
from penstock.transforms.device.draws import inside, symmetric_beta, uniforms
from penstock.transforms.device.steps import Draws, PixelStep, Rows, is_float, rows_at_once

if TYPE_CHECKING:
    import torch

_BLENDED = ("labels", "values")  # a number for each name


@dataclass(kw_only=True, eq=False)
class PairStep(PixelStep):
    """A step that mixes positions 2k and 2k + 1 of an epoch, and a share of their labels.

    A row without a valid neighbour stays as it is, and so does a pair that an earlier step has
    mixed. `loader.batch_size` must be even.

    Draws: ``partner``, the row to mix with or the row itself, int64 [B]; ``mixed``, bool [B];
    ``share`` of the row itself, float32 [B]; ``rows`` that are mixed, int64 [k].

    Args:
        alpha: At 1 every share is equally likely; smaller values leave most images almost unmixed.
        p: Probability that a pair is mixed.
    """

    alpha: Annotated[float, Ge(0.05), Le(1000)] = 1.0
    p: Share = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.group = 2 if self.split == "train" else 1

    def pairs(self, rows: Rows, count: int) -> tuple[Draws, NDArray[np.float32]]:
        """Pair rows that are valid and not mixed; also return uniforms for pairs, [count, B]."""
        fields = rows.fields
        self.check(rows)
        positions, epochs = np.asarray(fields["position"]), np.asarray(fields["epoch"])
        draws = uniforms({**fields, "position": positions & -2}, self.key, count + 1)
        own = np.arange(len(positions))
        other = (own + 1 - 2 * (positions & 1)).clip(0, len(positions) - 1)
        paired = (positions[other] == positions ^ 1) & (epochs[other] == epochs)
        if "valid" in fields:
            valid = np.asarray(fields["valid"])
            paired &= valid & valid[other]
        if rows.mixed is None:
            rows.mixed = np.asarray(fields.get("label_weight", np.ones(len(own)))) != 1
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
        """Raise ValueError unless a batch has ``label`` int64 [B], or ``labels`` or ``values``."""
        super().check(rows)
        label = rows.fields.get("label")
        if label is None and any(field in rows.fields for field in _BLENDED):
            return
        if label is None or isinstance(label, list) or label.ndim != 1 or is_float(label):
            raise ValueError(
                f"augment.device.{self.step}: expected a label for each image, int64 [B], fields: "
                f"{', '.join(rows.fields)}; set augment.device.{self.step}=null"
            )

    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """Mix pixels, ``labels`` and ``values``; add ``label_other`` and ``label_weight``, [B]."""
        result = super().apply(batch, draws)
        if not draws:
            return result
        partner, mixed, share = (draws[name] for name in ("partner", "mixed", "share"))
        where: Any = np.where
        if not isinstance(batch["image"], np.ndarray):
            import torch

            where = torch.where
            partner, mixed, share = map(torch.as_tensor, (partner, mixed, share))
        if "label" in batch:
            label = batch["label"]
            result["label_other"] = where(mixed, label[partner], batch.get("label_other", label))
        for field in _BLENDED:
            if field in batch:
                one, own = batch[field], share[:, None]
                both = own * one + (1 - own) * one[partner]
                result[field] = where(mixed[:, None], both, one)
        result["label_weight"] = where(mixed, share, batch.get("label_weight", share * 0 + 1))
        return result


@register("batch_transform", "mixup")
@dataclass(kw_only=True, eq=False)
class Mixup(PairStep):
    """Blend positions 2k and 2k + 1 of an epoch, images and labels, in training.

    A row's share w is drawn from Beta(alpha, alpha); its neighbour gets 1 - w. See `PairStep`.
    Source: Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018.
    """

    refused = ("mask", "boxes", "keypoints")

    alpha: Annotated[float, Ge(0.05), Le(1000)] = 0.2

    def choose(self, rows: Rows) -> Draws:
        """Draw pairs and shares."""
        pairs, draws = self.pairs(rows, 2)
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


@register("batch_transform", "cutmix")
@dataclass(kw_only=True, eq=False)
class CutMix(PairStep):
    """Exchange a rectangle of positions 2k and 2k + 1, and a share of their labels, in training.

    The rectangle has the shape of the image and a share 1 - w of its area, with w from
    Beta(alpha, alpha). Its centre is anywhere in the image, which cuts it at the edges. Masks are
    exchanged with their images. For pairs, see `PairStep`. Source: Yun et al., "CutMix:
    Regularization Strategy to Train Strong Classifiers with Localizable Features", ICCV 2019.
    """

    fields = ("image", "mask")
    refused = ("boxes", "keypoints")

    def choose(self, rows: Rows) -> Draws:
        """Draw pairs and ``windows``: top, left, height, width, int64 [B, 4], zeros if unmixed."""
        pairs, draws = self.pairs(rows, 4)
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
