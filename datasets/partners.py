"""Draw and read the partners of a sample: other samples of the epoch, for steps like mosaic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Dataset, Transform, abilities_of
from penstock.core.rng import KeyedRng, Stream
from penstock.core.sample import BadRecord, Sample
from penstock.core.stage_times import StageTimes

if TYPE_CHECKING:
    from penstock.core.contracts import Sampler

ATTEMPTS = 8
"""Records tried for one partner."""

Read = Callable[[NDArray[np.int64]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Accompanied:
    """A record, and the partners for each step of the transform that needs some."""

    record: Any
    partners: list[list[Any]]


@dataclass(frozen=True)
class PartnerStage:
    """Finds the partners of a sample, at positions drawn by (seed, epoch, position, index) alone.

    `counts` returns the number of partners for each step. `sampler` orders the records.
    """

    counts: Callable[[np.random.Generator], Sequence[int]]
    seed: int
    num_positions: int
    sampler: Sampler | None = None

    def drawing_from(self, sampler: Sampler) -> PartnerStage:
        return replace(self, sampler=sampler, num_positions=len(sampler))

    def read(
        self, read: Read, indices: NDArray[np.int64], positions: NDArray[np.int64], epoch: int
    ) -> Sequence[Any]:
        """Read records, int64 [n], at positions, int64 [n], and their partners in one read."""
        rng = KeyedRng()
        pairs = zip(indices.tolist(), positions.tolist(), strict=True)
        drawn = [self._drawn(rng, index, position, epoch, 0) for index, position in pairs]
        # One call: a sampler of millions takes as long for one position as for many.
        places = np.concatenate([np.empty(0, np.int64), *(others for _, others in drawn)])
        records = read(np.concatenate([indices, self._records_at(places, epoch)]))
        rest = iter(records[len(indices) :])
        return [
            Accompanied(record, [[next(rest) for _ in range(n)] for n in numbers])
            for record, (numbers, _) in zip(records, drawn, strict=False)
        ]

    def each(
        self,
        groups: Iterable[Accompanied],
        positions: NDArray[np.int64],
        epoch: int,
        read: Read,
        decode: Callable[[Any], Sample | BadRecord],
        times: StageTimes,
    ) -> Iterator[list[list[Sample]] | BadRecord]:
        """Decode partners lazily, by step, trying up to `ATTEMPTS` records for one."""
        for group, position in zip(groups, positions.tolist(), strict=True):
            start = time.perf_counter()
            found: list[Any] = []
            for number, record in enumerate(one for part in group.partners for one in part):
                sample = decode(record)
                for attempt in range(1, ATTEMPTS):
                    if not isinstance(sample, BadRecord):
                        break
                    index = group.record.index
                    _, others = self._drawn(KeyedRng(), index, position, epoch, attempt)
                    sample = decode(read(self._records_at(others[number : number + 1], epoch))[0])
                found.append(sample)
            bad = next((sample for sample in found if isinstance(sample, BadRecord)), None)
            rest = iter(found)
            times.decode += time.perf_counter() - start
            yield bad or [[next(rest) for _ in part] for part in group.partners]

    def _drawn(
        self, rng: KeyedRng, index: int, position: int, epoch: int, attempt: int
    ) -> tuple[Sequence[int], NDArray[np.int64]]:
        """Draw the number of partners for each step, and the positions of all partners."""
        stream = Stream.PARTNERS
        # The numbers are the first draws of attempt 0 in every attempt.
        draws = rng.at(self.seed, epoch, position, stream, index * ATTEMPTS)
        numbers = self.counts(draws)
        if attempt:
            draws = rng.at(self.seed, epoch, position, stream, index * ATTEMPTS + attempt)
        if self.num_positions == 1:
            return numbers, np.zeros(sum(numbers), np.int64)
        others = draws.integers(0, self.num_positions - 1, sum(numbers), dtype=np.int64)
        return numbers, others + (others >= position)

    def _records_at(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        return positions if self.sampler is None else self.sampler.at(epoch, positions)


def check_gives_partners(dataset: Any, transform: Any, *, split: str) -> None:
    """Raise ValueError if a transform needs partners that the dataset cannot provide."""
    needs = abilities_of(transform, Transform).partner_counts is not None
    if needs and not (isinstance(dataset, Dataset) and dataset.draws_partners):
        part = "train" if split == "train" else "eval"
        said = f"needs other samples of the epoch, which {type(dataset).__name__} cannot give"
        remedy = f"use dataset=image_folder, or drop the step (augment.{part}.<step>=null)"
        raise ValueError(f"augment.{part}: a step {said}; {remedy}")
