"""Settings of what augmentation does with boxes and keypoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from pipeline.registry import register


@register("settings", "boxes")
@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSettings:
    """Which boxes an augmentation stack drops; each limit is applied after every step.

    Boxes are cut at the edges of the image, and those that leave it are always dropped; the rows
    of every ``box_*`` field go with them.

    Attributes:
        min_area: Least area, in square pixels of the image as it then is.
        min_visibility: Least share of a box's area that a step may leave in the image, 0 .. 1.
        min_width: Least width in pixels.
        min_height: Least height in pixels.
    """

    min_area: Annotated[float, Ge(0)] = 0.0
    min_visibility: Annotated[float, Ge(0), Le(1)] = 0.0
    min_width: Annotated[float, Ge(0)] = 0.0
    min_height: Annotated[float, Ge(0)] = 0.0


@register("settings", "keypoints")
@dataclass(frozen=True, slots=True, kw_only=True)
class KeypointSettings:
    """What a mirrored image means for its keypoints.

    Attributes:
        swaps: Pairs of keypoints that change places when the image is mirrored, by their
            numbers, such as ``[[1, 2], [3, 4]]`` for left and right eye, left and right ear.
        per_object: How many keypoints an object has, where an image has those of several one
            after the other; null: all are of one object.
    """

    swaps: list[list[int]] | None = None
    per_object: Annotated[int, Ge(1)] | None = None

    def __post_init__(self) -> None:
        """Refuse pairs that are none."""
        numbers = [number for pair in self.swaps or () for number in pair]
        for pair in self.swaps or ():
            if len(pair) != 2 or pair[0] == pair[1] or min(pair) < 0:
                raise ValueError(
                    f"augment.keypoints.swaps: {pair} is no pair of two keypoints' numbers, from "
                    f"0 on; give pairs such as [1, 2]"
                )
        if len(set(numbers)) < len(numbers):
            raise ValueError("augment.keypoints.swaps: a keypoint is in two pairs; keep one")
        if self.per_object is not None and numbers and max(numbers) >= self.per_object:
            raise ValueError(
                f"augment.keypoints.swaps: keypoint {max(numbers)} of objects with "
                f"{self.per_object}; numbers begin at 0"
            )
