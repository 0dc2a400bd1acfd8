"""A few small photographs, in two layouts, for all tests of the laws."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path

import cv2
import numpy as np
import pytest

CLASSES = {"ash": 19, "birch": 11, "cedar": 7, "dogwood": 4}


@pytest.fixture(autouse=True)
def one_server(monkeypatch):
    """Importing for the fork server takes seconds, and what `auto` has not chosen would end it."""
    engine = "penstock.pipeline.loader.engines.pool_engine"
    monkeypatch.setattr(f"{engine}.end_unused_server", lambda: None)


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
    """The same photographs in LMDB and in tar shards, each in a folder of the storage's name.

    In `memmap` lie their middles, 20 pixels wide and high, whose batches are made as a whole.
    """
    from penstock.datasets.storages.image_folder import ImageFolder
    from penstock.datasets.storages.lmdb import LmdbWriter
    from penstock.datasets.storages.webdataset.writer import WebDatasetWriter
    from penstock.datasets.writing import write_storage

    folder = tmp_path_factory.mktemp("packed")
    for split in ("train", "val"):
        source = ImageFolder(str(photos / split))
        write_storage(LmdbWriter(), folder / "lmdb" / split, source)
        shards = WebDatasetWriter(shard_records=9)
        write_storage(shards, folder / "webdataset" / split, source)
        write_arrays(photos / split, folder / "memmap" / split)
    return folder


def write_arrays(photos: Path, folder: Path) -> None:
    """Write the middles of the photographs that can be read as arrays, and their labels."""
    images, labels = [], []
    for label, name in enumerate(sorted(path.name for path in photos.iterdir())):
        for file in sorted((photos / name).iterdir()):
            image = cv2.imread(str(file))
            if image is None:  # the damaged one: a middle of its own
                image = np.full((20, 20, 3), 7, np.uint8)
            top, left = ((size - 20) // 2 for size in image.shape[:2])
            images.append(image[top : top + 20, left : left + 20, ::-1])
            labels.append(label)
    folder.mkdir(parents=True)
    np.save(folder / "images.npy", np.stack(images))
    np.save(folder / "labels.npy", np.array(labels))
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
