"""Whether the samples of a dataset can be read in one place and finished in another."""

from __future__ import annotations

from typing import Any, TypeGuard

from datasets.protocols import StagedDataset


def is_staged(dataset: Any) -> TypeGuard[StagedDataset]:
    """Whether ``fetch`` is no more than `read` and `finish`: a subclass may have one of its own."""
    if not isinstance(dataset, StagedDataset):
        return False
    holders = [
        next(kind for kind in type(dataset).__mro__ if name in vars(kind))
        for name in ("fetch", "finish")
    ]
    return issubclass(holders[1], holders[0])
