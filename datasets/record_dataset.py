"""What datasets over a storage share: everything but where a decoded sample comes from."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from datasets.held_bytes import held_bytes
from datasets.partners import PartnerStage
from datasets.protocols import (
    Annotations,
    Decoder,
    FittedDecoder,
    Index,
    Sampler,
    Storage,
    Transform,
)
from datasets.sample import BadRecord, BadSample, Sample
from datasets.stage_times import StageTimes
from datasets.transform_stage import TransformStage

if TYPE_CHECKING:
    from datasets.splits import StorageRecipe

Decode = Callable[[Any], Sample | BadRecord]


class RecordDataset:
    """Positions to samples over any storage; safe to call from several threads.

    A kind of it says what lies at an index, and how that becomes a sample.

    Args:
        storage: Where the records lie.
        decoder: Record to sample.
        transform: Changes the sample, driven by the position's rng alone.
        seed: The run's seed.
        decode: What lies at an index to a sample, or why there is none; None: it is one.
        decode_partner: The same of what lies there for another's transform.

    Attributes:
        storage: Where the records lie.
        global_random: The transform draws from global random states and needs a process in
            which no other thread does.
        table: The decoder, if it is one that has learned from the training part; else None.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        decoder: Decoder,
        transform: Transform,
        seed: int,
        decode: Decode | None,
        decode_partner: Decode,
    ) -> None:
        self.storage = storage
        self.global_random = bool(getattr(transform, "global_random", False))
        self.table: Any = decoder if isinstance(decoder, FittedDecoder) else None
        self._decode = decode
        self._decode_partner = decode_partner
        self._partners = PartnerStage(transform, seed=seed, num_records=len(storage))
        self._transform = TransformStage(transform, seed=seed, storage=str(storage))

    def __len__(self) -> int:
        return len(self.storage)

    @property
    def index(self) -> Index:
        """The metadata of the records."""
        return self.storage.index

    def fetch(
        self, indices: NDArray[np.int64], positions: NDArray[np.int64], epoch: int
    ) -> list[Sample | BadSample]:
        """Read, decode and transform, in one batched read.

        Args:
            indices: int64 [n], records.
            positions: int64 [n], the positions that they stand at.
            epoch: The epoch.

        Returns:
            A sample or a bad sample for each position, in order.

        Raises:
            RuntimeError: A transform failed, see `TransformStage`.
        """
        if not self.needs_partners:  # a subclass may read in a way of its own
            return self.finish(self.read(indices), positions, epoch)
        return self.finish(self.read(indices, positions, epoch), positions, epoch)

    @property
    def needs_partners(self) -> bool:
        """Whether the transform needs other samples, and `read` the positions."""
        return self._partners.needed

    def drawing_from(self, sampler: Sampler) -> Self:
        """The same data, whose transform gets other samples as `sampler` places them."""
        bound = copy.copy(self)
        bound._partners = self._partners.drawing_from(sampler)
        return bound

    @property
    def row_shape(self) -> tuple[int, int, int] | None:
        """The shape of the last uint8 image, likely that of the next ones; None before."""
        return self._transform.row_shape

    def read(
        self,
        indices: NDArray[np.int64],
        positions: NDArray[np.int64] | None = None,
        epoch: int = 0,
    ) -> Sequence[Any]:
        """What lies at `indices`, int64 [n]: the part of `fetch` that waits for the storage.

        Where the transform needs other samples, `positions`, int64 [n], and `epoch` say which.
        """
        return self._partners.read(self._lying_at, indices, positions, epoch)

    def held_bytes(self, indices: NDArray[np.int64]) -> NDArray[Any] | None:
        """Memory that `read` takes for each of `indices`, integers [n]; None: it is not known."""
        return held_bytes(self.storage, indices)

    def _lying_at(self, indices: NDArray[np.int64]) -> Sequence[Any]:
        """What `decode` takes, for each of `indices`, int64 [n]."""
        return self.storage.read(indices)

    def finish(
        self,
        records: Sequence[Any],
        positions: NDArray[np.int64],
        epoch: int,
        *,
        rows: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
    ) -> list[Sample | BadSample]:
        """Decode and transform what `read` gave; see `datasets.protocols.StagedDataset`."""
        times = StageTimes() if times is None else times
        if not self.needs_partners:
            decoded = self._decoded(records, times)
            return self._transform.each(decoded, positions, epoch, rows=rows, times=times)
        samples = []
        decoded = self._decoded((group.record for group in records), times)
        groups = zip(records, decoded, positions.tolist(), strict=True)
        for row, (group, sample, position) in enumerate(groups):
            start = time.perf_counter()
            partners = self._partners.samples(
                group, position, epoch, read=self._lying_at, decode=self._decode_partner
            )
            times.decode += time.perf_counter() - start
            into = None if rows is None else rows[row]
            samples.append(
                self._transform(sample, position, epoch, into=into, times=times, partners=partners)
            )
        return samples

    def _decoded(self, records: Iterable[Any], times: StageTimes) -> Iterator[Any]:
        for record in records:
            if self._decode is None:
                yield record
                continue
            start = time.perf_counter()
            sample = self._decode(record)
            times.decode += time.perf_counter() - start
            yield sample

    def fingerprint(self) -> str:
        """The storage's: what the data is, wherever it lies."""
        return self.storage.fingerprint()


def open_records(
    storage: StorageRecipe,
    *,
    decode: Decoder,
    cache: Callable[..., Storage] | None,
    annotations: Annotations | None,
    val_fraction: float,
    keys: Mapping[str, str | None] | None,
    split: Literal["train", "val"],
) -> tuple[Storage, Decoder]:
    """The records of a split, annotated and cached, and a decoder that has learned what it must.

    Args:
        storage: How to open the storage.
        decode: Record to sample.
        cache: Wraps the storage, if given; is told `decode` and `keys`.
        annotations: Label files beside the data.
        val_fraction: Share of the records that validate, where the data has no split.
        keys: New names of fields, see `datasets.stages.DecodeStage`.
        split: ``train`` or ``val``.

    Raises:
        ValueError: The storage cannot be opened or split.
    """
    from datasets.fitting import fitted
    from datasets.splits import open_split

    opened = open_split(storage, split=split, val_fraction=val_fraction, annotations=annotations)
    decode = fitted(
        decode,
        storage,
        opened=opened,
        split=split,
        val_fraction=val_fraction,
        keys=keys,
        annotations=annotations,
    )
    if cache is not None:
        opened = cache(storage=opened, decode=decode, keys=keys)
    return opened, decode
