"""Collate sequences into rows of one length, several to a row, with their boundaries."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge

from penstock.core.contracts import CollateCapabilities
from penstock.core.registry import register
from penstock.core.sample import Batch, Sample
from penstock.pipeline.collating import (
    batch_keys,
    count_padding,
    empty,
    from_arrays,
    from_values,
    is_array,
    refuse_unlike,
    to_array,
    to_columns,
)


@register("collate", "packed")
class PackedCollate:
    """Pack sequences into rows of `row_length`, longest first, each into the first row with room.

    First fit decreasing (D. S. Johnson, "Near-optimal bin packing algorithms", 1973). No sequence
    is cut or spans two rows. Other fields keep a row for each sample.

    Args:
        row_length: Tokens in a row.
        field: The sequences, arrays [T].
    """

    def __init__(self, *, row_length: Annotated[int, Ge(1)] = 512, field: str = "tokens") -> None:
        self.row_length = row_length
        self.field = field

    @property
    def capabilities(self) -> CollateCapabilities:
        """Return the padding counter."""
        return CollateCapabilities(overhead=count_padding)

    def __call__(self, samples: list[Sample]) -> Batch:
        """Collate B samples; raise ValueError if a sequence is longer than a row.

        ``tokens``, ``tokens_segments``, ``tokens_positions`` and ``tokens_mask`` are [R,
        row_length]. Segments are int64: 0 for padding, else 1 + the sample's row. Positions are
        int64, in the sequence. The mask is True for data. ``tokens_lengths`` is int64 [B]. Other
        arrays are stacked, other values as in ``collate=pad``.
        """
        columns = to_columns(samples)
        keys = batch_keys(columns, len(samples))
        name = self.field
        if name not in columns or not all(is_array(v) and v.ndim == 1 for v in columns[name]):
            raise ValueError(
                f"collate/packed: no sequences {name!r}; fields: {', '.join(columns)}; set "
                f"collate.field"
            )
        arrays = [to_array(value) for value in columns.pop(name)]
        refuse_unlike(f"collate/packed: {name!r}", arrays, keys, free_axes=1, remedy="")
        lengths = [len(array) for array in arrays]
        rows = self._rows(lengths, keys)
        shape = len(rows), self.row_length
        tokens = empty(shape, arrays[0].dtype)
        tokens.fill(0)
        segments, places = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for number, row in enumerate(rows):
            start = 0
            for sample in row:
                part = slice(start, start := start + lengths[sample])
                tokens[number, part] = arrays[sample]
                segments[number, part] = sample + 1
                places[number, part] = np.arange(lengths[sample])
        batch: Batch = {
            field: from_arrays(field, values, keys)
            if all(map(is_array, values))
            else from_values(values)
            for field, values in columns.items()
        }
        batch[name] = tokens
        batch[f"{name}_segments"] = segments
        batch[f"{name}_positions"] = places
        batch[f"{name}_mask"] = segments > 0
        batch[f"{name}_lengths"] = np.array(lengths, np.int64)
        return batch

    def _rows(self, lengths: list[int], keys: list[str]) -> list[list[int]]:
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        if lengths[longest] > self.row_length:
            raise ValueError(
                f"collate/packed: {keys[longest]!r} has {lengths[longest]} tokens, and a row "
                f"{self.row_length}; set collate.row_length={lengths[longest]} or more, or cut "
                f"longer sequences with augment.max_length"
            )
        rows: list[list[int]] = []
        room: list[int] = []
        for sample in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
            length = lengths[sample]
            row = next((n for n, left in enumerate(room) if length <= left), len(rows))
            if row == len(rows):
                rows.append([])
                room.append(self.row_length)
            rows[row].append(sample)
            room[row] -= length
        return rows
