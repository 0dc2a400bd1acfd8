"""A small encoder-decoder for masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.registry import register

if TYPE_CHECKING:
    from pipeline.networks.segmenter import Segmenter


@register("model", "segmenter")
def segmenter(*, num_classes: int | None, width: int = 16) -> Segmenter:
    """A small encoder-decoder that gives every pixel of an image of any size a class.

    Args:
        num_classes: Classes of the data's masks.
        width: Channels at full size; coarser levels have up to 8 times as many.

    Raises:
        ValueError: The data does not say its classes.
    """
    from pipeline.networks.segmenter import Segmenter

    if not num_classes:
        raise ValueError(
            "model segmenter: how many classes the masks have is not known; set "
            "dataset.annotations.classes to their names, or their number"
        )
    return Segmenter(num_classes=num_classes, width=width)
