"""Take a batch apart into samples that can be drawn, and draw it as the model gets it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from penstock.core.contracts import BatchTransform
from penstock.core.sample import Batch, Sample
from penstock.datasets.mix import SOURCE
from penstock.pipeline.learning.inputs import describe_inputs
from penstock.pipeline.loader.contract import mapped
from penstock.pipeline.pictures.fields import Classes
from penstock.pipeline.pictures.page import Picture, draw_sheet
from penstock.pipeline.pictures.picture import PointNames, Row, draw_cell

_LENGTHS, _MASK = "_lengths", "_mask"
_OF_LOADER = ("epoch", "valid", "num_valid")
_FIELDS = ("label", "labels", "values", "box_labels", "mask", SOURCE)
_DRAWN, _SIZE = 8, 256


def draw_batch(
    batch: Batch,
    transforms: Sequence[BatchTransform],
    classes: Mapping[str, Classes],
    points: PointNames,
) -> Picture:
    """Draw the first rows of a batch as the model gets it.

    Args:
        batch: On any device, with ``valid``.
        transforms: The steps of the device that it went through.
        classes: Names by field.
        points: Names of keypoints.
    """
    batch = mapped(
        batch, lambda value: value.detach().cpu() if isinstance(value, torch.Tensor) else value
    )
    ends = ends_of(batch, transforms)
    samples = rows_of(batch, len(batch["valid"]))[:_DRAWN]
    rows = []
    for number, sample in enumerate(samples):
        if ends is not None:
            sample["image"] = as_bytes(torch.as_tensor(sample["image"]), *ends).numpy()
        cell = draw_cell(sample, "", size=_SIZE, classes=classes, points=points)
        rows.append(Row(str(sample.get("key", f"row {number}")), (cell,)))
    return draw_sheet("the first batch", [f"the model gets {describe_inputs(batch)}"], rows, {})


def names_in(
    config: Mapping[str, Any], classes_of: Callable[[str], tuple[str, ...] | None]
) -> tuple[dict[str, Classes], PointNames]:
    """Gather the names of what is drawn over images: classes by field, and keypoints.

    Args:
        config: The config.
        classes_of: Names of the classes of a field.
    """
    classes = {name: Classes(classes_of(name)) for name in _FIELDS}
    ignored = frozenset(config["task"].get("ignore") or ())
    classes["mask"] = Classes(classes["mask"].names, ignored)
    per_object = (config["augment"].get("keypoints") or {}).get("per_object")
    return classes, PointNames(classes_of("keypoints"), per_object)


def ends_of(
    batch: Batch, transforms: Sequence[BatchTransform]
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Find what the steps make of black and white, each [C]; None where that cannot be told."""
    image: Any = batch.get("image")
    if not is_float(batch) or isinstance(image, list) or image.ndim != 4:
        return None
    one = {name: value[:1] for name, value in batch.items() if isinstance(value, torch.Tensor)}
    pixels = image[:1].movedim(1, -1)
    ends = [torch.full(pixels.shape, level, dtype=torch.uint8) for level in (0, 255)]
    try:
        with torch.random.fork_rng(devices=[]):
            for transform in transforms:
                after = [transform({**one, "image": end})["image"] for end in ends]
                becomes_float = after[0].is_floating_point() > ends[0].is_floating_point()
                if becomes_float or type(transform).__name__.lower().startswith("normal"):
                    ends = after
    except Exception:  # a step of the user's may want fields that one row has not
        return None
    if not ends[0].is_floating_point():  # they came as floats
        return None
    black, white = map(level_of, ends)
    if black is None or white is None or bool((black == white).any()):
        return None
    return (black, white) if len(black) == len(white) == image.shape[1] else None


def is_float(batch: Batch) -> bool:
    """Tell whether the images of a batch are floats."""
    image: Any = batch.get("image")
    image = image[0] if isinstance(image, list) and image else image
    return isinstance(image, torch.Tensor) and image.is_floating_point()


def filled(image: Any, level: int) -> Any:
    """Fill images with one level."""
    if isinstance(image, list):
        return [torch.full_like(one, level) for one in image]
    return torch.full_like(image, level)


def level_of(image: Any) -> torch.Tensor | None:
    """Read the level of each channel, float64 [C], of images that have one level each."""
    first = image[0].double()
    if first.ndim != 3 or float((first.amax((1, 2)) - first.amin((1, 2))).max()) > 1e-4:
        return None
    return first.mean((1, 2))


def as_bytes(image: Any, black: torch.Tensor | None, white: torch.Tensor | None) -> Any:
    """Float images [C, H, W] as uint8 [H, W, C]; as they are where black or white is unknown."""
    if black is None or white is None or bool((black == white).any()):
        return image
    if isinstance(image, list):
        return [as_bytes(one, black, white) for one in image]
    shares = (image.movedim(-3, -1).double() - black) / (white - black)
    return (shares * 255).round().clamp(0, 255).to(torch.uint8)


def rows_of(batch: Batch, count: int) -> list[Sample]:
    """Samples of a batch: each field's row, as NumPy, without padding.

    Args:
        batch: Tensors [B, ...] and lists of B; anything else is left out.
        count: B.
    """
    names = [
        name
        for name, value in batch.items()
        if name not in _OF_LOADER
        and name.removesuffix(_LENGTHS).removesuffix(_MASK) not in batch.keys() - {name}
        and _length(value) == count
    ]
    return [{name: _row(batch, name, number) for name in names} for number in range(count)]


def _length(value: Any) -> int | None:
    """Rows of a field; None where it has none."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return len(value) if value.ndim else None
    return len(value) if isinstance(value, Sequence) and not isinstance(value, str) else None


def _row(batch: Batch, name: str, number: int) -> Any:
    value = batch[name][number]
    if not isinstance(value, torch.Tensor):
        return value
    row = value.detach().cpu().numpy()
    mask = batch.get(f"{'boxes' if name.startswith('box_') else name}{_MASK}")
    if (
        isinstance(mask, torch.Tensor)
        and 1 < mask.ndim <= row.ndim + 1
        and not mask.is_floating_point()
    ):
        kept = mask[number].detach().cpu().numpy().astype(bool)
        if kept.shape == row.shape[: kept.ndim] and kept.any():
            # Padding stands at the ends: what is left is a block.
            row = row[tuple(slice(0, int(places.max()) + 1) for places in np.nonzero(kept))]
        elif not kept.any():
            row = row[:0]
    return row.item() if row.ndim == 0 else row
