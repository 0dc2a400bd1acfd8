"""The iterable twin of the lazy dataset: what cannot be indexed is read in lanes, in order."""

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
    SourceCapabilities,
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
from penstock.datasets.streams.lanes import Keep, Lane, ShardRecords, close_all, read_lanes

if TYPE_CHECKING:
    from penstock.datasets.records.splits import Split, StorageRecipe

log = logging.getLogger(__name__)

_MOST_LANES = 1 << 16


class LaneStreamDataset(StreamDataset):
    """Records of a source, numbered by position, decoded and transformed where they are asked for.

    The source is read in `lanes`, see `datasets.streams.lanes`: by one reader of every rank, or by
    `readers` that share the shards, each in a thread beside the consumer. Workers get items, and
    decode those of their own batches.

    Args:
        source: Shards of records.
        decode: Record to sample; its `RecordError` makes a bad sample.
        transform: Changes the sample, driven by the position's rng alone.
        seed: The run's seed.
        keys: Fields renamed, picked or dropped before decoding, see `DecodeStage`.
        lanes: Shards that each reader reads side by side.
        readers: Readers that the shards are dealt to.
        shuffle: The shards are in another order in every epoch.
        shuffle_window: Records of a lane that are shuffled together; 0: none.
        keep: Which keys belong to the split, with a ``repr`` that tells it; None: all.

    Attributes:
        class_names: Names of the classes by label, or None.
        reopens: The source can be read again: in another epoch, on another rank, to resume.
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
        if not 1 <= lanes <= _MOST_LANES:
            raise ValueError(f"dataset.lanes: got {lanes}, expected 1 to {_MOST_LANES:,}")
        self.source = source
        self.lanes = lanes
        self.shuffle = shuffle
        self.shuffle_window = shuffle_window
        self.seed = seed
        knows = capabilities_of(source, SourceCapabilities)
        changes = capabilities_of(transform, TransformCapabilities)
        defer = Decoder.of(decode).defer
        self.class_names = knows.class_names
        self.reopens = source.reopens
        self._goes_on = knows.goes_on
        self.global_random = changes.global_random
        self.readers = readers
        self._keep = keep
        self._counts: dict[Any, int] = dict(knows.counts)
        deferred = defer if defer is not None and changes.crops_first else decode
        self._decode = DecodeStage(deferred, keys=keys, storage=str(source))
        self._transform = TransformStage(transform, seed=seed, storage=str(source))

    def __str__(self) -> str:
        return str(self.source)

    def open(self, epoch: int, start: int, reader: int = 0) -> Iterator[Any]:
        """Items of a reader in the epoch from the `start`-th on, read ahead of whoever takes them.

        Raises:
            ValueError: The source cannot be opened again, and would have to be.
        """
        if not self.reopens and not self._goes_on and (epoch or start):
            what = f"at item {start} of epoch {epoch}" if start else f"for epoch {epoch}"
            raise ValueError(
                f"{self.source}: cannot be opened again, {what}: it is read once, from its "
                f"beginning; set trainer.max_epochs=1, or put the data into files to repeat or "
                f"resume it"
            )
        return read_ahead(lambda: self._read(epoch, start, reader))

    def _read(self, epoch: int, start: int, reader: int) -> Iterator[Any]:
        """Items of a reader from the `start`-th on; closes what it opened."""
        lanes = self._lanes(epoch, reader)
        with ExitStack() as stack:
            stack.callback(close_all, lanes)
            items = read_lanes(lanes, start)
            if start:
                self._tell(lanes, epoch, start)
            yield from items

    def _lanes(self, epoch: int, reader: int) -> list[Lane]:
        shards = self.source.shards(epoch)
        if self.shuffle and len(shards) > 1:
            order = permute(np.arange(len(shards)), length=len(shards), seed=self.seed, epoch=epoch)
            shards = [shards[row] for row in order.tolist()]
        # How many messages a queue had in an epoch says nothing of the next one.
        counts = {} if self._goes_on else self._counts
        readers = self.readers
        shards = shards[reader::readers]
        return [
            Lane(
                ShardRecords(self.source, shards[n :: self.lanes], keep=self._keep, counts=counts),
                number=reader * self.lanes + n,
                lanes=readers * self.lanes,
                window=self.shuffle_window,
                seed=self.seed,
                epoch=epoch,
            )
            for n in range(min(self.lanes, len(shards)))
        ]

    def _tell(self, lanes: Sequence[Lane], epoch: int, start: int) -> None:
        passed = sum(lane.records.passed for lane in lanes)
        unopened = sum(lane.records.unopened for lane in lanes)
        log.info(
            "%s: goes on at record %d of epoch %d: %s records passed over%s",
            self.source, start, epoch, f"{passed:,}",
            f", {unopened:,} more in shards that need not be opened" if unopened else "",
        )  # fmt: skip

    @property
    def row_shape(self) -> tuple[int, int, int] | None:  # type: ignore[override]
        """The shape of the last uint8 image, likely that of the next ones; None before."""
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
        """Hash of what is known of the data without reading it, and of which part this is."""
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
    """Shards that are read in order: pipes, sockets, archives, generators.

    Args:
        source: How to open the source.
        decode: Record to sample.
        lanes: Shards that are read side by side; part of what the order of an epoch is.
        readers: Readers that the shards are dealt to, each with as many rows of every batch, so
            that of W ranks each reads 1/W: a multiple of W. Part of the order, as `lanes` are.
            With 1, every rank reads all and keeps its rows.
        shuffle: Training reads the shards in another order in every epoch.
        shuffle_window: Training shuffles so many records of a lane together; 0: none.
        val_fraction: Share of the records that validate, where the data has no split. A source
            that can be read only once trains on all of it, and nothing validates.
        val_path: Where the validation part lies, if not beside or inside of the training part.
        test_path: Where the test part lies, if not beside those.
        max_record_bytes: A record that takes more bytes is bad, and is not read.
        retry_s: Seconds for which remote reads are retried while a server fails or is away.
        keys: New field names by field name; null drops, ``"*": null`` drops all others.
        transform: The augmentation of this split.
        seed: The run's seed.
        split: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: The source cannot be opened.
    """
    from penstock.datasets.streams.sources import open_split

    if isinstance(decode, FittedDecoder) and decode.statistics is None:
        raise ValueError(
            "dataset.decode needs figures of the whole training part, and a stream is read once, "
            "in order; give those of a run with dataset.decode.statistics=<run>/table.json, or "
            "choose dataset=parquet or csv"
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
