"""The lazy dataset: records are read, decoded and transformed when a batch asks for them."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from penstock.core.contracts import (
    Allocate,
    Annotations,
    ColumnStorage,
    DatasetCapabilities,
    Decoder,
    DecoderCapabilities,
    Gather,
    Index,
    Sampler,
    Storage,
    StorageCapabilities,
    Transform,
    TransformCapabilities,
    capabilities_of,
)
from penstock.core.registry import register
from penstock.core.sample import MAX_RECORD_BYTES, BadSample, Record, Sample, TextColumn
from penstock.core.stage_times import StageTimes
from penstock.datasets.caches.disk import open_disk_cache
from penstock.datasets.files.access import is_url
from penstock.datasets.partners import PartnerStage
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.sample_stages import DecodeStage, TransformStage

if TYPE_CHECKING:
    from penstock.datasets.records.splits import Split, StorageRecipe

    Int64Array = NDArray[np.int64]

_PIXELS = ("image", "mask")
_PLACES = {"boxes", "keypoints"}


class MapDataset:
    """Positions to samples over any storage; safe to call from several threads.

    What its parts can do besides is read here, once. A subclass that overrides `fetch`, `read` or
    `finish` is asked for nothing that would pass its own code by, unless it declares
    `capabilities` of its own.

    Args:
        storage: Where the records lie.
        decode: Record to sample; a `RecordError` makes a bad sample. One that can `defer` is
            asked to where the transform begins with a crop: then what the crop leaves out is
            not decoded, and the samples are the same.
        transform: Changes the sample, driven by the position's rng alone.
        seed: The run's seed.
        keys: Fields renamed, picked or dropped before decoding, see `DecodeStage`.

    Attributes:
        storage: Where the records lie.
        index: The metadata of the records.
    """

    _fetches = _makes_samples = _makes_columns = False  # in a way of a subclass's own

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls).keys()
        cls._fetches |= "fetch" in own
        cls._makes_columns |= "fetch_columns" in own
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
        stores = capabilities_of(storage, StorageCapabilities)
        decodes = capabilities_of(decode, DecoderCapabilities)
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
        if stores.columns and changes.unchanged and (decodes.unchanged or decodes.columns):
            self._columns = ColumnStage(stores, self._decode, decodes)
        self._global_random = changes.global_random
        self._table = decodes.fitted

    @property
    def capabilities(self) -> DatasetCapabilities:
        """Tell what it can do beside `fetch`."""
        columns = self._columns
        if columns is not None and (self._makes_samples or not columns.possible):
            columns = None
        return DatasetCapabilities(
            staged=None if self._fetches else self,
            columns=self if columns else None,
            gathers=columns is not None and columns.gathers and not self._makes_columns,
            drawing_from=self.drawing_from if self._partners else None,
            held_bytes=self._held_bytes(),
            global_random=self._global_random,
            table=self._table,
        )

    def __len__(self) -> int:
        return len(self.storage)

    @property
    def index(self) -> Index:
        """The metadata of the records."""
        return self.storage.index

    def fingerprint(self) -> str:
        """The storage's: what the data is, wherever it lies."""
        return self.storage.fingerprint()

    @property
    def row_shape(self) -> tuple[int, int, int] | None:
        """The shape of the last uint8 image, likely that of the next ones; None before."""
        return self._transform.row_shape

    def drawing_from(self, sampler: Sampler) -> Self:
        """The same data, whose transform gets other samples as `sampler` places them."""
        assert self._partners is not None, "nothing is drawn"
        bound = copy.copy(self)
        bound._partners = self._partners.drawing_from(sampler)
        return bound

    def fetch(
        self, indices: Int64Array, positions: Int64Array, epoch: int
    ) -> list[Sample | BadSample]:
        """Read, decode and transform, in one batched read.

        Args:
            indices: int64 [n], records.
            positions: int64 [n], the positions that they stand at.
            epoch: The epoch.

        Raises:
            RuntimeError: A transform failed, see `TransformStage`.
        """
        return self.finish(self.read(indices, positions, epoch), positions, epoch)

    def read(self, indices: Int64Array, positions: Int64Array, epoch: int) -> Sequence[Any]:
        """Read what lies at `indices`, with the partners that stand beside `positions`."""
        if self._partners is None:
            return self._lying_at(indices)
        return self._partners.read(self._lying_at, indices, positions, epoch)

    def _lying_at(self, indices: Int64Array) -> Sequence[Any]:
        """Read what `_decode` takes, for each of `indices`, int64 [n]."""
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
        """Decode and transform what `read` gave; see `core.contracts.StagedDataset`."""
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
        gather: Callable[..., NDArray[Any]] | None = None,
    ) -> dict[str, Any] | None:
        """Take a batch, one take per field; see `core.contracts.ColumnDataset`."""
        assert self._columns is not None, "samples are made one by one"
        if gather is not None:
            gather = partial(gather, positions, epoch)
        columns = self._columns(indices, allocate, gather)
        if columns is None:
            return None
        keys = self.index.key_column(indices)
        return {**columns, "index": indices, "key": keys, "position": positions}

    def _held_bytes(self) -> Callable[[Int64Array], NDArray[Any] | None] | None:
        """Says how much memory records take: the storage, or the index's ``size_bytes``."""
        held = capabilities_of(self.storage, StorageCapabilities).held_bytes
        if held is None and "size_bytes" in self.index.columns:
            return partial(self.index.values, "size_bytes")
        return held


