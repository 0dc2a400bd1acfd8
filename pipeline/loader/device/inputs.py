"""Describe what a model gets: the fields of a batch, and the sizes of its images."""

from __future__ import annotations

import torch

from penstock.core.sample import Batch

_NOT_INPUTS = ("label", "box", "keypoints", "mask", "index", "position", "epoch", "valid",
               "num_valid", "source")  # fmt: skip


def describe_inputs(batch: Batch) -> str:
    """Describe the first fields of a batch: type, order, shape, and range of values."""
    told = []
    for name, value in batch.items():
        first = value[0] if isinstance(value, list) and value else value
        if name.startswith(_NOT_INPUTS) or not isinstance(first, torch.Tensor):
            continue
        rows = first[None] if isinstance(value, list) else first
        if not rows.numel():
            continue
        kind, shape = str(rows.dtype).removeprefix("torch."), ["B", *map(str, rows.shape[1:])]
        order = ""
        if name == "image" and rows.ndim == 4:
            order = ", channels last" if rows.shape[-1] in (1, 3, 4) else ", channels first"
        low, high = rows.min().item(), rows.max().item()
        told.append(f"{name} {kind} [{', '.join(shape)}]{order}, {low:.3g} to {high:.3g}")
    return "; ".join(told[:4]) or "nothing but labels"


def sizes_of(batch: Batch) -> set[tuple[int, int]]:
    """Return the heights and widths of the images of a batch; none if they are padded."""
    images = batch.get("image")
    if isinstance(images, torch.Tensor):
        images = [] if images.is_nested or images.ndim < 4 else [*images[:1]]
    if not isinstance(images, list) or "image_lengths" in batch:
        return set()
    sizes = set()
    for image in images:
        if isinstance(image, torch.Tensor) and image.ndim > 2:
            last = image.shape[-1] in (1, 3, 4)
            high, wide = image.shape[-3:-1] if last else image.shape[-2:]
            sizes.add((high, wide))
    return sizes
