"""Samples of any shapes to a batch, ragged arrays as lists."""

from __future__ import annotations

from collections.abc import Sequence

from datasets.sample import Batch, Sample
from pipeline.columns import (
    batch_keys,
    from_arrays,
    from_numbers,
    is_array,
    to_array,
    to_columns,
)
from pipeline.registry import register


@register("collate", "list")
class ListCollate:
    """Arrays stay lists of tensors, one per sample; images are stacked.

    Which fields are lists is said here and does not depend on the data: a batch whose boxes
    happen to be equal in number looks like any other.

    Args:
        stacked: Fields whose arrays are of equal shape and become one tensor.
    """

    def __init__(self, *, stacked: Sequence[str] = ("image", "mask")) -> None:
        self.stacked = tuple(stacked)

    def __call__(self, samples: list[Sample]) -> Batch:
        """Put samples together.

        Args:
            samples: Samples with the same fields.

        Returns:
            Arrays as lists of tensors, those of `stacked` as tensors [B, ...]; numbers as
            bool, int64 or float32 [B]; anything else as lists of B.

        Raises:
            ValueError: Shapes of a stacked field differ, or a field is not in every sample.
        """
        import torch

        columns = to_columns(samples)
        keys = batch_keys(columns, len(samples))
        batch: Batch = {}
        for field, values in columns.items():
            if not all(is_array(value) for value in values):
                numbers = from_numbers(values)
                batch[field] = values if numbers is None else numbers
            elif field in self.stacked:
                batch[field] = self._stack(field, values, keys)
            else:
                # Copied: a batch never shares memory with a sample that somebody may keep.
                batch[field] = [torch.tensor(to_array(value)) for value in values]
        return batch

    def _stack(self, field: str, values: list[object], keys: list[str]) -> object:
        try:
            return from_arrays(field, values, keys)
        except ValueError as error:
            cause = str(error).partition(";")[0]
            raise ValueError(
                f"{cause}; make them equal with an augmentation step such as a resize, or take "
                f"{field!r} out of collate.stacked"
            ) from None
