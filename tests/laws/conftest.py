"""A few small photographs, in two layouts, for all tests of the laws."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path

import cv2
import numpy as np
import pytest

CLASSES = {"ash": 19, "birch": 11, "cedar": 7, "dogwood": 4}


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """41 training images of four unequal classes, one of them damaged, and 15 for evaluation."""
    root = tmp_path_factory.mktemp("photos")
    make_photos(root)
    damaged = root / "train" / "birch" / "03.jpg"
    damaged.write_bytes(damaged.read_bytes()[:200])
    return root


def make_photos(root: Path, classes: Mapping[str, int] = CLASSES) -> None:
    """Write so many images of each class, and a third as many for evaluation."""
    rng = np.random.default_rng(5)
    for split, share in (("train", 1.0), ("val", 0.3)):
        for name, count in classes.items():
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(ceil(count * share)):
                height, width = rng.integers(20, 44, 2)
                coarse = rng.integers(0, 256, (5, 5, 3), np.uint8)
                image = cv2.resize(coarse, (int(width), int(height)))
                cv2.imwrite(str(folder / f"{number:02d}.jpg"), image)


@pytest.fixture(scope="session")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same photographs in LMDB and in tar shards, each in a folder of the storage's name."""
    from datasets.storages.image_folder import ImageFolder
    from datasets.writers.lmdb import LmdbWriter
    from datasets.writers.webdataset import WebDatasetWriter
    from datasets.writing import write_storage

    folder = tmp_path_factory.mktemp("packed")
    for split in ("train", "val"):
        source = ImageFolder(str(photos / split))
        write_storage(LmdbWriter(), folder / "lmdb" / split, source)
        shards = WebDatasetWriter(shard_records=9)
        write_storage(shards, folder / "webdataset" / split, source)
    return folder
