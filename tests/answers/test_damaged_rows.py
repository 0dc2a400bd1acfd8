"""A damaged row of arrays is replaced in the same way by every engine."""

import os

import h5py
import numpy as np
import pytest

from penstock import build_loader, compose

ROWS, BATCH = 24, 4
ENGINES = {"inline": 0, "threads": 2, "processes": 1, "torch": 1}


def _damage(file, at):
    """Change a byte, and keep the time by which an index knows the file."""
    status = os.stat(file)
    content = bytearray(file.read_bytes())
    content[at(content)] ^= 255
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def _rows():
    return np.random.default_rng(0).normal(size=(ROWS, 600))


def _shards(folder):
    for part, rows in enumerate(np.split(_rows(), 3)):
        np.savez_compressed(folder / f"{part}.npz", x=rows)
    return [f"dataset.storage.path={folder}", "dataset=npy_shards"], folder / "1.npz"


def _hdf5(folder):
    with h5py.File(folder / "t.h5", "w") as file:
        file.create_dataset("x", data=_rows(), chunks=(2, 600), fletcher32=True)
    return [f"dataset.storage.path={folder / 't.h5'}", "dataset=hdf5"], folder / "t.h5"


def _batches(place, engine):
    config = compose(
        [
            *place,
            "dataset/decode=raw",
            "dataset.val_fraction=0",
            "augment=as_is",
            "sampler=sequential",
            f"loader.batch_size={BATCH}",
            f"loader.engine={engine}",
            f"loader.num_workers={ENGINES[engine]}",
            "loader.max_error_rate=0.9",
        ]
    )
    with build_loader(config, "train") as loader:
        return [(b["index"].tolist(), b["valid"].tolist(), b["x"].tolist()) for b in loader]


@pytest.mark.parametrize("write", [_shards, _hdf5])
def test_a_damaged_row_is_replaced_by_every_engine(tmp_path, write):
    place, file = write(tmp_path)
    whole = _batches(place, "inline")
    _damage(file, lambda content: len(content) // 2)
    expected = _batches(place, "inline")
    replaced = {row for (found, *_), (index, *_) in zip(expected, whole, strict=True)
                for row in set(index) - set(found)}  # fmt: skip
    assert 0 < len(replaced) < ROWS
    for engine in ("threads", "processes", "torch"):
        assert _batches(place, engine) == expected
