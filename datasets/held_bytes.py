"""How much memory records take when they have been read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.protocols import MappedStorage, Storage


def held_bytes(storage: Storage, indices: NDArray[np.int64]) -> NDArray[Any] | None:
    """Memory that each of the records at `indices`, int64 [n], takes when it has been read.

    What a storage does not say is what the index has as ``size_bytes``.

    Returns:
        Integers [n]; None where it is not known.
    """
    if isinstance(storage, MappedStorage):
        return storage.held_bytes(indices)
    index: Any = storage.index
    # `values` reads these rows alone, where `column` copies the whole column of a split.
    if not hasattr(index, "values") or "size_bytes" not in index.columns:
        return None
    sizes: NDArray[Any] = index.values("size_bytes", indices)
    return sizes
