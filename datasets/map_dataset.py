"""Read, decode and transform records when a batch needs them."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from penstock.core.contracts import (
    Allocate,
    Annotations,
    Dataset,
    Decoder,
    FittedDecoder,
    Index,
    Sampler,
    Storage,
    Transform,
    TransformCapabilities,
    capabilities_of,
)
from penstock.core.registry import register
from penstock.core.sample import MAX_RECORD_BYTES, BadSample, Record, Sample, TextColumn
from penstock.core.stage_times import StageTimes
from penstock.datasets.caches.disk import open_disk_cache
from penstock.datasets.partners import PartnerStage
from penstock.datasets.sample_stages import DecodeStage, TransformStage

if TYPE_CHECKING:
    from penstock.datasets.records.splits import Split, StorageRecipe

    Int64Array = NDArray[np.int64]


class MapDataset(Dataset):
    """A dataset over any storage; safe to call from several threads.

    If a subclass overrides `fetch`, `read` or `finish`, callers do not bypass its code. A decoder
    that can `defer` does so if the transform begins with a crop: it then skips the pixels outside
    the crop, with equal samples.

    Args:
        storage: The records.
        decode: Record to sample; its `RecordError` makes a bad sample.
        transform: Changes the sample; draws only from the position's rng.
        seed: The run's seed.
        keys: Fields renamed, picked or dropped before decoding, see `DecodeStage`.
    """

    _fetches = _makes_samples = False  # overridden by a subclass

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls).keys()
        cls._fetches |= "fetch" in own
        if {"fetch", "read", "finish"} & own:
            cls._makes_samples = "fetch_columns" not in own

    def __init__(
        self,
        storage: Storage,
        *,
        decode: Decoder,
        transform: Transform,
        seed: int,
        keys: Mapping[str, str | None] | None = None,
    ) -> None:
        decodes = Decoder.of(decode)
        changes = capabilities_of(transform, TransformCapabilities)
        self.storage = storage
        deferred = decodes.defer if decodes.defer and changes.crops_first else decode
        self._decode = DecodeStage(deferred, keys=keys, storage=str(storage))
        self._decode_partner = DecodeStage(decode, keys=keys, storage=str(storage))
        self._transform = TransformStage(transform, seed=seed, storage=str(storage))
        self._partners: PartnerStage | None = None
        if changes.partner_counts is not None:
            self._partners = PartnerStage(
                changes.partner_counts, seed=seed, num_records=len(storage)
            )
        self._columns: ColumnStage | None = None
        if changes.unchanged and (decodes.unchanged or decodes.columns):
            self._columns = ColumnStage(storage, self._decode, decodes)
        self.draws_partners = self._partners is not None
        self.global_random = changes.global_random
        self.table = decode if isinstance(decode, FittedDecoder) else None

    @property
    def staged(self) -> bool:  # type: ignore[override]
        """Return whether ``fetch`` is not overridden."""
        return not self._fetches

    @property
    def columnar(self) -> bool:  # type: ignore[override]
        """Return whether storage, decoder and transform keep batches as columns."""
        return self._columns is not None and not self._makes_samples and self._columns.possible

    def __len__(self) -> int:
        return len(self.storage)

    @property
    def index(self) -> Index:  # type: ignore[override]
        """Return the metadata of the records."""
        return self.storage.index

    def fingerprint(self) -> str:
        """Return the storage's fingerprint."""
        return self.storage.fingerprint()

    @property
    def row_shape(self) -> tuple[int, int, int] | None:  # type: ignore[override]
        """Return the shape of the last uint8 image, as a guess for the next ones; None before."""
        return self._transform.row_shape

    def drawing_from(self, sampler: Sampler) -> Self:
        """Return a copy whose partners are drawn in the order of `sampler`."""
        if self._partners is None:
            return self
        bound = copy.copy(self)
        bound._partners = self._partners.drawing_from(sampler)
        return bound

    def fetch(
        self, indices: Int64Array, positions: Int64Array, epoch: int
    ) -> list[Sample | BadSample]:
        """Read, decode and transform records, int64 [n], at positions, int64 [n], in one read."""
        return self.finish(self.read(indices, positions, epoch), positions, epoch)

    def read(self, indices: Int64Array, positions: Int64Array, epoch: int) -> Sequence[Any]:
        """Read the records at `indices`, with the partners drawn for `positions`."""
        if self._partners is None:
            return self._lying_at(indices)
        return self._partners.read(self._lying_at, indices, positions, epoch)

    def _lying_at(self, indices: Int64Array) -> Sequence[Any]:
        """Read the input of `_decode` for `indices`, int64 [n]."""
        return self.storage.read(indices)

    def finish(
        self,
        records: Sequence[Any],
        positions: Int64Array,
        epoch: int,
        *,
        rows: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
    ) -> list[Sample | BadSample]:
        """Decode and transform the result of `read`; see `core.contracts.Dataset`."""
        times = StageTimes() if times is None else times
        if self._partners is None:
            decoded = self._decode.each(records, times)
            return self._transform.each(decoded, positions, epoch, rows=rows, times=times)
        samples = []
        decoded = self._decode.each((group.record for group in records), times)
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

    def fetch_columns(
        self,
        indices: Int64Array,
        positions: Int64Array,
        epoch: int,
        *,
        allocate: Allocate | None = None,
    ) -> dict[str, Any] | None:
        """Take a batch, one take per field; see `core.contracts.Dataset`."""
        assert self._columns is not None, "samples are made one by one"
        columns = self._columns(indices, allocate)
        if columns is None:
            return None
        keys = self.index.key_column(indices)
        return {**columns, "index": indices, "key": keys, "position": positions}

    def held_bytes(self, indices: Int64Array) -> NDArray[Any] | None:
        """Return the memory of records, or None if unknown."""
        return self.storage.held_bytes(indices)


