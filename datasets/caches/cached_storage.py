"""A storage that caches the records of another storage."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Allocate, Decoder, Ranks, Storage
from penstock.core.record_codec import Entry, UncacheableError, pack_record, unpack_record
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.core.stage_times import CountedRecords
from penstock.datasets.records.wrapper import Wrapper

_log = logging.getLogger(__name__)
_REST = "*"


class Store(ABC):
    """Entries by record number, shared by threads and processes.

    Attributes:
        room_bytes: Capacity for all entries.
        damaged: Damaged entries that this process found and dropped.
        wants_more: Whether the store may admit another entry.
    """

    room_bytes: int
    damaged: int = 0
    wants_more: bool = True

    @abstractmethod
    def get_all(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return the entries of records, bytes or uint8 [size_bytes]; None for missing entries."""

    @abstractmethod
    def put_all(self, entries: Sequence[tuple[int, Entry]]) -> None:
        """Store entries by record number while there is room."""


class CachedStorage(Wrapper):
    """Records of a storage, cached in a store.

    Nothing is evicted: if each record is used once an epoch, any fixed part of the data gives the
    most hits. If a sampler draws records unevenly, the cache keeps the most used records, as
    many as fit by the mean size of the records so far.

    Bad records and records that cannot be packed are not cached. A cached record equals the
    storage's record, except for an image that `prepare` decoded.

    Args:
        store: Stores the entries.
        prepare: Decodes the image of a record before the record is cached.
    """

    def __init__(self, base: Storage, store: Store, *, prepare: WholeImages | None = None) -> None:
        super().__init__(base)
        self.store = store
        self._prepare = prepare
        self._has_warned = False
        self._ranks: Ranks | None = None
        self._kept = self._kept_bytes = 0

    @property
    def column_fields(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the fields of the storage; columns need no second copy."""
        return self.base.column_fields

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Allocate | None = None,
    ) -> dict[str, Any] | None:
        """Take columns of the storage."""
        return self.base.take(indices, fields, allocate=allocate)

    def shards(self) -> NDArray[np.int64]:
        """Return the shards of the storage."""
        return self.base.shards()

    def keep_most_used(self, ranks: Ranks) -> None:
        """Keep the records of the lowest ranks."""
        self._ranks = ranks

    def _admits(self, index: int) -> bool:
        """Return whether a record is among the most used records that fit."""
        if self._ranks is None or not self._kept:
            return self.store.wants_more
        most = self.store.room_bytes * self._kept / self._kept_bytes
        return self.store.wants_more and bool(self._ranks.array[index] < most)

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records; one read of the storage returns all that are not cached."""
        indices = np.asarray(indices, np.int64)
        if indices.size and not 0 <= indices.min() <= indices.max() < len(self):
            return self.base.read(indices)  # raises
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
                    # Concurrent threads may lose an update, which hardly changes the mean.
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
        """Pack a record; None if it cannot be packed."""
        fields = dict(record.fields)
        name = self._prepare.field if self._prepare is not None else None
        if name is not None and isinstance(image := fields.get(name), np.ndarray):
            # Read-only, so that hits share the pixels.
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
    """Return whether the decoded pixels of an image depend on that image alone."""
    return Decoder.of(decode).whole_image is not None


class WholeImages:
    """Decodes the image field of a record, which decoders then pass on or crop.

    Raises:
        ValueError: The decoder's pixels depend on more than the image.
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
        """Decode the image to uint8 [H, W, C]; pixels and damaged images stay as they are."""
        image = None if self.field is None else record.fields.get(self.field)
        if image is None or isinstance(image, np.ndarray):
            return record
        try:
            pixels = self._whole_image(image)
        except RecordError:
            # A crop may avoid the damage: the decoder decides, as without a cache.
            return record
        assert self.field is not None
        return replace(record, fields={**record.fields, self.field: pixels})

    @property
    def recipe(self) -> list[str]:
        """Return the settings and versions that the pixels depend on."""
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
    """Return the field that is ``image`` after renaming, or None."""
    for name, new_name in keys.items():
        if new_name == "image":
            return name
    return None if "image" in keys or _REST in keys else "image"
