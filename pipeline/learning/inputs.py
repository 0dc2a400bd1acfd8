"""Describe the fields of a batch as a model gets them."""

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
