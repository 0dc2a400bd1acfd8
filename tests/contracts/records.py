"""Records of every kind, as a storage that `penstock pack` reads."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock import register
from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.memory_index import MemoryIndex


class ListedRecords:
    """A storage of given fields by key; fields of None are a bad record."""

    def __init__(
        self, records: Mapping[str, dict[str, Any] | None], class_names: Sequence[str] | None = None
    ) -> None:
        self.records = records
        labels = [f["label"] for f in records.values() if f and "label" in f]
        columns = {"label": np.array(labels)} if len(labels) == len(records) else {}
        self.index = MemoryIndex(list(records), columns, class_names if labels else None)

    def __str__(self) -> str:
        return "listed records"

    def __len__(self) -> int:
        return len(self.records)

    def read(self, indices: Any) -> list[Record | BadRecord]:
        items = list(self.records.items())
        return [
            BadRecord(i, items[i][0], "is gone")
            if (fields := items[i][1]) is None
            else Record(i, items[i][0], dict(fields))
            for i in np.asarray(indices).tolist()
        ]

    def fingerprint(self) -> str:
        return self.index.fingerprint()


@register("storage", "listed")
class PickledRecords(ListedRecords):
    """Listed records in a file."""

    def __init__(self, path: str) -> None:
        super().__init__(*pickle.loads(Path(path).read_bytes()))


def pickled(
    path: Path,
    records: Mapping[str, dict[str, Any] | None],
    class_names: Sequence[str] | None = None,
) -> list[str]:
    """Write records to a file; return the overrides of a dataset that reads it."""
    path.write_bytes(pickle.dumps((records, class_names)))
    imports = "imports=[tests.contracts.records,tests.laws.components]"
    return [imports, "dataset/storage=listed", f"dataset.storage.path={path}"]
