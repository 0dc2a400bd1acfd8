"""Boxes with all that belongs to them: taken from several samples, cut and dropped in step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from datasets.sample import Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from transforms.target_settings import BoxSettings


def rows_of(samples: Sequence[Sample], rows: Sequence[Any] | None = None) -> dict[str, Any]:
    """The ``box_*`` fields of several samples, one after the other.

    Args:
        samples: The first says which fields there are: those as long as its boxes.
        rows: The rows to be taken of each sample; None takes all.

    Raises:
        ValueError: Another sample lacks one of the fields.
    """
    import numpy as np

    first = samples[0]
    count = len(first["boxes"])
    names = [name for name in first if name.startswith("box_") and len(first[name]) == count]
    fields = {}
    for name in names:
        parts = []
        for number, sample in enumerate(samples):
            if name not in sample:
                raise ValueError(
                    f"{sample.get('key')!r} has no field {name!r}, which {first.get('key')!r} "
                    f"has; samples that are put together need the same fields"
                )
            values = np.asarray(sample[name])
            parts.append(values if rows is None else values[rows[number]])
        fields[name] = np.concatenate(parts)
    return fields


def cut_boxes(
    boxes: NDArray[np.floating[Any]], shape: tuple[int, ...], limits: BoxSettings | None
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Cut boxes at the edges of an image.

    Args:
        boxes: [N, 4], xyxy, pixels of the image; they may lie outside.
        shape: Height and width of the image.
        limits: Which are dropped; None: those without any area inside.

    Returns:
        float32 [N, 4], and which of them are left, bool [N].
    """
    import numpy as np

    height, width = shape[:2]
    cut = np.clip(boxes, 0, [width, height, width, height]).astype(np.float32)
    return cut, left_over(cut, areas(boxes), limits)


def boxes_in_pixels(shares: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Boxes as shares of an image's width and height, [N, 4], in pixels of its `shape`."""
    import numpy as np

    height, width = shape[:2]
    pixels: NDArray[np.float32] = np.asarray(shares, np.float32).reshape(-1, 4) * np.array(
        [width, height, width, height], np.float32
    )
    return pixels


def areas(boxes: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Areas of boxes, [N], in square pixels."""
    import numpy as np

    sides = np.asarray(boxes, np.float64).reshape(-1, 4)
    return np.maximum(sides[:, 2] - sides[:, 0], 0) * np.maximum(sides[:, 3] - sides[:, 1], 0)


def left_over(
    boxes: NDArray[np.float32], before: NDArray[np.float64], limits: BoxSettings | None
) -> NDArray[np.bool_]:
    """Which boxes are large enough still, bool [N]; `before`, [N], are their areas before."""
    now = areas(boxes)
    kept: NDArray[np.bool_] = now > 0
    if limits is not None:
        kept &= (now >= limits.min_area) & (now >= limits.min_visibility * before)
        kept &= boxes[:, 2] - boxes[:, 0] >= limits.min_width
        kept &= boxes[:, 3] - boxes[:, 1] >= limits.min_height
    return kept
