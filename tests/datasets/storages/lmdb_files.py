"""LMDB files, packed and in the layouts of other programs."""

import lmdb
import numpy as np

from tests.contracts.records import ListedRecords


class Listed(ListedRecords):
    """Listed records of the classes a, b and c, with columns of their own."""

    def __init__(self, records, class_names=("a", "b", "c"), **columns):
        super().__init__(records, class_names)
        self.index = self.index.replaced(columns=self.index.arrays | columns)


def images(n, seed=0):
    """Return images that fit into a page, images that do not, and empty ones."""
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
