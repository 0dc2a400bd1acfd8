"""HDF5 files in all the layouts that the library writes."""

import h5py
import numpy as np

from penstock.datasets.storages.hdf5 import Hdf5Storage
from tests.datasets.storages.checks import refusal

rng = np.random.default_rng(0)
IMAGES = rng.integers(0, 256, (11, 6, 5, 3), np.uint8)
LABELS = np.array([0, 2, 1, 0, 3, 1, 0, 2, 2, 1, 0], np.uint8)
DEPTH = rng.normal(size=(11, 6, 5)).astype(">f4")
HALVES = rng.normal(size=(11, 4)).astype(np.float16)
AGES = rng.normal(size=11)
FILES = [bytes([255, 216, i]) * (1 + i * 700) for i in range(11)]  # below, at and above 4 KiB
PIECES = {
    "contiguous": {},
    "guessed": {"chunks": True},
    "rows": {"chunks": (2,)},
    "cut": {"chunks": (3, 2, 5)},
    "gzip": {"chunks": (2,), "compression": "gzip"},
    "lzf": {"chunks": (4,), "compression": "lzf"},
    "shuffled": {"chunks": (4,), "compression": "gzip", "shuffle": True},
    "checked": {"chunks": (3,), "fletcher32": True},
    "all": {"chunks": (3,), "compression": "lzf", "shuffle": True, "fletcher32": True},
}


def chunked(array, options):
    """Return the options of a dataset, with chunks of the array's length in the other axes."""
    if not isinstance(options.get("chunks"), tuple):
        return options
    chunks = options["chunks"]
    if len(chunks) == 1:
        chunks = (*chunks, *array.shape[1:])
    return {**options, "chunks": (*chunks, *array.shape[len(chunks) :])[: array.ndim]}


def write(path, pieces=PIECES["contiguous"], arrays=None, **file_options):
    with h5py.File(path, "w", **file_options) as file:
        for name, array in (arrays or {"images": IMAGES, "labels": LABELS, "depth": DEPTH}).items():
            if isinstance(array, np.ndarray) and array.ndim > 1:
                file.create_dataset(name, data=array, **chunked(array, pieces))
            else:
                file[name] = array
    return str(path)


def write_lists(file, name, values, dtype=np.uint8, **options):
    lists = file.create_dataset(name, (len(values),), h5py.vlen_dtype(dtype), **options)
    for row, value in enumerate(values):
        lists[row] = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value


def message(path, **options):
    return refusal(Hdf5Storage(str(path), **options))


def fields(path, **options):
    storage = Hdf5Storage(str(path), **options)
    return [record.fields for record in storage.read(np.arange(len(storage)))]
