"""Decode all records once, into memory shared by workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.contracts import Decoder, Storage, abilities_of
from penstock.core.processes import usable_cores
from penstock.core.registry import register
from penstock.datasets.caches.cached_storage import CachedStorage, WholeImages
from penstock.datasets.caches.ram import MemoryStore, memory_limit
from penstock.datasets.map_dataset import MapDataset, open_map

if TYPE_CHECKING:
    from penstock.datasets.records.splits import StorageRecipe

_log = logging.getLogger(__name__)

_CHUNK = 32


@register("dataset", "eager")
@wraps(open_map, assigned=())  # same arguments
def open_eager(
    storage: StorageRecipe, *, cache: Callable[..., Storage] | None = None, **given: Any
) -> MapDataset:
    """Decode everything once, in memory that workers share.

    Args:
        storage: How to open the storage.
        cache: Wraps the storage; also receives `decode` and `keys`.
        given: As for ``dataset=map``.
    """

    def held(**made: Any) -> Storage:
        return held_in_memory(**made if cache is None else {**made, "storage": cache(**made)})

    return open_map(storage, cache=held, **given)


def held_in_memory(
    storage: Storage, *, decode: Decoder, keys: Mapping[str, str | None] | None = None
) -> Storage:
    """Read all records into the RAM cache, unless the storage has columns in memory."""
    if storage.column_fields or not len(storage):
        return storage
    prepare = (
        None if abilities_of(decode, Decoder).whole_image is None else WholeImages(decode, keys)
    )
    store = MemoryStore(len(storage), memory_limit(share=0.9))
    held = CachedStorage(storage, store, prepare=prepare)
    _log.info("decoding %s records of %s into memory", f"{len(held):,}", held)
    with ThreadPoolExecutor(usable_cores(), "penstock-decode") as pool:
        chunks = np.array_split(np.arange(len(held)), -(-len(held) // _CHUNK))
        for _ in pool.map(lambda rows: len(held.read(rows)), chunks):
            pass
    if not store.wants_more:
        _log.warning("dataset eager: %s does not fit into memory; the rest is decoded later", held)
    return held
