"""Exchange a rectangle, and a share of the labels, between pairs of images, on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from penstock.core.contracts import BatchTransformCapabilities
from penstock.core.registry import register
from penstock.core.rng import batch_key
from penstock.core.sample import Batch
from penstock.transforms.device.rows.draws import row_by_row, symmetric_beta
from penstock.transforms.device.rows.pairs import Pairs, check_mixable, drawn_pairs, mixed_labels
from penstock.transforms.device.rows.windows import Windows

if TYPE_CHECKING:
    import torch

_REFUSED = ("boxes", "keypoints")


@register("batch_transform", "cutmix")
class CutMix:
    """In training, positions 2k and 2k + 1 exchange a rectangle, and a share of their labels.

    The rectangle has the shape of the image and a share 1 - w of its area, w from
    Beta(alpha, alpha); its centre is anywhere in the image, and what lies outside is cut off.
    A mask is exchanged with its image. A row whose neighbour is missing or invalid stays as it
    is, and so does a pair that an earlier step has mixed. Ranks are never cut between two of a
    pair, so the result follows from seed, epoch, position and the name of the step alone.
    `loader.batch_size` must be even.

    Source: Yun et al., "CutMix: Regularization Strategy to Train Strong Classifiers with
    Localizable Features", ICCV 2019.

    Args:
        alpha: 1: every share is as likely.
        p: Probability that a pair is mixed at all.
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
        """Exchange rectangles between pairs of rows.

        Args:
            batch: With ``image`` uint8 [B, H, W, C] or float [B, C, H, W], ``label`` int64 [B],
                perhaps ``mask`` [B, H, W]; ``epoch`` and ``position`` int64 [B].

        Returns:
            The batch with new images, ``label_other`` int64 [B], the neighbour's class, and
            ``label_weight`` float32 [B], the share of the area that is left to ``label``, 1
            where nothing is mixed. In evaluation the batch as it was.

        Raises:
            ValueError: The images are of several sizes, or the batch holds boxes or keypoints,
                or no labels.
        """
        if not self._active:
            return batch
        check_mixable(batch, self._step, refused=_REFUSED)
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
    """Rows of [B, H, W, ...], or [B, C, H, W] for `planes`, with their partners' rectangles."""
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
