"""Collate ragged arrays into one tensor, padded to a common length."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from annotated_types import Ge

from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.pipeline.collating import FieldCollate, count_padding, from_arrays, padded


@register("collate", "pad")
class PaddedCollate(FieldCollate):
    """Pad arrays of differing lengths to the longest of the batch, or somewhat more.

    Each padded field gets ``<field>_lengths``, int64 [B] (or [B, n] for n ragged axes), and
    ``<field>_mask``, bool, True for data. Other arrays are stacked.

    Args:
        fields: Number of leading ragged axes, by field: ``{tokens: 1, image: 2}``. None: one axis
            of every array but ``image`` and ``mask``, which are stacked.
        value: Fill value: one number, or a number by field.
        multiple_of: Round lengths up to a multiple of this.
        buckets: Round lengths up to one of these instead, so that few shapes occur.
    """

    overhead = staticmethod(count_padding)

    def __init__(
        self,
        *,
        fields: Mapping[str, int] | None = None,
        value: float | Mapping[str, float] = 0,
        multiple_of: Annotated[int, Ge(1)] = 1,
        buckets: Sequence[Annotated[int, Ge(1)]] | None = None,
    ) -> None:
        if buckets is not None and multiple_of > 1:
            raise ValueError("collate/pad: both multiple_of and buckets are given; keep one")
        self.fields, self.value, self.multiple_of = fields, value, multiple_of
        self.needed = fields or ()
        self.buckets = None if buckets is None else sorted(buckets)

    def collated(self, field: str, values: list[Any], keys: list[str]) -> Batch:
        axes = 0 if field in ("image", "mask") else 1
        if self.fields is not None:
            axes = self.fields.get(field, 0)
        if not axes:
            remedy = (
                f"an augmentation step such as a resize, or pad two axes: "
                f"collate.fields={{{field}:2}}"
            )
            return {field: from_arrays(field, values, keys, remedy=remedy)}
        fill = self.value.get(field, 0) if isinstance(self.value, Mapping) else self.value
        return padded(
            "collate/pad", field, values, keys, axes=axes, fill=fill, remedy="see collate.fields",
            size_of=lambda longest: self._round(field, longest),
        )  # fmt: skip

    def _round(self, field: str, length: int) -> int:
        if self.buckets is None:
            return -(-length // self.multiple_of) * self.multiple_of
        place = bisect_left(self.buckets, length)
        if place == len(self.buckets):
            raise ValueError(
                f"collate/pad: {field!r} has length {length}, the largest bucket is "
                f"{max(self.buckets, default=0)}; add a larger one to collate.buckets"
            )
        return self.buckets[place]
