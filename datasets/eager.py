"""Decode all records once, into memory shared by workers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.contracts import Decoder, Storage
from penstock.core.processes import usable_cores
from penstock.core.registry import register
from penstock.datasets.caches.cached_storage import CachedStorage, WholeImages, gives_exact_pixels
from penstock.datasets.caches.ram import KeepStore, memory_limit
from penstock.datasets.map_dataset import MapDataset, open_map

if TYPE_CHECKING:
    from penstock.datasets.records.splits import StorageRecipe

_log = logging.getLogger(__name__)

_SHARE = "90%"
_CHUNK = 32
_PROBES = 32


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

    Raises:
        ValueError: The storage cannot be opened or split, or memory does not suffice.
    """

    def held(**made: Any) -> Storage:
        return held_in_memory(**made if cache is None else {**made, "storage": cache(**made)})

    return open_map(storage, cache=held, **given)


def held_in_memory(
    storage: Storage, *, decode: Decoder, keys: Mapping[str, str | None] | None = None
) -> Storage:
    """Read all records into the RAM cache, with decoded images if pixels stay equal.

    A storage whose columns are mapped or in memory is returned unchanged.
    """
    if storage.column_fields or not len(storage):
        return storage
    prepare = WholeImages(decode, keys) if gives_exact_pixels(decode) else None
    store = KeepStore(len(storage), memory_limit(_SHARE))
    held = CachedStorage(storage, store, prepare=prepare)
    _check_fits(held, store)
    _fill(held, store)
    return held


def _check_fits(held: Storage, store: KeepStore) -> None:
    """Read a few evenly spaced records to estimate the memory of all."""
    count, before = len(held), store.used_bytes
    rows = np.unique(np.linspace(0, count - 1, _PROBES).astype(np.int64))
    held.read(rows)
    needed = (store.used_bytes - before) / len(rows) * count
    limit = memory_limit(_SHARE)
    if needed > limit:
        raise ValueError(
            f"dataset eager: {count:,} records of {held} need about {needed / 1e9:,.1f} GB "
            f"decoded, {limit / 1e9:,.1f} GB of memory are available; use a dataset of type map "
            f"(dataset=image_folder or dataset=lmdb), or fewer or smaller records"
        )


def _fill(held: Storage, store: KeepStore) -> None:
    """Read all records with one thread per core; a terminal shows the progress."""
    from rich.console import Console
    from rich.progress import track

    count, began = len(held), time.monotonic()
    chunks = [np.arange(at, min(at + _CHUNK, count)) for at in range(0, count, _CHUNK)]
    shown = Console(stderr=True)
    _log.info("decoding %s records of %s into memory", f"{count:,}", held)
    with ThreadPoolExecutor(usable_cores(), "penstock-decode") as pool:
        reads = pool.map(lambda rows: len(held.read(rows)), chunks)
        for _ in track(
            reads, f"decoding {held}", len(chunks), console=shown, transient=True,
            disable=not shown.is_terminal,
        ):  # fmt: skip
            pass
    _log.info(
        "decoded %s in %.1f s, %.0f MB in memory",
        held, time.monotonic() - began, store.used_bytes / 1e6,
    )  # fmt: skip
