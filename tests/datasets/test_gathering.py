"""Which storages let others gather rows of their arrays."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.datasets.map_dataset import MapDataset
from penstock.datasets.records.subset import Subset
from penstock.datasets.storages.memmap import MemmapStorage
from penstock.pipeline.build import build
from penstock.transforms.cpu.stack import build_stack
from penstock.transforms.decode.raw import RawDecoder


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "images.npy", rng.integers(0, 256, (70, 8, 9, 3), np.uint8))
    np.save(tmp_path / "labels.npy", rng.integers(0, 4, 70))
    return str(tmp_path)


@pytest.mark.parametrize("subset", [False, True])
def test_a_storage_with_a_take_of_its_own_is_not_gathered_from(path, subset):
    class Own(MemmapStorage):
        def take(self, indices, fields, *, allocate=None):
            return super().take(indices, fields, allocate=allocate)

    for kind, gathered in ((MemmapStorage, True), (Own, False)):
        storage = kind(path)
        if subset:
            storage = Subset(storage, np.arange(20))
        dataset = MapDataset(
            storage, decode=RawDecoder(), transform=build_stack({}, build_step=build), seed=0
        )
        assert dataset.gathers == gathered
        image = np.array([0, 5]), np.array([0, 1]), 0
        if gathered:
            zeros = dataset.fetch_columns(*image, gather=lambda *given: np.zeros(2))
            assert not zeros["image"].any() and zeros["label"].shape == (2,)
        assert dataset.fetch_columns(*image)["image"].any()
