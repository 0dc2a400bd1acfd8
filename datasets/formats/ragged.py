"""Values of differing lengths in one array: all of them end to end, and where each begins."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.shard_rows import DamagedShard

OFFSETS, SHAPES = "offsets", "shapes"
"""What the arrays beside the values are called: ``image.offsets`` and ``image.shapes``."""
KINDS = ("array", "bytes", "text", "json")


class Ragged:
    """Values of a field, by row.

    Args:
        values: All of them end to end, [total]; uint8 for anything but arrays.
        offsets: Where each begins and the last ends, integer [n + 1].
        shapes: The shape of each, integer [n, axes]; None: one axis.
        kind: ``array``; or ``bytes``, ``text`` (UTF-8) or ``json``.
    """

    def __init__(
        self, values: NDArray[Any], offsets: NDArray[Any], shapes: NDArray[Any] | None, kind: str
    ) -> None:
        wrong = values.ndim != 1 or offsets.ndim != 1 or offsets.dtype.kind not in "iu"
        if shapes is not None:
            wrong |= shapes.ndim != 2 or len(shapes) != len(offsets) - 1
            wrong |= shapes.dtype.kind not in "iu"
        if wrong or kind not in KINDS or (kind != "array" and values.dtype != np.uint8):
            raise DamagedShard(
                f"{kind} values {values.dtype} {list(values.shape)} with offsets {offsets.dtype} "
                f"{list(offsets.shape)} do not fit together"
            )
        self.values = values
        self.offsets = offsets
        self.shapes = shapes
        self.kind = kind

    def __getitem__(self, row: int) -> Any:
        """One value; arrays are views.

        Raises:
            DamagedShard: Its place or its shape is none.
        """
        start, stop = int(self.offsets[row]), int(self.offsets[row + 1])
        if not 0 <= start <= stop <= len(self.values):
            raise DamagedShard(f"row {row} lies outside the {len(self.values):,} values there are")
        value = self.values[start:stop]
        if self.kind == "bytes":
            return value.tobytes()
        if self.kind in ("text", "json"):
            try:
                text = value.tobytes().decode("utf-8", "surrogateescape")
                return text if self.kind == "text" else json.loads(text)
            except (ValueError, RecursionError) as error:
                raise DamagedShard(f"row {row} is no {self.kind} ({error})") from error
        if self.shapes is None:
            return value
        shape = self.shapes[row].tolist()
        if min(shape, default=0) < 0 or math.prod(shape) != len(value):
            raise DamagedShard(f"row {row} has {len(value):,} numbers, which are no {shape}")
        return value.reshape(shape)
