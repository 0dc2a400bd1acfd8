"""The lazy dataset: records are read, decoded and transformed when a batch asks for them."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from datasets.columns import ColumnStage
from datasets.partners import Accompanied, PartnerStage
from datasets.protocols import (
    Annotations,
    Decoder,
    FittedDecoder,
    Index,
    Sampler,
    Storage,
    Transform,
)
from datasets.sample import BadSample, Sample
from datasets.stage_times import StageTimes
from datasets.stages import DecodeStage, TransformStage, deferred
from pipeline.registry import register

if TYPE_CHECKING:
    from datasets.splits import StorageRecipe


class MapDataset:
    """Positions to samples over any storage; safe to call from several threads.

    Args:
        storage: Where the records lie.
        decode: Record to sample; its ValueErrors make bad samples. One that can `defer` is
            asked to where the transform begins with a crop: then what the crop leaves out is
            not decoded, and the samples are the same.
        transform: Changes the sample, driven by the position's rng alone.
        seed: The run's seed.
        keys: Fields renamed, picked or dropped before decoding, see `DecodeStage`.

    Attributes:
        global_random: The transform draws from global random states and needs a process in
            which no other thread does.
        table: The decoder, if it is one that has learned from the training part; else None.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        decode: Decoder,
        transform: Transform,
        seed: int,
        keys: Mapping[str, str | None] | None = None,
    ) -> None:
        self.storage = storage
        self._decode = DecodeStage(deferred(decode, transform), keys=keys, storage=str(storage))
        self._decode_whole = DecodeStage(decode, keys=keys, storage=str(storage))
        self._partners = PartnerStage(transform, seed=seed, num_records=len(storage))
        self._columns = ColumnStage(storage, self._decode, transform)
        self._transform = TransformStage(transform, seed=seed, storage=str(storage))
        self.global_random = bool(getattr(transform, "global_random", False))
        self.table: Any = decode if isinstance(decode, FittedDecoder) else None

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

    def drawing_from(self, sampler: Sampler) -> MapDataset:
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
        """The records at `indices`, int64 [n]: the part of `fetch` that waits for the storage.

        Where the transform needs other samples, `positions`, int64 [n], and `epoch` say which.
        """
        return self._partners.read(self.storage.read, indices, positions, epoch)

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
        samples = []
        for row, (record, position) in enumerate(zip(records, positions.tolist(), strict=True)):
            start = time.perf_counter()
            partners = None
            if isinstance(record, Accompanied):
                sample = self._decode(record.record)
                partners = self._partners.samples(
                    record,
                    position,
                    epoch,
                    read=self.storage.read,
                    decode=self._decode_whole,
                )
            else:
                sample = self._decode(record)
            times.decode += time.perf_counter() - start
            into = None if rows is None else rows[row]
            samples.append(
                self._transform(sample, position, epoch, into=into, times=times, partners=partners)
            )
        return samples

    @property
    def gives_columns(self) -> bool:
        """Whether batches can be taken as a whole: fields unchanged, of a storage of columns."""
        return self._columns.possible

    def fetch_columns(
        self,
        indices: NDArray[np.int64],
        positions: NDArray[np.int64],
        epoch: int,
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, Any] | None:
        """A batch in one take per field, or None; see `datasets.protocols.ColumnDataset`."""
        return self._columns(indices, positions, allocate)

    def fingerprint(self) -> str:
        """The storage's: what the data is, wherever it lies."""
        return self.storage.fingerprint()


@register("dataset", "map")
def open_map(
    storage: StorageRecipe,
    *,
    decode: Decoder,
    cache: Callable[..., Storage] | None = None,
    annotations: Annotations | None = None,
    val_fraction: Annotated[float, Ge(0), Le(1)] = 0.2,
    keys: Mapping[str, str | None] | None = None,
    transform: Transform,
    seed: int,
    split: Literal["train", "val"],
) -> MapDataset:
    """Records decoded when they are needed.

    Args:
        storage: How to open the storage.
        decode: Record to sample.
        cache: Wraps the storage, if given; is told `decode` and `keys`.
        annotations: Label files beside the data: boxes, masks, keypoints.
        val_fraction: Share of the records that validate, where the data has no split.
        keys: New field names by field name; null drops, ``"*": null`` drops all others.
        transform: The augmentation of this split.
        seed: The run's seed.
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
    return MapDataset(opened, decode=decode, transform=transform, seed=seed, keys=keys)
