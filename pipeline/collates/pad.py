"""Collate ragged arrays into one tensor, padded to a common length."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.contracts import CollateCapabilities
from penstock.core.registry import register
from penstock.core.sample import Batch, Sample
from penstock.pipeline.collating import (
    batch_keys,
    count_padding,
    from_arrays,
    from_values,
    is_array,
    padded,
    to_columns,
)


@register("collate", "pad")
class PaddedCollate:
    """Pad arrays of differing lengths to the longest of the batch, or somewhat more.

    Each padded field gets ``<field>_lengths``, int64 [B] (or [B, n] for n ragged axes), and
    ``<field>_mask``, bool, True for data.

    Args:
        fields: Number of leading ragged axes, by field: ``{tokens: 1, image: 2}``. None: one axis
            of every array but ``image`` and ``mask``, which are stacked.
        value: Fill value: one number, or a number by field.
        multiple_of: Round lengths up to a multiple of this.
        buckets: Round lengths up to one of these instead, so that few shapes occur.
    """

    def __init__(
        self,
        *,
        fields: Mapping[str, int] | None = None,
        value: float | Mapping[str, float] = 0,
        multiple_of: int = 1,
        buckets: Sequence[int] | None = None,
    ) -> None:
        if multiple_of < 1:
            raise ValueError(f"collate/pad: multiple_of is {multiple_of}, expected 1 or more")
        if buckets is not None and multiple_of > 1:
            raise ValueError("collate/pad: both multiple_of and buckets are given; keep one")
        if buckets is not None and (not buckets or min(buckets) < 1):
            raise ValueError(f"collate/pad: buckets are {list(buckets)}, expected lengths above 0")
        self.fields = None if fields is None else dict(fields)
        self.value = value
        self.multiple_of = multiple_of
        self.buckets = None if buckets is None else sorted(buckets)

    @property
    def capabilities(self) -> CollateCapabilities:
        """Return the padding counter."""
        return CollateCapabilities(overhead=count_padding)

    def __call__(self, samples: list[Sample]) -> Batch:
        """Collate samples with the same fields.

        Padded fields become tensors [B, length, ...] with lengths and masks, other arrays tensors
        [B, ...], numbers bool, int64 or float32 [B], and the rest lists of B. Raise ValueError if
        fixed axes or fields differ, or a length exceeds the last bucket.
        """
        columns = to_columns(samples)
        keys = batch_keys(columns, len(samples))
        for field in self.fields or {}:
            if field not in columns:
                raise ValueError(
                    f"collate/pad: no field {field!r} to pad; fields: {', '.join(columns)}"
                )
        batch: Batch = {}
        for field, values in columns.items():
            if not all(is_array(value) for value in values):
                batch[field] = from_values(values)
            elif axes := self._ragged_axes(field):
                batch |= self._pad(field, values, keys, axes)
            else:
                remedy = (
                    f"an augmentation step such as a resize, or say that they are ragged: "
                    f"collate.fields={{{field}:2}} for two axes"
                )
                batch[field] = from_arrays(field, values, keys, remedy=remedy)
        return batch

    def _ragged_axes(self, field: str) -> int:
        if self.fields is not None:
            return self.fields.get(field, 0)
        return 0 if field in ("image", "mask") else 1

    def _pad(self, field: str, values: list[Any], keys: list[str], axes: int) -> Batch:
        fill = self.value.get(field, 0) if isinstance(self.value, Mapping) else self.value
        return padded(
            "collate/pad",
            field,
            values,
            keys,
            axes=axes,
            size_of=lambda longest: self._round(field, longest),
            fill=fill,
            remedy="see collate.fields",
        )

    def _round(self, field: str, length: int) -> int:
        if self.buckets is None:
            return math.ceil(length / self.multiple_of) * self.multiple_of
        place = bisect_left(self.buckets, length)
        if place == len(self.buckets):
            raise ValueError(
                f"collate/pad: {field!r} has length {length}, the largest bucket is "
                f"{self.buckets[-1]}; add a larger one to collate.buckets"
            )
        return self.buckets[place]
