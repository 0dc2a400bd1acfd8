"""Records kept in memory that the workers of a loader share."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from datasets.available_memory import available_bytes
from datasets.caching.byte_limits import parse_bytes
from datasets.caching.cached_storage import cached
from datasets.caching.keep_store import KeepStore
from datasets.caching.policies import Adaptive, LeastRecentlyUsed
from datasets.caching.pool_store import PoolStore
from datasets.caching.whole_images import WholeImages
from datasets.protocols import ColumnStorage
from pipeline.registry import register

if TYPE_CHECKING:
    from datasets.protocols import Decoder, Storage

_log = logging.getLogger(__name__)

_PAGE = 4096
_MOST_SHARE = 0.9
_BLOCKS_PER_ENTRY = 8
_DECODED_BLOCK = 1 << 15


@register("cache", "ram")
def open_ram_cache(
    storage: Storage,
    *,
    decode: Decoder | None = None,
    keys: Mapping[str, str | None] | None = None,
    max_bytes: int | str = "40%",
    what: Literal["encoded", "decoded"] = "encoded",
    policy: Literal["keep", "lru", "adaptive"] = "keep",
) -> Storage:
    """Records in memory, one copy for all workers of a loader.

    Processes that train together on one machine have a copy each. The memory is anonymous and ends
    with the run.

    Args:
        storage: What is read.
        decode: The data set's decoder.
        keys: The data set's renaming of fields.
        max_bytes: Memory of a split in this process: 4GB, 500MB, or a share of what is available
            to this process now, such as 40%. It is taken as records come.
        what: ``encoded`` keeps records as they are read, ``decoded`` the pixels of whole images,
            which take about five times the memory of JPEG files.
        policy: ``keep`` admits until it is full, and evicts nothing: best where every record comes
            once an epoch. ``lru`` evicts what was used longest ago: for draws of which some
            records come often. ``adaptive`` keeps what comes again, and no more memory than that.

    Raises:
        ValueError: A value is wrong.
    """
    if what not in ("encoded", "decoded"):
        raise ValueError(f"dataset.cache.what: {what!r} given, expected encoded or decoded")
    if policy not in ("keep", "lru", "adaptive"):
        raise ValueError(f"dataset.cache.policy: {policy!r} given, expected keep, lru or adaptive")
    prepare = WholeImages(decode, keys) if what == "decoded" else None
    size_bytes = _limit(max_bytes)
    if isinstance(storage, ColumnStorage) and storage.fields:
        _log.warning(
            "dataset/cache=ram: %s has its columns mapped or in memory as it is; the cache holds "
            "them twice, dataset/cache=none is better",
            storage,
        )
    count = len(storage)
    if policy == "keep":
        return cached(storage, KeepStore(count, size_bytes), prepare=prepare)
    store = PoolStore(
        count,
        size_bytes,
        block_bytes=_DECODED_BLOCK if what == "decoded" else _block_bytes(storage),
        policy=LeastRecentlyUsed() if policy == "lru" else Adaptive(),
    )
    return cached(storage, store, prepare=prepare)


def _limit(max_bytes: int | str) -> int:
    """The limit in bytes, and no more than there is."""
    available = available_bytes()
    ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    size_bytes = parse_bytes(max_bytes, whole=(available or 1 << 32) // ranks)
    if available is not None and size_bytes > _MOST_SHARE * available:
        _log.warning(
            "dataset.cache.max_bytes: %.1f GB given, %.1f GB of memory are available; %.1f GB are "
            "taken at most",
            size_bytes / 1e9, available / 1e9, _MOST_SHARE * available / 1e9,
        )  # fmt: skip
        size_bytes = int(_MOST_SHARE * available)
    return size_bytes


def _block_bytes(storage: Storage) -> int:
    """An eighth of a record, as far as sizes are known, in whole pages; 64 KiB at most."""
    index = storage.index
    mean = _BLOCKS_PER_ENTRY * _PAGE
    if "size_bytes" in index.columns and len(index):
        mean = int(np.mean(index.column("size_bytes")))
    return min(max(mean // _BLOCKS_PER_ENTRY // _PAGE, 1), 16) * _PAGE
