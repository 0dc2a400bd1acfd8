"""Arrays in shards of `.npy` and `.npz` files."""

import itertools

import numpy as np
import pytest

from penstock.datasets.storages.npy_shards import open_npy_shards

rng = np.random.default_rng(0)
N, CUTS = 23, (0, 7, 8, 8, 20, 23)  # one shard of one row, one of none
IMAGES = rng.integers(0, 256, (N, 6, 5, 3), np.uint8)
LABELS = rng.integers(0, 4, N)
LABELS[0] = 3
DEPTH = rng.normal(size=(N, 6)).astype(np.float32)
ARRAYS = {"images": IMAGES, "labels": LABELS, "depth": DEPTH}


def parts(arrays=ARRAYS):
    for shard, (start, stop) in enumerate(itertools.pairwise(CUTS)):
        yield shard, {name: array[start:stop] for name, array in arrays.items()}


def write(folder, layout="{field}_{shard:03d}", arrays=ARRAYS):
    for shard, part in parts(arrays):
        for field, array in part.items():
            path = folder / f"{layout.format(field=field, shard=shard)}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, array)
    return folder


def write_npz(folder, save=np.savez):
    folder.mkdir(parents=True, exist_ok=True)
    for shard, part in parts():
        save(folder / f"{shard}.npz", **part)
    return folder


def message(path, **options):
    with pytest.raises(ValueError) as caught:
        len(open_npy_shards(str(path), **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def made(folder):
    folder.mkdir(exist_ok=True)
    return folder
