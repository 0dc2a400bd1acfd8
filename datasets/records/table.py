"""Describe the records of a file without reading them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.datasets.records.index import Index

NO_LABEL = np.iinfo(np.int64).min
"""Marks a record without a label among labelled records."""


@dataclass(frozen=True, slots=True)
class Table:
    """The records of one file, as `Form.scan` returns them.

    Attributes:
        columns: Numbers by name, [n] each. ``offset`` and ``span_bytes`` locate a record in its
            file. ``size_bytes`` is the size of its content if it differs, ``label`` its class.
        classes: Class names by ``label``; None if labels are numbers.
        meta: Small JSON values about the file.
    """

    keys: Sequence[bytes]
    columns: dict[str, NDArray[Any]]
    classes: tuple[str, ...] | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)


def tables_of(index: Index) -> dict[tuple[Any, ...], Table]:
    """Split an index into its tables, by name, size and mark of the file.

    Omit files with unlabelled records that the index lacks, and files with other classes.
    """
    files, metas = index.metadata["mark"][0], index.metadata["files"]
    if "file" in index.columns:
        rows = np.argsort(index.column("file"), kind="stable")
        ends = np.cumsum(np.bincount(index.column("file"), minlength=len(files)))
    else:  # the files are in order
        rows, ends = np.arange(len(index)), np.cumsum([meta["count"] for meta in metas])
    names = [name for name in index.columns if name not in ("file", "label", "number")]
    found = {}
    for file, meta, part in zip(files, metas, np.split(rows, ends[:-1]), strict=True):
        declared = meta["classes"] and tuple(meta["classes"])
        if len(part) != meta["count"] or declared not in (None, index.class_names):
            continue
        columns = dict(zip(names, index.values_of(names, part), strict=True))
        if label := meta["label"]:
            columns["label"] = index.values(label, part).astype(np.int64)
        classes = index.class_names if label == "label" else None
        found[tuple(file)] = Table(index.raw_keys(part), columns, classes, meta)
    return found
