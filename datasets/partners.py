"""Other samples of the epoch, for a transform that needs them: which ones, and their records."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import (
    Dataset,
    SamplerCapabilities,
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
    """A record, and those of the partners that its transform asks for.

    Attributes:
        index: The index of the record.
        record: The record.
        partners: By step of the transform that needs others, the records for it.
    """

    index: int
    record: Any
    partners: list[list[Any]]


class PartnerStage:
    """Find the partners of a sample: records of other positions of the epoch.

    The positions are drawn from (seed, epoch, position, index), so they are the same whoever
    computes the sample. A record that is put in the place of a bad one meets partners of its own.

    Args:
        counts: Gives the number of partners for each step of the transform that needs some.
        seed: The run's seed.
        num_records: Number of records; until there is a sampler they stand in order.
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
        """The same with the records that a sampler puts at the positions of an epoch."""
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
        """Records with those of their partners, in one batched read.

        Args:
            read: Gives the records at indices.
            indices: int64 [n], records.
            positions: int64 [n], where they stand.
            epoch: The epoch.

        Returns:
            An `Accompanied` for each of `indices`.
        """
        rng = KeyedRng()
        counts, places = [], [np.empty(0, np.int64)]
        for index, position in zip(indices.tolist(), positions.tolist(), strict=True):
            numbers, others = self._drawn(rng, index, position, epoch, attempt=0)
            counts.append(numbers)
            places.append(others)
        # Asked for together: a sampler of millions takes as long for one position as for many.
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
        """The decoded partners of one record.

        A bad one is drawn again; it is reported at the position where it stands itself.

        Args:
            group: The record with those of its partners.
            position: Where it stands.
            epoch: The epoch.
            read: Gives the records at indices.
            decode: Record to sample.

        Returns:
            By step, the samples for it, which have no position; the last bad one where every
            attempt for a partner met one.
        """
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
        """Draw how many partners each step needs, and positions for them all."""
        stream = Stream.PARTNERS
        # The numbers are the first draws of attempt 0, whichever attempt the positions are of.
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
        if sampler is None:
            return positions
        scattered = capabilities_of(sampler, SamplerCapabilities).at
        if scattered is not None:
            return scattered(epoch, positions)
        parts = [sampler.indices(epoch, at, at + 1) for at in positions.tolist()]
        return np.concatenate([np.empty(0, np.int64), *parts])


def check_gives_partners(dataset: Any, transform: Any, *, split: str) -> None:
    """Refuse a transform that needs other samples on a dataset that has none to give.

    Raises:
        ValueError: It is so.
    """
    needs = capabilities_of(transform, TransformCapabilities).partner_counts is not None
    if needs and not (isinstance(dataset, Dataset) and dataset.draws_partners):
        part = "train" if split == "train" else "eval"
        raise ValueError(
            f"augment.{part}: a step needs other samples of the epoch, which a dataset of type "
            f"{type(dataset).__name__} cannot give; use one of records, such as "
            f"dataset=image_folder, or take the step away (augment.{part}.<step>=null)"
        )
