"""Records kept on a disk of this machine, from run to run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from datasets.caching.byte_limits import parse_bytes
from datasets.caching.cached_storage import cached
from datasets.caching.disk_store import DiskStore
from datasets.caching.whole_images import WholeImages
from datasets.index_cache import cache_folder
from pipeline.registry import register

if TYPE_CHECKING:
    from datasets.protocols import Decoder, Storage

_FORMAT = 1


@register("cache", "disk")
def open_disk_cache(
    storage: Storage,
    *,
    decode: Decoder | None = None,
    keys: Mapping[str, str | None] | None = None,
    path: str | None = None,
    max_bytes: int | str = "50GB",
    what: Literal["encoded", "decoded"] = "encoded",
) -> Storage:
    """Records on a local disk, with checksums, for data that is slow to read.

    The cache of a data set is used again by later runs, and by others at the same time. A data
    set is known by its fingerprint, its name and path, and what its index notes of its files'
    times; files that were overwritten in place by others of the same size and name are not
    noticed: empty the folder then. Once the folder is full, caches of other data that no run
    uses are deleted, those first that were used longest ago.

    Args:
        storage: What is read.
        decode: The data set's decoder.
        keys: The data set's renaming of fields.
        path: A folder; null: ``records`` in the user's cache folder.
        max_bytes: Of all caches in the folder together: 50GB, 500MB.
        what: ``encoded`` keeps records as they are read, ``decoded`` the pixels of whole images.

    Raises:
        ValueError: A value is wrong, or the folder cannot be used.
    """
    if what not in ("encoded", "decoded"):
        raise ValueError(f"dataset.cache.what: {what!r} given, expected encoded or decoded")
    prepare = WholeImages(decode, keys) if what == "decoded" else None
    size_bytes, count = parse_bytes(max_bytes), len(storage)
    if 16 * count > size_bytes:
        raise ValueError(
            f"dataset.cache.max_bytes: {max_bytes!r} given, but the table of {count:,} records "
            f"takes {8 * count:,} bytes; allow more"
        )
    folder = Path(path).expanduser().absolute() if path is not None else cache_folder() / "records"
    identity = _identity(storage, prepare)
    store = DiskStore(
        folder, name=identity["name"], identity=identity, count=count, max_bytes=size_bytes
    )
    return cached(storage, store, prepare=prepare)


def _identity(storage: Storage, prepare: WholeImages | None) -> dict[str, Any]:
    """What the content depends on; `name` is a hash of all of it."""
    recipe = [
        _FORMAT,
        storage.fingerprint(),
        str(storage),
        len(storage),
        _notes(storage),
        prepare.recipe if prepare is not None else None,
    ]
    text = json.dumps(recipe, sort_keys=True, default=os.fspath)
    name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return {"name": name, "data": str(storage)[:300], "records": len(storage)}


def _notes(storage: Any) -> list[Any]:
    """What the indexes of a storage and of what it wraps note: times of files among it."""
    notes = []
    while storage is not None:
        notes.append(getattr(storage.index, "metadata", None))
        storage = getattr(storage, "base", None)
    return notes
