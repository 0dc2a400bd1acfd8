"""An LMDB file of others that is written to during training: its own records or an error."""

from __future__ import annotations

import lmdb
import numpy as np
import pytest

from penstock import build_loader, compose

ROWS = 40


def write(path, round_number):
    """Give every record new bytes, in transactions of a few records each."""
    with lmdb.open(str(path), map_size=1 << 24) as file:
        for first in range(0, ROWS, 8):
            with file.begin(write=True) as transaction:
                for row in range(first, first + 8):
                    pixels = np.full(400, (row + 7 * round_number) % 256, np.uint8)
                    transaction.put(f"image-{row:03d}".encode(), b"%d," % row + pixels.tobytes())


def open_loader(path):
    settings = (
        "dataset=lmdb", f"dataset.storage.path={path}", "dataset.storage.key_format=sorted",
        "dataset/decode=raw", "collate=list", "augment=as_is", "dataset.val_fraction=0",
        "loader.engine=inline", "loader.batch_size=8",
    )  # fmt: skip
    return build_loader(compose([*settings]), "train")


def numbers(batch):
    return [int(bytes(image).partition(b",")[0]) for image in batch["image"]]


def keys(batch):
    return [int(key.removeprefix("image-")) for key in batch["key"]]


def test_a_file_that_is_written_to_during_training_is_refused(tmp_path):
    path = tmp_path / "data"
    write(path, 0)
    with open_loader(path) as loader:
        batches = iter(loader)
        first = next(batches)
        assert numbers(first) == keys(first)
        write(path, 1)
        with pytest.raises(ValueError, match=f"lmdb {path}.*transaction was 5 and is 10"):
            next(batches)
    with open_loader(path) as loader:  # started again, it reads what is there now
        for batch in loader:
            assert numbers(batch) == keys(batch)
            assert [bytes(i)[-1] for i in batch["image"]] == [k + 7 for k in keys(batch)]
