"""Collate sequences into rows of one length, several to a row, with their boundaries."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.pipeline import collating


@register("collate", "packed")
class PackedCollate(collating.FieldCollate):
    """Pack sequences into rows of `row_length`, longest first, each into the first row with room.

    First fit decreasing (D. S. Johnson, "Near-optimal bin packing algorithms", 1973). No sequence
    is cut or spans two rows. Other fields keep a row for each sample.

    The batch has ``tokens``, ``tokens_segments``, ``tokens_positions`` and ``tokens_mask``, [R,
    row_length]. Segments are int64: 0 for padding, else 1 + the sample's row. Positions are int64,
    in the sequence. The mask is True for data. ``tokens_lengths`` is int64 [B]. Other arrays are
    stacked.

    Args:
        row_length: Tokens in a row.
        field: The sequences, arrays [T].
    """

    overhead = staticmethod(collating.count_padding)

    def __init__(self, *, row_length: Annotated[int, Ge(1)] = 512, field: str = "tokens") -> None:
        self.row_length, self.needed = row_length, (field,)

    def collated(self, field: str, values: list[Any], keys: list[str]) -> Batch:
        if field not in self.needed:
            return {field: collating.from_arrays(field, values, keys)}
        arrays = [collating.to_array(value) for value in values]
        collating.refuse_unlike(f"collate/packed: {field!r}", arrays, keys, free_axes=1, remedy="")
        lengths = np.array([*map(len, arrays)])
        rows, starts, count = self._places(lengths, keys)
        tokens = collating.empty((count, self.row_length), arrays[0].dtype)
        tokens.fill(0)
        segments, places = (np.zeros(tokens.shape, np.int64) for _ in range(2))
        for number, array in enumerate(arrays):
            part = rows[number], slice(starts[number], starts[number] + len(array))
            tokens[part], segments[part], places[part] = array, number + 1, np.arange(len(array))
        return {
            field: tokens,
            f"{field}_segments": segments,
            f"{field}_positions": places,
            f"{field}_mask": segments > 0,
            f"{field}_lengths": lengths,
        }

    def _places(self, lengths: Any, keys: list[str]) -> tuple[list[int], list[int], int]:
        """Return the row and first place of each sequence, and the number of rows."""
        used: list[int] = []
        rows, starts = [0] * len(lengths), [0] * len(lengths)
        for number in np.argsort(-lengths, kind="stable").tolist():
            length = int(lengths[number])
            if length > self.row_length:
                raise ValueError(
                    f"collate/packed: {keys[number]!r} has {length} tokens, and a row "
                    f"{self.row_length}; set collate.row_length={length} or more, or cut longer "
                    f"ones by augment.max_length"
                )
            fits = (n for n, taken in enumerate(used) if taken + length <= self.row_length)
            rows[number] = row = next(fits, len(used))
            used += [0] * (row == len(used))
            starts[number] = used[row]
            used[row] += length
        return rows, starts, len(used)
