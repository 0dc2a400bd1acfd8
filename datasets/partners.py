"""Draw and read the partners of a sample: other samples of the epoch, for steps like mosaic."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import (
    Dataset,
    TransformCapabilities,
    capabilities_of,
)
from penstock.core.rng import KeyedRng, Stream
from penstock.core.sample import BadRecord, Sample
from penstock.core.stage_times import CountedRecords

if TYPE_CHECKING:
    from penstock.core.contracts import Sampler

ATTEMPTS = 8
"""Records tried for one partner."""

Read = Callable[[NDArray[np.int64]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Accompanied:
    """A record, and the partners for each step of the transform that needs some."""

    index: int
    record: Any
    partners: list[list[Any]]


class PartnerStage:
    """Finds the partners of a sample: records of other positions of the epoch.

    The positions depend on (seed, epoch, position, index) alone. A record that replaces a bad one
    has its own partners. `counts` returns the number of partners for each step that needs some.
    """

    def __init__(
        self,
        counts: Callable[[np.random.Generator], Sequence[int]],
        *,
        seed: int,
        num_records: int,
    ) -> None:
        self._counts = counts
        self._seed = seed
        self._num_positions = num_records
        self._sampler: Sampler | None = None

    def drawing_from(self, sampler: Sampler) -> PartnerStage:
        """Return a copy that takes records in the order of a sampler."""
        stage = copy.copy(self)
        stage._sampler, stage._num_positions = sampler, len(sampler)
        return stage

    def read(
        self,
        read: Read,
        indices: NDArray[np.int64],
        positions: NDArray[np.int64],
        epoch: int,
    ) -> Sequence[Any]:
        """Read records, int64 [n], at positions, int64 [n], and their partners in one read."""
        rng = KeyedRng()
        counts, places = [], [np.empty(0, np.int64)]
        for index, position in zip(indices.tolist(), positions.tolist(), strict=True):
            numbers, others = self._drawn(rng, index, position, epoch, attempt=0)
            counts.append(numbers)
            places.append(others)
        # One call: a sampler of millions takes as long for one position as for many.
        others = self._records_at(np.concatenate(places), epoch)
        records = read(np.concatenate([indices, others]))
        first = len(indices)
        grouped = []
        for index, record, numbers in zip(indices.tolist(), records, counts, strict=False):
            groups = []
            for number in numbers:
                groups.append(list(records[first : first + number]))
                first += number
            grouped.append(Accompanied(index, record, groups))
        return CountedRecords.of(grouped, [records])

    def samples(
        self,
        group: Accompanied,
        position: int,
        epoch: int,
        *,
        read: Read,
        decode: Callable[[Any], Sample | BadRecord],
    ) -> list[list[Sample]] | BadRecord:
        """Decode the partners of a record by step, with up to `ATTEMPTS` records per partner."""
        found: list[Sample] = []
        for number, record in enumerate(one for part in group.partners for one in part):
            sample = decode(record)
            for attempt in range(1, ATTEMPTS):
                if not isinstance(sample, BadRecord):
                    break
                rng = KeyedRng()
                _, others = self._drawn(rng, group.index, position, epoch, attempt)
                at = self._records_at(others[number : number + 1], epoch)
                sample = decode(read(at)[0])
            if isinstance(sample, BadRecord):
                return sample
            found.append(sample)
        rest = iter(found)
        return [[next(rest) for _ in part] for part in group.partners]

    def _drawn(
        self, rng: KeyedRng, index: int, position: int, epoch: int, attempt: int
    ) -> tuple[Sequence[int], NDArray[np.int64]]:
        """Draw the number of partners for each step, and the positions of all partners."""
        stream = Stream.PARTNERS
        # The numbers are the first draws of attempt 0 in every attempt.
        draws = rng.at(self._seed, epoch, position, stream, index * ATTEMPTS)
        numbers = self._counts(draws)
        if attempt:
            draws = rng.at(self._seed, epoch, position, stream, index * ATTEMPTS + attempt)
        if self._num_positions == 1:
            return numbers, np.zeros(sum(numbers), np.int64)
        others = draws.integers(0, self._num_positions - 1, sum(numbers), dtype=np.int64)
        return numbers, others + (others >= position)

    def _records_at(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        sampler = self._sampler
        return positions if sampler is None else sampler.at(epoch, positions)


def check_gives_partners(dataset: Any, transform: Any, *, split: str) -> None:
    """Raise ValueError if a transform needs partners that the dataset cannot provide."""
    needs = capabilities_of(transform, TransformCapabilities).partner_counts is not None
    if needs and not (isinstance(dataset, Dataset) and dataset.draws_partners):
        part = "train" if split == "train" else "eval"
        raise ValueError(
            f"augment.{part}: a step needs other samples of the epoch, which a dataset of type "
            f"{type(dataset).__name__} cannot give; use one of records, such as "
            f"dataset=image_folder, or take the step away (augment.{part}.<step>=null)"
        )
