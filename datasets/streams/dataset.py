"""The dataset of streams: records without random access, read in lanes."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from penstock.core.contracts import (
    Decoder,
    FittedDecoder,
    StreamDataset,
    Transform,
    abilities_of,
)
from penstock.core.registry import register
from penstock.core.rng import permute
from penstock.core.sample import MAX_RECORD_BYTES, BadRecord, BadSample, Sample
from penstock.core.stage_times import StageTimes, counted
from penstock.datasets.files.reading_thread import read_ahead
from penstock.datasets.sample_stages import DecodeStage, TransformStage
from penstock.datasets.streams.lanes import Lanes
from penstock.datasets.streams.sources import KeptByHash, open_split

if TYPE_CHECKING:
    from penstock.datasets.records.splits import Split, StorageRecipe

log = logging.getLogger(__name__)

_RUN = 16  # items loaded at a time; their bytes stay in memory


@register("dataset", "stream")
class LaneStreamDataset(StreamDataset):
    """Shards that are read in order: pipes, sockets, archives, queues, generators.

    Args:
        source: Recipe to open the source.
        decode: Converts a record to a sample.
        lanes: Shards read in parallel; the order of an epoch depends on it.
        readers: Readers that share the shards; the order of an epoch depends on it. Each reader has
            an equal part of every batch, so W ranks read 1/W each if it is a multiple of W. With 1,
            every rank reads everything and keeps its rows.
        shuffle: Whether each training epoch shuffles the shards.
        shuffle_window: Records of a lane that training shuffles together; 0: none.
        val_fraction: Share of the records for validation, if the data lacks a validation part. A
            source that can be read only once is used for training alone.
        val_path: The validation part, if it is neither beside nor in the training part.
        test_path: The test part, if it is elsewhere.
        max_record_bytes: Larger records are bad and are not read.
        retry_s: Seconds to retry remote reads while a server fails or is away.
        keys: New field names by field name; null drops, ``"*": null`` drops all others.
        transform: The augmentation of this split.
        seed: The run's seed.
        split: ``train``, ``val`` or ``test``.
    """

    def __init__(
        self,
        source: StorageRecipe,
        *,
        decode: Decoder,
        lanes: Annotated[int, Ge(1), Le(1 << 16)] = 4,
        readers: Annotated[int, Ge(1), Le(1 << 16)] = 1,
        shuffle: bool = True,
        shuffle_window: Annotated[int, Ge(0)] = 256,
        val_fraction: Annotated[float, Ge(0), Le(1)] = 0.2,
        val_path: str | None = None,
        test_path: str | None = None,
        max_record_bytes: Annotated[int, Ge(1)] = MAX_RECORD_BYTES,
        retry_s: Annotated[float, Ge(0)] = 60.0,
        keys: Mapping[str, str | None] | None = None,
        transform: Transform,
        seed: int,
        split: Split,
    ) -> None:
        if isinstance(decode, FittedDecoder) and decode.statistics is None:
            remedy = "type dataset.decode.statistics=<run>/table.json, or dataset=parquet or csv"
            raise ValueError(f"dataset.decode needs statistics, which a stream lacks; {remedy}")
        recipe = replace(
            source, val_path=val_path, test_path=test_path,
            max_record_bytes=max_record_bytes, retry_s=retry_s,
        )  # fmt: skip
        shards, train = lanes * readers, split == "train"
        opened, keep = open_split(recipe, split=split, val_fraction=val_fraction, shards=shards)
        if isinstance(keep, KeptByHash) and keep.none:
            lanes, readers = 0, 1  # reads nothing
        if readers > 1 and (found := len(opened.shards(0))) < readers:
            if train and found:
                remedy = f"type dataset.readers={found}, or give it more shards"
                what = f"dataset.readers is {readers}, {opened} has {found} shards"
                raise ValueError(f"{what}; {remedy}")
            readers = 1
        self.source = opened
        self.lanes = lanes
        self.readers = readers
        self.shuffle = shuffle and train
        self.shuffle_window = shuffle_window if train else 0
        self.seed = seed
        self.class_names = opened.class_names
        self.reopens = opened.reopens
        changes = abilities_of(transform, Transform)
        self.global_random = changes.global_random
        self._keep = keep
        defer = abilities_of(decode, Decoder).defer
        deferred = defer if defer is not None and changes.crops_first else decode
        self._decode = DecodeStage(deferred, keys=keys, storage=str(opened))
        self._transform = TransformStage(transform, seed=seed, storage=str(opened))

    def __str__(self) -> str:
        return str(self.source)

    def open(self, epoch: int, start: int, reader: int = 0) -> Iterator[Any]:
        """Read a reader's items of the epoch from item `start` on, ahead of the consumer."""
        if not self.reopens and not self.source.continues and (epoch or start):
            raise ValueError(
                f"{self}: item {start} of epoch {epoch} cannot be read: it is read once, from its "
                f"beginning; set trainer.max_epochs=1, or put the data into files"
            )
        shards = self.source.shards(epoch)
        if self.shuffle and len(shards) > 1:
            order = permute(np.arange(len(shards)), length=len(shards), seed=self.seed, epoch=epoch)
            shards = [shards[row] for row in order.tolist()]
        shards = shards[reader :: self.readers]
        number = reader * self.lanes
        by_lane = {number + n: shards[n :: self.lanes] for n in range(min(self.lanes, len(shards)))}
        lanes = Lanes(
            source=self.source, count=self.lanes * self.readers, keep=self._keep,
            window=self.shuffle_window, seed=self.seed, epoch=epoch,
        )  # fmt: skip
        if start:
            log.info("%s: epoch %d continues, %d records skipped", self, epoch, start)
        return read_ahead(lambda: lanes.read(by_lane, start))

    @property
    def row_shape(self) -> tuple[int, int, int] | None:  # type: ignore[override]
        return self._transform.row_shape

    def fetch_items(
        self,
        items: Sequence[Any],
        positions: NDArray[np.int64],
        epoch: int,
        *,
        rows: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
    ) -> list[Sample | BadSample]:
        times = StageTimes() if times is None else times
        samples: list[Sample | BadSample] = []
        for first in range(0, len(items), _RUN):
            run = slice(first, first + _RUN)
            start = time.perf_counter()
            with counted() as asked:
                loaded = (
                    i if isinstance(i, BadRecord) else self.source.load(i) for i in items[run]
                )
                rows_of = zip(loaded, positions[run].tolist(), strict=True)
                records = [replace(record, index=position) for record, position in rows_of]
            times.ask(asked)
            times.read += time.perf_counter() - start
            decoded = self._decode.each(records, times)
            into = None if rows is None else rows[run]
            samples += self._transform.each(decoded, positions[run], epoch, rows=into, times=times)
        return samples

    def fingerprint(self) -> str:
        text = f"{self.source.fingerprint()} {self._keep!r}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
