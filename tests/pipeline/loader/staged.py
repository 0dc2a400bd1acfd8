"""A dataset whose reading is apart and whose images are written into rows, without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.core.sample import BadSample, Sample
from penstock.pipeline.collating import from_rows
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

    in_place = True

    def into(self, samples: list[Sample], *, rows: Any = None, allocate: Any = None) -> Any:
        batch = self(samples)
        if rows is None:
            return batch
        image = from_rows([sample["image"] for sample in samples], rows)
        return batch if image is None else {**batch, "image": image}
