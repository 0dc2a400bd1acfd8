"""The key of a record decides whether it trains or validates; other records do not matter."""

from __future__ import annotations

import shutil

import cv2
import numpy as np
import pytest

from penstock import build_loader, compose

COUNT = 60


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for number in range(COUNT):
        cv2.imwrite(str(folder / f"{number:02d}.png"), np.full((8, 8, 3), number, np.uint8))
    return folder


def keys(folder, split):
    config = compose(
        [
            f"dataset.storage.path={folder}", "dataset.storage.labels=null", "augment=as_is",
            "loader=inline", "loader.batch_size=8", "loader.drop_last=false",
        ]
    )  # fmt: skip
    with build_loader(config, split) as loader:
        return {key for batch in loader for key in batch["key"]}


def test_parts_are_disjoint_and_together_all(images):
    train, val = keys(images, "train"), keys(images, "val")
    assert not train & val and len(train | val) == COUNT
    assert 4 <= len(val) <= 20  # a fifth, by default


def test_records_that_come_or_go_move_no_other(images, tmp_path):
    fewer = tmp_path / "fewer"
    shutil.copytree(images, fewer)
    for number in range(0, COUNT, 3):
        (fewer / f"{number:02d}.png").unlink()
    left = {path.name for path in fewer.iterdir()}
    assert keys(fewer, "val") == keys(images, "val") & left
    assert keys(fewer, "train") == keys(images, "train") & left
