"""What can be done with a dataset beside ``fetch``: reading apart, and whole batches."""

from __future__ import annotations

from typing import Any, TypeGuard

from datasets.protocols import ColumnDataset, StagedDataset


def is_staged(dataset: Any) -> TypeGuard[StagedDataset]:
    """Whether ``fetch`` is no more than `read` and `finish`: a subclass may have one of its own."""
    return isinstance(dataset, StagedDataset) and belongs(dataset, "finish", "fetch")


def gives_columns(dataset: Any) -> TypeGuard[ColumnDataset]:
    """Whether a dataset gives whole batches, and these are what its samples would make."""
    if not isinstance(dataset, ColumnDataset):
        return False
    others = ("fetch", "read", "finish")
    return belongs(dataset, "fetch_columns", *others) and dataset.gives_columns


def gathers(dataset: Any) -> bool:
    """Whether ``fetch_columns`` of a dataset lets another gather the rows of images."""
    if not gives_columns(dataset) or not getattr(dataset, "gathers", False):
        return False
    return belongs(dataset, "gathers", "fetch_columns")


def rows_can_be_gathered(storage: Any) -> bool:
    """Whether a storage is a `datasets.protocols.GatheringStorage`."""
    return getattr(storage, "gathers", False) and belongs(storage, "gathers", "take")


def belongs(part: Any, attribute: str, *others: str) -> bool:
    """Whether a class's attribute was written for the others: a subclass may have changed one."""
    kinds = type(part).__mro__
    holder = {n: next(k for k in kinds if n in vars(k)) for n in (attribute, *others)}
    return all(issubclass(holder[attribute], holder[name]) for name in others)
