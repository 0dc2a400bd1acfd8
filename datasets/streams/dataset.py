"""The dataset of streams: records without random access, read in lanes."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from penstock.core.contracts import (
    Decoder,
    FittedDecoder,
    Source,
    StreamDataset,
    Transform,
    TransformCapabilities,
    capabilities_of,
)
from penstock.core.registry import register
from penstock.core.rng import permute
from penstock.core.sample import MAX_RECORD_BYTES, BadRecord, BadSample, Record, Sample
from penstock.core.stage_times import StageTimes, counted
from penstock.datasets.files.reading_thread import read_ahead
from penstock.datasets.sample_stages import RUN, DecodeStage, TransformStage
from penstock.datasets.streams.lanes import Keep, Lane, ShardRecords, read_lanes

if TYPE_CHECKING:
    from penstock.datasets.records.splits import Split, StorageRecipe

log = logging.getLogger(__name__)

_MOST_LANES = 1 << 16


class LaneStreamDataset(StreamDataset):
    """Records of a source, numbered by position; workers decode and transform them.

    Each reader reads its shards in `lanes`, see `datasets.streams.lanes`: one reader in every rank,
    or `readers` that share the shards, each in a thread beside the consumer.

    Args:
        decode: Converts a record to a sample; its `RecordError` makes a bad sample.
        transform: Changes the sample; draws only from the position's rng.
        keys: Renames, selects or drops fields before decoding, see `DecodeStage`.
        lanes: Shards that each reader reads in parallel.
        readers: Readers that share the shards.
        shuffle: Whether each epoch shuffles the shards.
        shuffle_window: Records of a lane to shuffle together; 0: none.
        keep: Returns whether a key belongs to the split, with a stable ``repr``; None: all.

    Attributes:
        class_names: Names of the classes by label, or None.
        reopens: See `Source`.
    """

    def __init__(
        self,
        source: Source,
        *,
        decode: Decoder,
        transform: Transform,
        seed: int,
        keys: Mapping[str, str | None] | None = None,
        lanes: int = 4,
        readers: int = 1,
        shuffle: bool = True,
        shuffle_window: int = 0,
        keep: Keep | None = None,
    ) -> None:
        self.source = source
        self.lanes = lanes
        self.shuffle = shuffle
        self.shuffle_window = shuffle_window
        self.seed = seed
        changes = capabilities_of(transform, TransformCapabilities)
        defer = Decoder.of(decode).defer
        self.class_names = source.class_names
        self.reopens = source.reopens
        self.global_random = changes.global_random
        self.readers = readers
        self._keep = keep
        self._counts: dict[Any, int] = {}
        deferred = defer if defer is not None and changes.crops_first else decode
        self._decode = DecodeStage(deferred, keys=keys, storage=str(source))
        self._transform = TransformStage(transform, seed=seed, storage=str(source))

    def __str__(self) -> str:
        return str(self.source)

    def open(self, epoch: int, start: int, reader: int = 0) -> Iterator[Any]:
        """Read a reader's items of the epoch from item `start` on, ahead of the consumer.

        Raises:
            ValueError: The source can be read only once, and has been read.
        """
        if not self.reopens and not self.source.continues and (epoch or start):
            what = f"at item {start} of epoch {epoch}" if start else f"for epoch {epoch}"
            raise ValueError(
                f"{self.source}: cannot be opened again, {what}: it is read once, from its "
                f"beginning; set trainer.max_epochs=1, or put the data into files to repeat or "
                f"resume it"
            )
        return read_ahead(lambda: self._read(epoch, start, reader))

    def _read(self, epoch: int, start: int, reader: int) -> Iterator[Any]:
        lanes = self._lanes(epoch, reader)
        with ExitStack() as stack:
            for lane in lanes:
                stack.callback(lane.records.close)
            items = read_lanes(lanes, start)
            if start:
                log.info(
                    "%s: continues at record %d of epoch %d: %s records skipped, %s more unread",
                    self.source, start, epoch, f"{sum(lane.records.passed for lane in lanes):,}",
                    f"{sum(lane.records.unopened for lane in lanes):,}",
                )  # fmt: skip
            yield from items

    def _lanes(self, epoch: int, reader: int) -> list[Lane]:
        shards = self.source.shards(epoch)
        if self.shuffle and len(shards) > 1:
            order = permute(np.arange(len(shards)), length=len(shards), seed=self.seed, epoch=epoch)
            shards = [shards[row] for row in order.tolist()]
        readers = self.readers
        shards = shards[reader::readers]
        return [
            Lane(
                ShardRecords(
                    self.source, shards[n :: self.lanes], keep=self._keep, counts=self._counts
                ),
                number=reader * self.lanes + n,
                lanes=readers * self.lanes,
                window=self.shuffle_window,
                seed=self.seed,
                epoch=epoch,
            )
            for n in range(min(self.lanes, len(shards)))
        ]

    @property
    def row_shape(self) -> tuple[int, int, int] | None:  # type: ignore[override]
        """Return the shape of the last uint8 image, to predict the next; None before the first."""
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
        """Decode and transform items of `open`; ``index`` is the position.

        Raises:
            RuntimeError: A transform failed, see `TransformStage`.
        """
        times = StageTimes() if times is None else times
        samples: list[Sample | BadSample] = []
        for first in range(0, len(items), RUN):
            run = slice(first, first + RUN)
            start = time.perf_counter()
            with counted() as asked:
                records = [
                    replace(self._record(item), index=position)
                    for item, position in zip(items[run], positions[run].tolist(), strict=True)
                ]
            times.ask(asked)
            times.read += time.perf_counter() - start
            decoded = self._decode.each(records, times)
            into = None if rows is None else rows[run]
            samples += self._transform.each(decoded, positions[run], epoch, rows=into, times=times)
        return samples

    def _record(self, item: Any) -> Record | BadRecord:
        return item if isinstance(item, BadRecord) else self.source.load(item)

    def fingerprint(self) -> str:
        """Hash the source and the split."""
        text = f"{self.source.fingerprint()} {self._keep!r}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@register("dataset", "stream")
def open_stream(
    source: StorageRecipe,
    *,
    decode: Decoder,
    lanes: Annotated[int, Ge(1), Le(_MOST_LANES)] = 4,
    readers: Annotated[int, Ge(1), Le(_MOST_LANES)] = 1,
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
) -> LaneStreamDataset:
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

    Raises:
        ValueError: The source cannot be opened.
    """
    from penstock.datasets.streams.sources import KeptByHash, open_split

    if isinstance(decode, FittedDecoder) and decode.statistics is None:
        raise ValueError(
            "dataset.decode needs statistics of the whole training part, and a stream is read "
            "once, in order; give a run's statistics with "
            "dataset.decode.statistics=<run>/table.json, or choose dataset=parquet or csv"
        )
    source = replace(
        source,
        val_path=val_path,
        test_path=test_path,
        max_record_bytes=max_record_bytes,
        retry_s=retry_s,
    )
    opened, keep = open_split(
        source, split=split, val_fraction=val_fraction, shards=lanes * readers
    )
    train = split == "train"
    if isinstance(keep, KeptByHash) and keep.none:
        lanes, readers = 0, 1  # reads nothing
    if readers > 1 and (found := len(opened.shards(0))) < readers:
        if train and found:
            raise ValueError(
                f"dataset.readers is {readers}, and {opened} has {found} shards: a reader has "
                f"shards of its own; type dataset.readers={found}, or give it more shards"
            )
        readers = 1
    return LaneStreamDataset(
        opened,
        decode=decode,
        transform=transform,
        seed=seed,
        keys=keys,
        lanes=lanes,
        readers=readers,
        shuffle=shuffle and train,
        shuffle_window=shuffle_window if train else 0,
        keep=keep,
    )
