"""Crop volumes, spectra, waveforms and other arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.sample import Sample


@register("transform", "array_crop")
class ArrayCrop:
    """Crop arrays at a random place, the same for all fields of a sample.

    The result is a view, so a mapped file is read only where it is cropped.

    Args:
        size: Length of each axis; null keeps an axis whole. Axes after these stay whole.
        fields: The fields to crop; their first axes must be equally long.
        place: ``random``, or ``centre`` for evaluation.
        fill: Value that pads shorter arrays on both sides; null raises an error for them.
    """

    def __init__(
        self,
        *,
        size: Sequence[int | None],
        fields: Sequence[str] = ("array",),
        place: Literal["random", "centre"] = "random",
        fill: float | None = None,
    ) -> None:
        if any(length is not None and length < 1 for length in size):
            raise ValueError(f"transform/array_crop: size {list(size)}, expected lengths above 0")
        self.size = tuple(size)
        self.fields = tuple(fields)
        self.place = place
        self.fill = fill

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Crop the fields of a sample; raise ValueError if one is missing or too short."""
        arrays = {field: self._whole(sample, field) for field in self.fields}
        shapes = {array.shape[: len(self.size)] for array in arrays.values()}
        if len(shapes) > 1:
            raise ValueError(
                f"transform/array_crop: {', '.join(arrays)} have the shapes "
                f"{sorted(map(list, shapes))} and cannot be cropped alike"
            )
        [shape] = shapes
        part = tuple(self._slice(*lengths, rng) for lengths in zip(self.size, shape, strict=True))
        return {**sample, **{field: array[part] for field, array in arrays.items()}}

    def _slice(self, length: int | None, whole: int, rng: np.random.Generator) -> slice:
        if length is None:
            return slice(None)
        room = whole - length
        start = int(rng.integers(room + 1)) if self.place == "random" else room // 2
        return slice(start, start + length)

    def _whole(self, sample: Sample, field: str) -> NDArray[Any]:
        """Return a field's array, padded to the size if it is shorter."""
        array = sample.get(field)
        if not isinstance(array, np.ndarray) or array.ndim < len(self.size):
            given = "nothing" if array is None else f"{np.ndim(array)} axes"
            raise ValueError(
                f"transform/array_crop: {field!r} has {given}, expected an array of "
                f"{len(self.size)} axes or more; set fields or size"
            )
        short = [
            max((length or 0) - whole, 0)
            for length, whole in zip(self.size, array.shape, strict=False)
        ]
        if not any(short):
            return array
        if self.fill is None:
            raise ValueError(
                f"transform/array_crop: {field!r} is {list(array.shape)}, shorter than "
                f"{list(self.size)}; use a smaller size, or set fill=0"
            )
        around = [(missing // 2, missing - missing // 2) for missing in short]
        around += [(0, 0)] * (array.ndim - len(short))
        return np.pad(array, around, constant_values=self.fill)
