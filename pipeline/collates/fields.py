"""Collate samples field by field: stacked, as lists, padded, or packed into rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Allocate, Collate
from penstock.core.registry import register
from penstock.core.sample import Batch, Sample
from penstock.pipeline import collating
from penstock.pipeline.collating import FieldCollate, from_arrays, is_array, padded, to_array


@register("collate", "stack")
class StackCollate(Collate):
    """Stack arrays of equal shape and numbers into tensors; the rest become lists.

    Arrays become tensors [B, ...] of their own type, numbers bool, int64 or float32 [B], and other
    values lists of B. Raises ValueError if shapes, types or fields differ.
    """

    in_place = True
    columnar = True

    def __call__(self, samples: list[Sample]) -> Batch:
        """Collate samples with the same fields."""
        return self.into(samples)

    def into(
        self,
        samples: list[Sample],
        *,
        rows: NDArray[np.uint8] | None = None,
        allocate: Allocate | None = None,
    ) -> Batch:
        """Collate samples; `rows` becomes ``image`` without a copy if the images fit."""
        columns = collating.to_columns(samples)
        keys = collating.batch_keys(columns, len(samples))
        largest = collating.largest_arrays(columns) if allocate and rows is None else None
        batch: Batch = {}
        for field, values in columns.items():
            made = None
            if field == "image" and rows is not None:
                made = collating.from_rows(values, rows)
            if made is None and all(map(is_array, values)):
                memory = allocate if field == largest else None
                made = from_arrays(field, values, keys, allocate=memory)
            batch[field] = collating.from_values(field, values) if made is None else made
        return batch

    def columns(self, columns: dict[str, Any]) -> Batch:
        """Collate columns, which may become the memory of the batch; numbers are copied."""
        return {
            field: collating.from_column(field, values)
            if isinstance(values, np.ndarray)
            else values
            for field, values in columns.items()
        }


stack = StackCollate()
"""The collate, for use from Python."""


@register("collate", "list")
class ListCollate(FieldCollate):
    """Keep arrays as lists of tensors, one per sample; stack images.

    The configuration alone decides which fields are lists, whatever the shapes in a batch.

    Args:
        stacked: Fields whose arrays have equal shapes and become one tensor.
    """

    def __init__(self, *, stacked: Sequence[str] = ("image", "mask")) -> None:
        self.stacked = tuple(stacked)

    def collated(self, field: str, values: list[Any], keys: list[str]) -> Batch:
        if field not in self.stacked:
            # Copy: a batch never shares memory with a sample.
            return {field: [np.array(to_array(value)) for value in values]}
        remedy = f"an augmentation step such as a resize, or take {field!r} out of collate.stacked"
        return {field: from_arrays(field, values, keys, remedy=remedy)}


@register("collate", "pad")
class PaddedCollate(FieldCollate):
    """Pad arrays of differing lengths to the longest of the batch, or somewhat more.

    Each padded field gets ``<field>_lengths``, int64 [B] (or [B, n] for n ragged axes), and
    ``<field>_mask``, bool, True for data. Other arrays are stacked.

    Args:
        fields: Number of leading ragged axes, by field: ``{tokens: 1, image: 2}``. None: one axis
            of every array but ``image`` and ``mask``, which are stacked.
        value: Fill value: one number, or a number by field.
        multiple_of: Round lengths up to a multiple of this, so that few shapes occur.
    """

    overhead = staticmethod(collating.count_padding)

    def __init__(
        self,
        *,
        fields: Mapping[str, int] | None = None,
        value: float | Mapping[str, float] = 0,
        multiple_of: Annotated[int, Ge(1)] = 1,
    ) -> None:
        self.fields, self.value, self.multiple_of = fields, value, multiple_of
        self.needed = fields or ()

    def collated(self, field: str, values: list[Any], keys: list[str]) -> Batch:
        axes = 0 if field in ("image", "mask") else 1
        if self.fields is not None:
            axes = self.fields.get(field, 0)
        if not axes:
            remedy = "an augmentation step such as a resize, or pad two axes: collate.fields="
            return {field: from_arrays(field, values, keys, remedy=f"{remedy}{{{field}:2}}")}
        fill = self.value.get(field, 0) if isinstance(self.value, Mapping) else self.value
        more: Any = {"axes": axes, "multiple_of": self.multiple_of, "fill": fill}
        return padded(field, values, keys, **more, remedy="see collate.fields")


@register("collate", "packed")
class PackedCollate(FieldCollate):
    """Pack sequences into rows of `row_length`, longest first, each into the first row with room.

    First fit decreasing (D. S. Johnson, "Near-optimal bin packing algorithms", 1973). The batch has
    ``tokens``, ``tokens_segments``, ``tokens_positions`` and ``tokens_mask``, [R, row_length].
    Segments are int64: 0 for padding, else 1 + the sample's row. Positions are int64, in the
    sequence. The mask is True for data. ``tokens_lengths`` is int64 [B]. Other arrays are stacked.

    Args:
        row_length: Tokens in a row.
        field: The sequences, arrays [T].
    """

    overhead = staticmethod(collating.count_padding)

    def __init__(self, *, row_length: Annotated[int, Ge(1)] = 512, field: str = "tokens") -> None:
        self.row_length, self.needed = row_length, (field,)

    def collated(self, field: str, values: list[Any], keys: list[str]) -> Batch:
        if field not in self.needed:
            return {field: from_arrays(field, values, keys)}
        arrays = [to_array(value) for value in values]
        collating.refuse_unlike(f"collate/packed: {field!r}", arrays, keys, free_axes=1, remedy="")
        lengths = np.array([*map(len, arrays)])
        places = self._places(lengths, keys)
        count = 1 + max(row for row, _ in places)
        tokens = collating.empty((count, self.row_length), arrays[0].dtype)
        tokens.fill(0)
        segments, positions = (np.zeros(tokens.shape, np.int64) for _ in range(2))
        for number, (array, (row, start)) in enumerate(zip(arrays, places, strict=True), 1):
            part = row, slice(start, start + len(array))
            tokens[part], segments[part], positions[part] = array, number, np.arange(len(array))
        return {
            field: tokens,
            f"{field}_segments": segments,
            f"{field}_positions": positions,
            f"{field}_mask": segments > 0,
            f"{field}_lengths": lengths,
        }

    def _places(self, lengths: NDArray[Any], keys: list[str]) -> list[tuple[int, int]]:
        """Return the row of each sequence, and its first place there."""
        most, used = int(lengths.max()), [0]
        if most > self.row_length:
            text = f"{keys[int(lengths.argmax())]!r} has {most} tokens, and a row {self.row_length}"
            remedy = f"set collate.row_length={most} or more, or cut longer ones"
            raise ValueError(f"collate/packed: {text}; {remedy} by augment.max_length")
        places = [(0, 0)] * len(lengths)
        for number in np.argsort(-lengths, kind="stable").tolist():
            length = int(lengths[number])
            fits = (n for n, taken in enumerate(used) if taken + length <= self.row_length)
            row = next(fits, len(used))
            used += [0] * (row == len(used))
            places[number] = row, used[row]
            used[row] += length
        return places
