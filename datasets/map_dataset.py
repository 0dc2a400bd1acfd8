"""Read, decode and transform records when a batch needs them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
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
    Sampler,
    Storage,
    Transform,
    abilities_of,
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


_EXACT = 1 << 24
"""Integers up to this one are exact in float32."""


class MapDataset(Dataset):
    """A dataset over any storage; safe to call from several threads.

    A subclass that overrides `fetch` sets ``staged = False``; if it overrides `fetch`, `read` or
    `finish`, it sets ``columnar = False``.
    """

    staged = True

    def __init__(
        self,
        storage: Storage,
        *,
        decode: Decoder,
        transform: Transform,
        seed: int,
        keys: Mapping[str, str | None] | None = None,
    ) -> None:
        decodes = abilities_of(decode, Decoder)
        changes = abilities_of(transform, Transform)
        self.storage, self.index, self.held_bytes = storage, storage.index, storage.held_bytes
        deferred = decodes.defer if decodes.defer and changes.crops_first else decode
        self._decode = DecodeStage(deferred, keys=keys, storage=str(storage))
        self._decode_partner = DecodeStage(decode, keys=keys, storage=str(storage))
        self._transform = TransformStage(transform, seed=seed, storage=str(storage))
        renamed = keys or {}
        self._nullable = {renamed.get(name) or name: name for name in storage.nullable}
        counts = changes.partner_counts
        self._partners = None if counts is None else PartnerStage(counts, seed, len(storage))
        self._decode_columns = None if decodes.unchanged else decodes.columns
        self._takes = changes.unchanged and (decodes.unchanged or decodes.columns is not None)
        self.draws_partners = self._partners is not None
        self.global_random = changes.global_random
        self.table = decode if isinstance(decode, FittedDecoder) else None

    @property
    def columnar(self) -> bool:  # type: ignore[override]
        return self._takes and bool(self._column_names)

    @cached_property
    def _column_names(self) -> dict[str, str]:
        """Storage fields by new name; empty without column support."""
        fields = {name: name for name in self.storage.column_fields}
        try:
            names = self._decode.renamed(Record(0, "", fields))
        except ValueError:  # reading a record gives a better message
            return {}
        # An empty take lets the storage inspect or prepare its data before workers start.
        can = names and self.storage.take(np.zeros(0, np.int64), set(names.values())) is not None
        return names if can else {}

    def __len__(self) -> int:
        return len(self.storage)

    def fingerprint(self) -> str:
        return self.storage.fingerprint()

    @property
    def row_shape(self) -> tuple[int, int, int] | None:  # type: ignore[override]
        return self._transform.row_shape

    def drawing_from(self, sampler: Sampler) -> Self:
        if self._partners is None:
            return self
        bound = copy.copy(self)
        bound._partners = self._partners.drawing_from(sampler)
        return bound

    def fetch(
        self, indices: Int64Array, positions: Int64Array, epoch: int
    ) -> list[Sample | BadSample]:
        return self.finish(self.read(indices, positions, epoch), positions, epoch)

    def read(self, indices: Int64Array, positions: Int64Array, epoch: int) -> Sequence[Any]:
        if self._partners is None:
            return self.storage.read(indices)
        return self._partners.read(self.storage.read, indices, positions, epoch)

    def finish(
        self,
        records: Sequence[Any],
        positions: Int64Array,
        epoch: int,
        *,
        rows: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
    ) -> list[Sample | BadSample]:
        times = StageTimes() if times is None else times
        partners = None
        if self._partners is not None:
            partners = self._partners.each(
                records, positions, epoch, self.storage.read, self._decode_partner, times
            )
            records = [group.record for group in records]
        decoded = self._decode.each(records, times)
        samples = self._transform.each(
            decoded, positions, epoch, rows=rows, times=times, partners=partners
        )
        for name in self._nullable:
            given = [sample.get(name) for sample in samples if isinstance(sample, dict)]
            self._refuse_rounded(name, [value for value in given if isinstance(value, float)])
        return samples

    def _refuse_rounded(self, name: str, values: Any) -> None:
        """Raise ValueError for integers of a column with nulls that a batch would round."""
        if large := [value for value in values if abs(value) > _EXACT]:
            field = self._nullable[name]
            raise ValueError(
                f"{self.storage}: {field!r} is {large[0]:.0f} and has nulls elsewhere, so a batch "
                f"would round it to float32; drop it with dataset.keys={{{field}:null}}, fill in "
                f"the nulls, or store it as text"
            )

    def fetch_columns(
        self,
        indices: Int64Array,
        positions: Int64Array,
        epoch: int,
        *,
        allocate: Allocate | None = None,
    ) -> dict[str, Any] | None:
        names = self._column_names
        taken = self.storage.take(indices, set(names.values()), allocate=allocate)
        if taken is None:
            return None
        fields: dict[str, Any] | None = {new: taken[name] for new, name in names.items()}
        if self._decode_columns is not None:
            fields = self._decode_columns(fields or {})
        if fields is None:
            return None
        for name in self._nullable.keys() & fields.keys():
            self._refuse_rounded(name, fields[name].tolist())
        lists = {name: v.tolist() for name, v in fields.items() if isinstance(v, TextColumn)}
        keys = self.index.key_column(indices)
        return {**fields, **lists, "index": indices, "key": keys, "position": positions}


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
    """
    from penstock.datasets.fitting import fitted
    from penstock.datasets.records.splits import open_split

    storage = replace(
        storage, val_path=val_path, test_path=test_path,
        max_record_bytes=max_record_bytes, retry_s=retry_s,
    )  # fmt: skip
    opened = open_split(storage, split=split, val_fraction=val_fraction, annotations=annotations)
    train = partial(
        open_split, storage, split="train", val_fraction=val_fraction, annotations=annotations
    )
    decode = fitted(decode, train if split != "train" else lambda: opened, keys=keys)
    if cache is None and opened.is_remote:
        cache = open_disk_cache
    if cache is not None:
        opened = cache(storage=opened, decode=decode, keys=keys)
    return MapDataset(opened, decode=decode, transform=transform, seed=seed, keys=keys)
