"""Samples as the model gets them: a batch, changed by the device's steps, taken apart again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets.sample import BadSample, Batch, Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from datasets.protocols import BatchTransform

_LENGTHS, _MASK = "_lengths", "_mask"
_OF_LOADER = ("epoch", "valid", "num_valid")
_LEVELS = (0, 128, 255)


class DeviceSteps:
    """Collates samples, applies the device's steps on the CPU and takes the batch apart.

    Args:
        collate: The configured one.
        transforms: The steps.
        group: Positions that a step looks at together.

    Attributes:
        notes: What could not be done, and why.
    """

    def __init__(
        self,
        collate: Callable[[list[Sample]], Batch],
        transforms: Sequence[BatchTransform],
        *,
        group: int = 1,
    ) -> None:
        self._collate = collate
        self._transforms = tuple(transforms)
        self._group = group
        self.notes: list[str] = []

    def __call__(self, samples: Sequence[Any], epoch: int) -> list[Any]:
        """Change samples of one epoch.

        Args:
            samples: Samples and bad ones of whole groups, in the order of their positions.
            epoch: Their epoch.

        Returns:
            Rows of the batch in place of the samples, images uint8 [H, W, C]. The samples as
            they were where they make no batch, and so is a group with a bad sample.
        """
        shown = list(samples)
        rows: list[int] = []
        for start in range(0, len(shown), self._group):
            block = range(start, min(start + self._group, len(shown)))
            if not any(isinstance(shown[row], BadSample) for row in block):
                rows += block
        if not rows:
            return shown
        try:
            batch, untouched = self._batch([shown[row] for row in rows], epoch)
        except ValueError as error:
            note = f"shown before the device's steps: {' '.join(str(error).split())}"
            if note not in self.notes:
                self.notes.append(note)
            return shown
        for row, sample in zip(rows, rows_of(batch, len(rows)), strict=True):
            own = shown[row]
            kept = {name: own[name] for name in ("key", "index", "position")}
            # Joined or nested fields have no row of their own; as they were where no step has
            # touched them.
            whole = {name: own[name] for name in untouched if name in own and name not in sample}
            merged = {**sample, **whole, **kept}
            order = [*(name for name in own if name in merged), *merged]  # as in the original
            shown[row] = {name: merged[name] for name in order}
        return shown

    def _batch(self, samples: list[Sample], epoch: int) -> tuple[Batch, list[str]]:
        """The batch after all steps, and its fields that are as the collate made them."""
        import torch

        batch = self._collate(samples)
        collated = dict(batch)
        batch["epoch"] = torch.full((len(samples),), epoch)
        batch["valid"] = torch.ones(len(samples), dtype=torch.bool)
        if "position" not in batch:
            batch["position"] = torch.tensor([sample["position"] for sample in samples])
        levels: NDArray[np.float64] | None = None
        for transform in self._transforms:
            before = batch
            batch = transform(batch)
            if _is_float(batch) and (not _is_float(before) or _normalizes(transform)):
                levels = _levels(transform, before, levels)
        untouched = [name for name, value in batch.items() if value is collated.get(name)]
        if _is_float(batch):
            batch = {**batch, "image": _as_bytes(batch["image"], levels)}
        return batch, untouched


def _is_float(batch: Batch) -> bool:
    image: Any = batch.get("image")
    image = image[0] if isinstance(image, list) and image else image
    return hasattr(image, "is_floating_point") and image.is_floating_point()


def _normalizes(transform: Any) -> bool:
    return type(transform).__name__.lower().startswith("normal")


def _levels(
    transform: BatchTransform, batch: Batch, levels: NDArray[np.float64] | None
) -> NDArray[np.float64] | None:
    """What black and white become by a step, float64 [2, C]; None where that is no straight line.

    The step is asked, whatever it is: it gets images of one level each.
    """
    import torch

    def asked(level: int) -> NDArray[np.float64] | None:
        def flat(image: torch.Tensor) -> torch.Tensor:
            if levels is None:
                return torch.full_like(image, level)
            value = torch.as_tensor(levels[0] + (levels[1] - levels[0]) * level / 255)
            return torch.zeros_like(image) + value.to(image.dtype)[:, None, None]

        image = batch["image"]
        probe = [flat(one) for one in image] if isinstance(image, list) else flat(image)
        found = transform({**batch, "image": probe})["image"]
        first = found[0].double()
        if first.ndim != 3 or float((first.amax((1, 2)) - first.amin((1, 2))).max()) > 1e-4:
            return None
        return first.mean((1, 2)).numpy()

    black, grey, white = (asked(level) for level in _LEVELS)
    if black is None or grey is None or white is None:
        return None
    line = black + (white - black) * _LEVELS[1] / _LEVELS[2]
    if not np.allclose(grey, line, atol=1e-3) or np.any(white == black):
        return None
    return np.stack([black, white])


def _as_bytes(image: Any, levels: NDArray[np.float64] | None) -> Any:
    """Float images [C, H, W] as uint8 [H, W, C]; without levels as they are."""
    import torch

    if levels is None:
        return image
    if isinstance(image, list):
        return [_as_bytes(one, levels) for one in image]
    image = image.movedim(-3, -1)
    black, white = (torch.as_tensor(level) for level in levels)
    return ((image.double() - black) / (white - black) * 255).round().clamp(0, 255).to(torch.uint8)


def rows_of(batch: Batch, count: int) -> list[Sample]:
    """Samples of a batch: each field's row, as NumPy, without padding.

    Args:
        batch: Tensors [B, ...] and lists of B; anything else is left out.
        count: B.
    """
    return [
        {
            name: _row(batch, name, number)
            for name, value in batch.items()
            if name not in _OF_LOADER
            and not _is_about_padding(batch, name)
            and hasattr(value, "__len__")
            and getattr(value, "ndim", 1) > 0
            and len(value) == count
            and not isinstance(value, (str, dict))
        }
        for number in range(count)
    ]


def _is_about_padding(batch: Batch, name: str) -> bool:
    field = name.removesuffix(_LENGTHS).removesuffix(_MASK)
    return field != name and field in batch


def _row(batch: Batch, name: str, number: int) -> Any:
    value = batch[name][number]
    if not hasattr(value, "detach"):
        return value
    row = value.detach().cpu().numpy()
    mask: Any = batch.get(f"{'boxes' if name.startswith('box_') else name}{_MASK}")
    if hasattr(mask, "ndim") and 1 < mask.ndim <= row.ndim + 1 and not mask.is_floating_point():
        kept = mask[number].detach().cpu().numpy().astype(bool)
        if kept.shape == row.shape[: kept.ndim] and kept.any():
            # Padding stands at the ends: what is left is a block.
            row = row[tuple(slice(0, int(places.max()) + 1) for places in np.nonzero(kept))]
        elif not kept.any():
            row = row[:0]
    return row.item() if row.ndim == 0 else row
