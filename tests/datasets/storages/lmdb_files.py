"""LMDB files, our own and as others lay them out."""

import lmdb
import numpy as np

from penstock.core.contracts import Storage
from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.table import Table


class Listed(Storage):
    """A storage of given fields."""

    def __init__(self, records, class_names=("a", "b", "c"), **columns):
        self.records = records
        labels = [f["label"] for f in records.values() if f and "label" in f]
        if labels:
            columns["label"] = np.array(labels)
        self.index = Table(list(records), columns, class_names if labels else None)

    def __len__(self):
        return len(self.records)

    def read(self, indices):
        items = list(self.records.items())
        return [
            BadRecord(i, items[i][0], "gone") if items[i][1] is None else Record(i, *items[i])
            for i in np.asarray(indices).tolist()
        ]


def images(n, seed=0):
    """Sizes that lie in the page and outside of it, and none."""
    random = np.random.default_rng(seed)
    sizes = [0, 1, 100, 2000, 2030, 2040, 4080, 4096, 5000, 30_000]
    return {
        f"c{i % 3}/{i:03d}.jpg": {"image": random.bytes(sizes[i % len(sizes)]), "label": i % 3}
        for i in range(n)
    }


def foreign(path, items, **options):
    env = lmdb.open(str(path), map_size=1 << 26, **options)
    with env.begin(write=True) as transaction:
        for key, value in items.items():
            transaction.put(key, value)
    env.close()
    return str(path)


def packed_file(path):
    """The only file of packed records."""
    [file] = path.glob("*.lmdb")
    return file


def read_all(storage):
    return [(r.key, r.fields) for r in storage.read(np.arange(len(storage)))]
