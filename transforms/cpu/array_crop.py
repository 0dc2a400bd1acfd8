"""Crop arrays that are no images: volumes, spectra, waveforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.sample import Sample


@register("transform", "array_crop")
class ArrayCrop:
    """A part of each array, at a place that is drawn, the same for all fields of a sample.

    The part is a view: of a mapped file, no more is read than it.

    Args:
        size: Length of each axis; null keeps an axis whole. Later axes are kept too.
        fields: The fields that are cropped; their first axes are equal in length.
        place: ``random``, or ``centre`` for evaluation.
        fill: What is put around arrays that are shorter, as much before as after; null: such an
            array is an error.
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
        """Crop the fields of a sample.

        Args:
            sample: The sample; its arrays are left as they are.
            rng: Where the place comes from: a draw for each axis that is cropped.

        Raises:
            ValueError: A field is not there, has fewer axes, or is too short.
        """
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
        """A field's array, filled up to the size where it is shorter."""
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
