"""No cache, where one would be made by itself: of data behind a URL."""

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
    """Nothing is kept, not even of data behind a URL.

    Args:
        storage: What is read.
        decode: The data set's decoder.
        keys: The data set's renaming of fields.
    """
    return storage
