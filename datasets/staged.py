"""What can be done with a dataset beside ``fetch``: reading apart, and whole batches."""

from __future__ import annotations

from typing import Any, TypeGuard

from datasets.protocols import ColumnDataset, StagedDataset


def is_staged(dataset: Any) -> TypeGuard[StagedDataset]:
    """Whether ``fetch`` is no more than `read` and `finish`: a subclass may have one of its own."""
    return isinstance(dataset, StagedDataset) and _belongs(dataset, "finish", ("fetch",))


def gives_columns(dataset: Any) -> TypeGuard[ColumnDataset]:
    """Whether a dataset gives whole batches, and these are what its samples would make."""
    if not isinstance(dataset, ColumnDataset):
        return False
    others = ("fetch", "read", "finish")
    return _belongs(dataset, "fetch_columns", others) and dataset.gives_columns


def _belongs(dataset: Any, method: str, others: tuple[str, ...]) -> bool:
    """Whether a method was written for the others: a subclass may have changed one of these."""
    kinds = type(dataset).__mro__
    holder = {n: next(k for k in kinds if n in vars(k)) for n in (method, *others)}
    return all(issubclass(holder[method], holder[name]) for name in others)
