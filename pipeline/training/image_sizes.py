"""Compare the sizes of the images that a model gets in training and in evaluation."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.transforms.cpu.stack import ordered_steps

_log = logging.getLogger(__name__)

Size = tuple[int, int]
"""Height and width of an image."""


def warn_of_sizes(trained: Size | None, evaluated: Size | None, steps: Mapping[str, Any]) -> None:
    """Log a warning if evaluation has images of another size than training.

    Args:
        trained: The size in training; None if unknown, or if it varies.
        evaluated: The size in evaluation; None if unknown, or if it varies.
        steps: The config's ``augment.eval``.
    """
    if trained is None or evaluated is None or tuple(trained) == tuple(evaluated):
        return
    _log.warning(
        "the model is trained on images of %d x %d (height x width) and evaluated on images of "
        "%d x %d; to evaluate at the size of training, %s",
        *trained,
        *evaluated,
        _remedy(trained, steps),
    )


def _remedy(size: Size, steps: Mapping[str, Any]) -> str:
    """Name the keys of the last step that sets an image size."""
    high, wide = size
    for name, step in reversed(ordered_steps(steps).items()):
        key = f"augment.eval.{name}"
        if {"height", "width"} <= step.keys():
            return f"type {key}.height={high} {key}.width={wide}"
        if isinstance(sides := step.get("size"), Sequence) and len(sides) == 2:
            return f"type '{key}.size=[{high},{wide}]'"
    return "give augment.eval a step that resizes to it"
