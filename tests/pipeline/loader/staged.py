"""A dataset whose reading is apart and whose images are written into rows, and fake page locks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from penstock.core.contracts import CollateCapabilities
from penstock.core.sample import BadSample, Sample
from penstock.pipeline.collating import from_rows
from penstock.pipeline.loader.device.accelerator import Accelerator
from tests.pipeline.loader.fakes import Collated, FakeDataset


class StagedFake(FakeDataset):
    """FakeDataset in two parts; the samples are those of FakeDataset.

    Args:
        on_read: Called with the records before they are read.
        on_finish: Called with the positions before they are decoded.
        **settings: Those of FakeDataset.
    """

    def __init__(
        self,
        n: int,
        *,
        on_read: Callable[[list[int]], None] | None = None,
        on_finish: Callable[[list[int]], None] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(n, **settings)
        self.on_read, self.on_finish = on_read, on_finish
        self.held_bytes: Any = None

    staged = True

    @property
    def row_shape(self) -> tuple[int, int, int]:
        return self.size, self.size, 3

    def read(self, indices: Any, positions: Any, epoch: int) -> list[int]:
        records: list[int] = indices.tolist()
        if self.on_read is not None:
            self.on_read(records)
        return records

    def finish(
        self,
        records: Sequence[int],
        positions: Any,
        epoch: int,
        *,
        rows: Any = None,
        times: Any = None,
    ) -> list[Sample | BadSample]:
        if self.on_finish is not None:
            self.on_finish(positions.tolist())
        samples = []
        for row, (index, position) in enumerate(zip(records, positions.tolist(), strict=True)):
            sample = self._one(index, position, epoch)
            if rows is not None and not isinstance(sample, BadSample):
                rows[row] = sample["image"]
                sample["image"] = rows[row]
            samples.append(sample)
        return samples

    def fetch(self, indices: Any, positions: Any, epoch: int) -> list[Sample | BadSample]:
        return self.finish(self.read(indices, positions, epoch), positions, epoch)


class RowsCollated(Collated):
    """Makes the image tensor of the rows that the images were written to."""

    @property
    def capabilities(self) -> CollateCapabilities:
        return CollateCapabilities(with_rows=self.with_rows, overhead=self.overhead)

    def with_rows(self, samples: list[Sample], rows: Any) -> Any:
        batch = self(samples)
        image = from_rows([sample["image"] for sample in samples], rows)
        return batch if image is None else {**batch, "image": image}


class FakeAccelerator(Accelerator):
    """Page locks without an accelerator.

    Attributes:
        locked: Sizes of what is locked, by address.
        made: Number of locks that were ever made.
        fails: Whether page-locking fails.
    """

    def __init__(self, *, fails: bool = False) -> None:
        self.device = torch.device("cpu")
        self.locked: dict[int, int] = {}
        self.made = 0
        self.fails = fails

    def register(self, address: int, size_bytes: int) -> bool:
        if not self.fails:
            assert address not in self.locked and not address % 4096
            self.locked[address] = size_bytes
            self.made += 1
        return not self.fails

    def unregister(self, address: int) -> None:
        del self.locked[address]

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether all bytes of a tensor lie in one block of locked memory."""
        start, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        return any(a <= start and stop <= a + size for a, size in self.locked.items())
