"""A storage that keeps what it reads, and is a storage like the one that it reads from."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import (
    Decoder,
    Index,
    Ranks,
    Storage,
    StorageCapabilities,
    capabilities_of,
)
from penstock.core.record_codec import Entry, UncacheableError, pack_record, unpack_record
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.core.stage_times import CountedRecords

_log = logging.getLogger(__name__)
_REST = "*"


class Store(Protocol):
    """Holds entries by record number, for all threads and processes that share it."""

    @property
    def wants_more(self) -> bool:
        """Whether another entry may be admitted."""

    @property
    def room_bytes(self) -> int:
        """Bytes that entries may take in all."""

    @property
    def damaged(self) -> int:
        """Number of entries that this process found damaged, and dropped."""

    def get_all(self, indices: Sequence[int]) -> Sequence[Any]:
        """The entries of records, bytes or uint8 [size_bytes]; None where there is none."""

    def put_all(self, entries: Sequence[tuple[int, Entry]]) -> None:
        """Keep entries by record number, as far as there is room."""


class CachedStorage:
    """Records of a storage, from a store where that has them.

    Nothing is evicted: where each record is used once an epoch, any part that is kept hits most.
    Where uses are uneven, and a sampler knows them, those are kept that will be used most, as many
    as have room by the size of those before.

    Bad records are not kept, nor what cannot be packed. Records are what the storage gives, but
    for an image that was decoded to be kept.

    Args:
        base: The storage.
        store: Keeps entries.
        prepare: Changes records before they are kept.
    """

    def __init__(self, base: Storage, store: Store, *, prepare: WholeImages | None = None) -> None:
        self.base = base
        self.store = store
        self._prepare = prepare
        self._has_warned = False
        self._ranks: Ranks | None = None
        self._kept = self._kept_bytes = 0

    def __str__(self) -> str:
        return str(self.base)

    def __len__(self) -> int:
        return len(self.base)

    @property
    def index(self) -> Index:
        """The index of the storage."""
        return self.base.index

    @property
    def capabilities(self) -> StorageCapabilities:
        """It gives the storage's columns, which are not kept: they are one copy as it is."""
        base = capabilities_of(self.base, StorageCapabilities)
        return StorageCapabilities(
            columns=base.columns,
            shards=base.shards,
            keep_most_used=self._keep,
            wraps=self.base,
        )

    def _keep(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def _admits(self, index: int) -> bool:
        """Whether a record is among those that are used most, of which so many have room."""
        if self._ranks is None or not self._kept:
            return self.store.wants_more
        most = self.store.room_bytes * self._kept / self._kept_bytes
        return self.store.wants_more and bool(self._ranks.array[index] < most)

    def fingerprint(self) -> str:
        """The storage's."""
        return self.base.fingerprint()

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records, those that are not held from the storage, in one batched read."""
        indices = np.asarray(indices, np.int64)
        if indices.size and not 0 <= indices.min() <= indices.max() < len(self):
            return self.base.read(indices)  # which says what is wrong
        store, numbers = self.store, indices.tolist()
        damaged, decode_s = store.damaged, 0.0
        found: list[Any] = list(store.get_all(numbers))
        missed = [number for number, payload in enumerate(found) if payload is None]
        found = [
            payload if payload is None else Record(index, *unpack_record(payload))
            for index, payload in zip(numbers, found, strict=True)
        ]
        kept = []
        read: Sequence[Any] = self.base.read(indices[missed]) if missed else []
        for number, record in zip(missed, read, strict=True):
            if isinstance(record, Record) and self._admits(record.index):
                start = time.perf_counter()
                record = self._prepare(record) if self._prepare is not None else record
                decode_s += time.perf_counter() - start
                if (entry := self._packed(record)) is not None:
                    kept.append((record.index, entry))
                    # Threads that meet may lose one: what is wanted is the mean.
                    self._kept, self._kept_bytes = (
                        self._kept + 1, self._kept_bytes + entry.size_bytes,
                    )  # fmt: skip
            found[number] = record
        if kept:
            store.put_all(kept)
        counted = CountedRecords(
            found,
            hits=len(found) - len(missed),
            misses=len(missed),
            damaged=store.damaged - damaged,
            decode_s=decode_s,
        )
        return counted if not missed else CountedRecords.of(found, [counted, read])

    def _packed(self, record: Record) -> Entry | None:
        """A record as it can be kept; None if it cannot."""
        fields = dict(record.fields)
        name = self._prepare.field if self._prepare is not None else None
        if name is not None and isinstance(image := fields.get(name), np.ndarray):
            # Read-only, so that pixels need not be copied when they are hit.
            fields[name] = image = image.view()
            image.flags.writeable = False
        try:
            return pack_record(record.key, fields)
        except UncacheableError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("dataset.cache: %s: %r is not kept: %s", self, record.key, error)
            return None


def gives_exact_pixels(decode: Decoder | None) -> bool:
    """Whether a decoder makes the same pixels of an image whatever else the record holds."""
    return Decoder.of(decode).whole_image is not None


class WholeImages:
    """Decodes the field of a record that the decoder will take as its image, and leaves the rest.

    What comes out is still a record: decoders pass on pixels, crops of them too.

    Args:
        decode: The decoder of the data set.
        keys: Fields renamed, picked or dropped before decoding.

    Raises:
        ValueError: The decoder's pixels are not those of the whole image.
    """

    def __init__(self, decode: Decoder | None, keys: Mapping[str, str | None] | None) -> None:
        whole_image = Decoder.of(decode).whole_image
        if whole_image is None:
            raise ValueError(
                f"dataset.cache.what: decoded given, but what {type(decode).__name__} decodes "
                f"depends on more than the image, or is not known to be pixels; use "
                f"dataset.cache.what=encoded or dataset/decode=image"
            )
        self._decode: Any = decode
        self._whole_image = whole_image
        self.field = _image_field(dict(keys or {}))

    def __call__(self, record: Record) -> Record:
        """The record, its image uint8 [H, W, C]; as it is if it is pixels, or damaged."""
        image = None if self.field is None else record.fields.get(self.field)
        if image is None or isinstance(image, np.ndarray):
            return record
        try:
            pixels = self._whole_image(image)
        except RecordError:
            # A crop may leave the damage out: that is for the decoder to find, as without a cache.
            return record
        assert self.field is not None
        return replace(record, fields={**record.fields, self.field: pixels})

    @property
    def recipe(self) -> list[str]:
        """All that its pixels depend on, beside the file."""
        from importlib.metadata import PackageNotFoundError, version

        settings = [f"{name}={value!r}" for name, value in sorted(vars(self._decode).items())]
        libraries = []
        for name in ("simplejpeg", "opencv-python-headless"):
            try:
                libraries.append(f"{name} {version(name)}")
            except PackageNotFoundError:
                continue
        return [type(self._decode).__qualname__, str(self.field), *settings, *libraries]


def _image_field(keys: dict[str, str | None]) -> str | None:
    """The field that is called ``image`` after renaming; None: no field is."""
    for name, new_name in keys.items():
        if new_name == "image":
            return name
    return None if "image" in keys or _REST in keys else "image"
