"""The eager dataset: everything is decoded once, into memory that all workers share."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from datasets.available_memory import available_bytes
from datasets.packed_samples import pack, unpack
from datasets.protocols import Annotations, Decoder, Storage, Transform
from datasets.record_dataset import RecordDataset, open_records
from datasets.sample import BadRecord, Sample
from datasets.shared_bytes import SharedBytes
from datasets.stages import DecodeStage
from pipeline.cores import usable_cores
from pipeline.registry import register

if TYPE_CHECKING:
    from datasets.splits import StorageRecipe

_CHUNK = 32  # records per read and per piece of work for a thread
_PROBES = 32  # records decoded to estimate the size of all


class EagerDataset(RecordDataset):
    """Positions to samples that were decoded when the dataset was made.

    The samples are those of a `MapDataset` over the same storage, bit for bit, bad ones
    included. A decoded sample is held as a pickle whose arrays lie beside it (PEP 574), one
    after the other in one `SharedBytes`; a fetch copies the arrays, so that a transform may
    write to them. Workers share the memory under every start method. Ranks do not: each
    process that makes the dataset holds it once.

    Args:
        storage: Where the records lie.
        decode: Record to sample, called from several threads.
        transform: Changes the sample, driven by the position's rng alone.
        seed: The run's seed.
        keys: Fields renamed, picked or dropped before decoding, see `DecodeStage`.

    Raises:
        ValueError: The decoded samples would not fit into memory.
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
        super().__init__(
            storage,
            decoder=decode,
            transform=transform,
            seed=seed,
            decode=None,
            decode_partner=_as_it_is,
        )
        stage = DecodeStage(decode, keys=keys, storage=str(storage))
        check_fits(storage, stage)
        self._memory = SharedBytes()
        ends = np.zeros(len(storage) + 1, np.int64)
        for row, parts in enumerate(_report(_decode_all(storage, stage), storage)):
            for part in parts:
                self._memory.append(part)
            ends[row + 1] = self._memory.size_bytes
        # The offsets lie behind the samples, so that no worker has a copy of its own.
        self._memory.append(bytes(-self._memory.size_bytes % ends.itemsize))
        self._ends_at = self._memory.size_bytes
        self._memory.append(ends.tobytes())

    @property
    def size_bytes(self) -> int:
        """Memory that the decoded samples take, once for all workers."""
        return self._memory.size_bytes

    def _lying_at(self, indices: NDArray[np.int64]) -> list[Sample | BadRecord]:
        """Decoded samples, copied out of the shared memory."""
        memory = self._memory.view()
        ends = memory[self._ends_at :].view(np.int64)
        return [unpack(memory[ends[index] : ends[index + 1]]) for index in indices.tolist()]


@register("dataset", "eager")
def open_eager(
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
) -> EagerDataset:
    """Everything decoded once, in memory that workers share.

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
        ValueError: The storage cannot be opened or split, or memory does not suffice.
    """
    opened, decode = open_records(
        storage,
        decode=decode,
        cache=cache,
        annotations=annotations,
        val_fraction=val_fraction,
        keys=keys,
        split=split,
    )
    return EagerDataset(opened, decode=decode, transform=transform, seed=seed, keys=keys)


def check_fits(
    storage: Storage,
    stage: DecodeStage,
    *,
    available: Callable[[], int | None] = available_bytes,
) -> None:
    """Refuse what would not fit, before hours are spent on decoding it.

    Args:
        storage: The records.
        stage: Decodes them; a few, evenly spaced, give the estimate.
        available: How much memory there is, in bytes; None: unknown, nothing is refused.

    Raises:
        ValueError: The estimate is above nine tenths of what is available.
    """
    limit = available()
    count = len(storage)
    if limit is None or count == 0:
        return
    rows = np.unique(np.linspace(0, count - 1, _PROBES).astype(np.int64))
    sizes = [
        sum(memoryview(part).nbytes for part in pack(stage(record)))
        for record in storage.read(rows)
    ]
    needed = sum(sizes) / len(sizes) * count
    if needed > 0.9 * limit:  # the rest is for the model, the batches and the estimate's error
        raise ValueError(
            f"dataset eager: {count:,} records of {storage} need about {needed / 1e9:,.1f} GB "
            f"decoded, {limit / 1e9:,.1f} GB of memory are available; use a dataset of type map "
            f"(dataset=image_folder or dataset=lmdb), or fewer or smaller records"
        )


def _as_it_is(sample: Sample | BadRecord) -> Sample | BadRecord:
    return sample


def _decode_all(storage: Storage, stage: DecodeStage) -> Iterator[list[bytes | memoryview]]:
    """Packed samples of all records in order, decoded by as many threads as there are cores."""
    num_threads = usable_cores()
    with ThreadPoolExecutor(num_threads, "penstock-decode") as pool:
        waiting: deque[Future[list[list[bytes | memoryview]]]] = deque()
        for start in range(0, len(storage), _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, len(storage)), dtype=np.int64)
            # Read here and not in the threads: one reader reads in order.
            records = storage.read(rows)
            waiting.append(
                pool.submit(lambda chunk: [pack(stage(record)) for record in chunk], records)
            )
            if len(waiting) > 2 * num_threads:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _report(
    samples: Iterator[list[bytes | memoryview]], storage: Storage
) -> Iterator[list[bytes | memoryview]]:
    """Say how far it is, once it takes more than a second; on a terminal, in one line."""
    began = said = time.monotonic()
    line_end, pause_s = ("\r", 0.5) if sys.stderr.isatty() else ("\n", 10.0)
    count, spoke, size_bytes = len(storage), False, 0
    for number, parts in enumerate(samples):
        size_bytes += sum(memoryview(part).nbytes for part in parts)
        now = time.monotonic()
        if now - began > 1 and (not spoke or now - said > pause_s):
            said, spoke = now, True
            sys.stderr.write(
                f"decoding {storage}: {number:,} of {count:,}, {size_bytes / 1e6:,.0f} MB{line_end}"
            )
            sys.stderr.flush()
        yield parts
    if spoke:
        sys.stderr.write(
            f"decoded {storage}: {count:,} in {time.monotonic() - began:.1f} s, "
            f"{size_bytes / 1e6:,.0f} MB in memory\n"
        )