class ColumnStage:
    """Takes records as columns that are what reading and decoding one by one gives.

    Args:
        stores: What the storage can do: it gives columns.
        decode: The decoding, for its renaming of fields.
        decodes: What the decoder can do: it decodes columns, or leaves all unchanged.
    """

    def __init__(
        self, stores: StorageCapabilities, decode: DecodeStage, decodes: DecoderCapabilities
    ) -> None:
        assert stores.columns is not None
        self._storage: ColumnStorage = stores.columns
        self._gathering = stores.gathering
        self._decode = decode
        self._decode_columns = None if decodes.unchanged else decodes.columns
        self._known: dict[str, str] | None = None

    def __call__(
        self, indices: Int64Array, allocate: Allocate | None, gather: Gather | None = None
    ) -> dict[str, Any] | None:
        """Take columns of a batch; `gather` gives those of images and masks, if any."""
        names = self._names
        wanted = set(names.values())
        if gather is None:
            taken = self._storage.take(indices, wanted, allocate=allocate)
        else:
            assert self._gathering is not None
            gathers = {names[field]: gather for field in _PIXELS if field in names}
            taken = self._gathering.take(indices, wanted, allocate=allocate, gather=gathers)
        if taken is None:
            return None
        fields: dict[str, Any] | None = {new: taken[name] for new, name in names.items()}
        if self._decode_columns is not None:
            fields = self._decode_columns(fields or {})
        return fields and {name: _listed(values) for name, values in fields.items()}

    @property
    def possible(self) -> bool:
        """Whether batches can be made so at all."""
        return bool(self._names)

    @property
    def gathers(self) -> bool:
        """Whether images and masks are rows of arrays, unchanged, beside nothing that moves too."""
        names = self._names.keys()
        plain = self._decode_columns is None and "image" in names and not _PLACES & names
        return plain and self._gathering is not None

    @property
    def _names(self) -> dict[str, str]:
        """Fields of the storage by the names that they get; empty where there are no columns."""
        if self._known is None:
            names = self._renamed()
            # One that has to look first, or to prepare, does so here, before workers are started.
            nothing = np.zeros(0, np.int64)
            can = names and self._storage.take(nothing, set(names.values())) is not None
            self._known = names if can else {}
        return self._known

    def _renamed(self) -> dict[str, str]:
        fields = {name: name for name in self._storage.fields}
        try:
            return self._decode.renamed(Record(0, "", fields))
        except ValueError:  # a record by itself says better what is wrong
            return {}


def _listed(values: Any) -> Any:
    """Return texts as a list, with None for a missing one, and numbers as they are."""
    return values.tolist() if isinstance(values, TextColumn) else values


def _is_far(storage: Storage) -> bool:
    """Whether records are read from a URL, and a run knows of each whether it has changed."""
    while (inner := capabilities_of(storage, StorageCapabilities).wraps) is not None:
        storage = inner
    if not isinstance(storage, IndexedStorage):
        return False
    if capabilities_of(storage, StorageCapabilities).reads_copies:
        return False
    return storage.reads_urls and storage.marks_records and is_url(storage.path)


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
    """Records decoded when they are needed.

    Args:
        storage: How to open the storage.
        decode: Record to sample.
        cache: Wraps the storage; is told `decode` and `keys`. Null: data behind a URL is kept on
            disk once it is read, and no other.
        annotations: Label files beside the data: boxes, masks, keypoints.
        val_fraction: Share of the records that validate, where the data has no split.
        val_path: Where the validation part lies, if not beside or inside of the training part.
        test_path: Where the test part lies, if not beside those.
        max_record_bytes: A record that takes more bytes is bad, and is not read.
        retry_s: Seconds for which remote reads are retried while a server fails or is away.
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
    if cache is None and _is_far(opened):
        cache = open_disk_cache
    if cache is not None:
        opened = cache(storage=opened, decode=decode, keys=keys)
    return MapDataset(opened, decode=decode, transform=transform, seed=seed, keys=keys)
