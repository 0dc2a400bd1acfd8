"""Small photographs in several storages, for all tests of the laws."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.console import penstock

CLASSES = {"ash": 19, "birch": 11, "cedar": 7, "dogwood": 4}


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make 41 training images of four classes, one of them damaged, and 15 for evaluation."""
    root = tmp_path_factory.mktemp("photos")
    make_photos(root)
    damaged = root / "train" / "birch" / "03.jpg"
    damaged.write_bytes(damaged.read_bytes()[:200])
    return root


def make_photos(root: Path, classes: Mapping[str, int] = CLASSES) -> None:
    """Write `classes` training images, and a third as many for evaluation."""
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
    """Pack the photographs as LMDB and as tar shards, each in a folder of the storage's name.

    The folder `memmap` holds their middles, 20 pixels wide and high, as arrays.
    """
    folder = tmp_path_factory.mktemp("packed")
    for form, options in (("lmdb", []), ("webdataset", ["writer.shard_records=9"])):
        target = [f"pack.to={form}", f"pack.path={folder / form}", "pack.num_workers=0", *options]
        assert penstock("pack", f"dataset.storage.path={photos}", *target) == 0
    for split in ("train", "val"):
        write_arrays(photos / split, folder / "memmap" / split)
    return folder


def write_arrays(photos: Path, folder: Path) -> None:
    """Write the middles of the photographs, and their labels, as arrays."""
    images, labels = [], []
    for label, name in enumerate(sorted(path.name for path in photos.iterdir())):
        for file in sorted((photos / name).iterdir()):
            image = cv2.imread(str(file))
            if image is None:  # the damaged photograph
                image = np.full((20, 20, 3), 7, np.uint8)
            top, left = ((size - 20) // 2 for size in image.shape[:2])
            images.append(image[top : top + 20, left : left + 20, ::-1])
            labels.append(label)
    folder.mkdir(parents=True)
    np.save(folder / "images.npy", np.stack(images))
    np.save(folder / "labels.npy", np.array(labels))
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