class ColumnStage:
    """Takes batches as columns, equal to reading and decoding records one by one."""

    def __init__(self, storage: Storage, decode: DecodeStage, decodes: Decoder) -> None:
        self._storage = storage
        self._decode = decode
        self._decode_columns = None if decodes.unchanged else decodes.columns
        self._known: dict[str, str] | None = None

    def __call__(self, indices: Int64Array, allocate: Allocate | None) -> dict[str, Any] | None:
        """Take columns of a batch."""
        names = self._names
        taken = self._storage.take(indices, set(names.values()), allocate=allocate)
        if taken is None:
            return None
        fields: dict[str, Any] | None = {new: taken[name] for new, name in names.items()}
        if self._decode_columns is not None:
            fields = self._decode_columns(fields or {})
        return fields and {name: _listed(values) for name, values in fields.items()}

    @property
    def possible(self) -> bool:
        """Return whether the storage supports column batches."""
        return bool(self._names)

    @property
    def _names(self) -> dict[str, str]:
        """Return storage fields by new name; empty without column support."""
        if self._known is None:
            names = self._renamed()
            # An empty take lets the storage inspect or prepare its data before workers start.
            nothing = np.zeros(0, np.int64)
            can = names and self._storage.take(nothing, set(names.values())) is not None
            self._known = names if can else {}
        return self._known

    def _renamed(self) -> dict[str, str]:
        fields = {name: name for name in self._storage.column_fields}
        try:
            return self._decode.renamed(Record(0, "", fields))
        except ValueError:  # reading a record gives a better message
            return {}


def _listed(values: Any) -> Any:
    """Return texts as a list, with None for missing ones, and numbers unchanged."""
    return values.tolist() if isinstance(values, TextColumn) else values


@register("dataset", "map")
def open_map(
    storage: StorageRecipe,
    *,
    decode: Decoder,
    cache: Callable[..., Storage] | None = None,
    annotations: Annotations | None = None,
    val_fraction: Annotated[float, Ge(0), Le(1)] = 0.2,
    val_path: str | None = None,
    test_path: str | None = None,
    max_record_bytes: Annotated[int, Ge(1)] = MAX_RECORD_BYTES,
    retry_s: Annotated[float, Ge(0)] = 60.0,
    keys: Mapping[str, str | None] | None = None,
    transform: Transform,
    seed: int,
    split: Split,
) -> MapDataset:
    """Decode records when they are needed.

    Args:
        storage: How to open the storage.
        decode: Record to sample.
        cache: Wraps the storage; also receives `decode` and `keys`. Null: cache remote data on disk
            as it is read, and no other data.
        annotations: Label files beside the data: boxes, masks, keypoints.
        val_fraction: Validation share of the records, if the data is not split.
        val_path: Path of the validation split, if not beside or inside the training split.
        test_path: Path of the test split, if not beside the others.
        max_record_bytes: Size limit; larger records are bad and are not read.
        retry_s: Seconds for which remote reads are retried while a server fails.
        keys: New field names by field name; null drops, ``"*": null`` drops all others.
        transform: The augmentation of this split.
        seed: The run's seed.
        split: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: The storage cannot be opened or split.
    """
    from penstock.datasets.fitting import fitted
    from penstock.datasets.records.splits import open_split

    storage = replace(
        storage,
        val_path=val_path,
        test_path=test_path,
        max_record_bytes=max_record_bytes,
        retry_s=retry_s,
    )
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
    if cache is None and opened.is_remote:
        cache = open_disk_cache
    if cache is not None:
        opened = cache(storage=opened, decode=decode, keys=keys)
    return MapDataset(opened, decode=decode, transform=transform, seed=seed, keys=keys)
