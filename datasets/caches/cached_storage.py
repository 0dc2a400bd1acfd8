"""A storage that caches the records of another storage."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Decoder, Storage, abilities_of
from penstock.core.record_codec import UncacheableError, pack_record, unpack_record
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.core.stage_times import traffic
from penstock.datasets.caches.record_file import RecordFile
from penstock.datasets.records.views import Wrapper

_REST = "*"


class CachedStorage(Wrapper):
    """Records of a storage, cached in a store, except bad ones and those that cannot be packed.

    `prepare` decodes the image of a record before the record is cached.
    """

    def __init__(
        self, base: Storage, store: RecordFile, *, prepare: WholeImages | None = None
    ) -> None:
        super().__init__(base)
        self.store = store
        self._prepare = prepare

    def held_bytes(self, indices: NDArray[np.int64]) -> None:
        """Return None: a cached record may be decoded."""

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records; one read of the storage returns all that are not cached."""
        indices = np.asarray(indices, np.int64)
        if indices.size and not 0 <= indices.min() <= indices.max() < len(self):
            return self.base.read(indices)  # raises
        numbers = indices.tolist()
        found: list[Any] = [
            payload and Record(index, *unpack_record(payload))
            for index, payload in zip(numbers, self.store.get_all(numbers), strict=True)
        ]
        missed = [row for row, record in enumerate(found) if record is None]
        mine, kept = traffic(), []
        for row, record in zip(
            missed, self.base.read(indices[missed]) if missed else [], strict=True
        ):
            if isinstance(record, Record) and self.store.wants_more:
                start = time.perf_counter()
                record = self._prepare(record) if self._prepare is not None else record
                mine.decode_s += time.perf_counter() - start
                with contextlib.suppress(UncacheableError):
                    kept.append((record.index, pack_record(record.key, record.fields)))
            found[row] = record
        if kept:
            self.store.put_all(kept)
        mine.hits += len(found) - len(missed)
        mine.misses += len(missed)
        return found


class WholeImages:
    """Decodes the image field of a record, which decoders then pass on or crop."""

    def __init__(self, decode: Decoder | None, keys: Mapping[str, str | None] | None) -> None:
        whole_image = abilities_of(decode, Decoder).whole_image
        if whole_image is None:
            raise ValueError(
                f"dataset.cache.what: decoded given, but {type(decode).__name__} does not decode "
                f"whole images; use dataset.cache.what=encoded or dataset/decode=image"
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
        pixels.flags.writeable = False  # a cache returns copies of writable arrays
        return replace(record, fields={**record.fields, self.field: pixels})

    @property
    def recipe(self) -> list[str]:
        """Return the settings and versions that the pixels depend on."""
        decoder = type(self._decode).__qualname__, sorted(vars(self._decode).items()), self.field
        return [repr(decoder), version("simplejpeg"), version("opencv-python-headless")]


def _image_field(keys: dict[str, str | None]) -> str | None:
    """Return the field that is ``image`` after renaming, or None."""
    unnamed = None if "image" in keys or _REST in keys else "image"
    return next((name for name, new_name in keys.items() if new_name == "image"), unnamed)
