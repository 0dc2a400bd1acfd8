"""No cache, for data at a URL, which is cached by default."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.contracts import Decoder, Storage
from penstock.core.registry import register


@register("cache", "none")
def open_no_cache(
    storage: Storage,
    *,
    decode: Decoder | None = None,
    keys: Mapping[str, str | None] | None = None,
) -> Storage:
    """No cache, not even of data at a URL.

    Args:
        storage: The storage to cache.
        decode: The data set's decoder.
        keys: The data set's renaming of fields.
    """
    return storage
