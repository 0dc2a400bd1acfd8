"""Keys that stand twice: no form could keep them apart."""

from __future__ import annotations

import numpy as np

from datasets.parts import raw_keys
from datasets.protocols import Storage

_CHUNK = 1 << 16


def refuse_duplicates(source: Storage) -> None:
    """Refuse a source of which two records have one key.

    Raises:
        ValueError: So it is; one of the keys is named.
    """
    index, count = source.index, len(source)
    hashes = np.empty(count, np.int64)
    for start in range(0, count, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, count))
        hashes[rows] = [hash(key) for key in raw_keys(index, rows)]
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    for one, other in zip(order[same].tolist(), order[same + 1].tolist(), strict=True):
        key, another = raw_keys(index, np.array([one, other]))
        if key == another:
            raise ValueError(
                f"pack: {source}: {key.decode('utf-8', 'backslashreplace')!r} is the key of the "
                f"records {one} and {other}; give each its own"
            )
