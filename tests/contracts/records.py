"""Records of every kind, as a storage that `penstock pack` reads."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock import register
from penstock.core.contracts import Storage
from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.table import Table
from tests.photographs import scene

COUNT = 23
_ODD_KEYS = ("ü/ß.jpg", "a b", "日本.png", "x'y\"z", "-", "1e5", "tab\there", "a,b;c", "%s{0}")
KINDS = frozenset(
    ("keys", "numbered", "classes", "order", "files", "pixels", "labels", "arrays", "shapes",
     "bytes", "numbers", "values", "missing", "no image")
)  # fmt: skip
"""Properties of records, of which a form may be unable to hold some; see `records_of`."""


class ListedRecords(Storage):
    """A storage of given fields by key; fields of None are a bad record."""

    def __init__(
        self, records: Mapping[str, dict[str, Any] | None], class_names: Sequence[str] | None = None
    ) -> None:
        self.records = records
        labels = [f["label"] for f in records.values() if f and "label" in f]
        columns = {"label": np.array(labels)} if len(labels) == len(records) else {}
        self.index = Table(list(records), columns, class_names if labels else None)

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


def records_of(kinds: frozenset[str], count: int = COUNT) -> ListedRecords:
    """Return records with the properties `kinds`, of `KINDS`, and no others."""
    records: dict[str, dict[str, Any] | None] = {}
    names = ("cat", "dög", "a class, of its own")
    names = names if "classes" in kinds else tuple(sorted(names))
    if "numbered" in kinds and not {"order", "keys"} & kinds:
        count = min(count, 10)  # their order as texts is their order as numbers
    for i in range(count):
        key = str(i) if "numbered" in kinds else f"{names[i % 3]}/{i:03d}.jpg"
        if "keys" in kinds:
            key = f"class {i % 3}/{i:03d}.jpg"
        if "keys" in kinds and i < len(_ODD_KEYS):
            key = _ODD_KEYS[i]
        fields = _fields(i, kinds)
        if "missing" in kinds and i % 4 == 1:
            fields = {k: v for k, v in fields.items() if k in ("image", "label")}
        if "no image" in kinds and (i % 5 == 2 or not {"files", "pixels"} & kinds):
            fields.pop("image", None)
        records[key] = fields
    if "order" not in kinds:
        records = dict(sorted(records.items(), key=lambda item: item[0].encode()))
    return ListedRecords(records, names if "labels" in kinds else None)


def _fields(i: int, kinds: frozenset[str]) -> dict[str, Any]:
    random = np.random.default_rng(i)
    fields: dict[str, Any] = {}
    if "pixels" in kinds and (i % 2 or "files" not in kinds):
        fields["image"] = scene(5 + i, 4 + i % 3, i)
    elif "files" in kinds:
        fields["image"] = random.bytes([0, 1, 700, 3000, 70_000][i % 5])
    elif "no image" not in kinds:
        fields["image"] = scene(8, 6, i)
    if "labels" in kinds:
        fields["label"] = i % 3
    if "arrays" in kinds:
        for code in ("u1", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "?"):
            name = {"?": "bool"}.get(code, code)
            fields[f"of_{name}"] = (random.random((2, 3)) * 50).astype(code)
        fields["mask"] = random.integers(0, 9, (4, 5)).astype(np.int32)
        fields["features"] = random.random(7).astype(np.float32)
        fields["features"][0] = np.nan
    if "shapes" in kinds:
        fields["boxes"] = random.random((i % 3, 4)).astype(np.float32)
        fields["box_labels"] = np.arange(i % 3, dtype=np.int64)
        fields["keypoints"] = random.random((i % 4, 3)).astype(np.float32)
        fields["tokens"] = np.arange(i % 7, dtype=np.int64)
        fields["array"] = random.random((2, 1 + i % 2, 3))
    if "bytes" in kinds:
        fields["extra"] = random.bytes([0, 1, 300][i % 3])
    if "numbers" in kinds:
        fields |= {"score": i / 7, "number": i * 10**9, "is_good": i % 2 == 0}
    if "values" in kinds:
        fields |= {
            "text": ["", 'naïve 日本 "x"\n,;', "plain"][i % 3],
            "about": {"a": [1, 2.5, None, {"deep": [[], {}, "é"]}], "b": i % 2 == 0},
            "nested": [[i], [], ["x", None]],
            "nothing": None,
        }
    return fields
