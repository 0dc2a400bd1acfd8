"""Small batches, which a worker may compute several at a time, are those computed one by one."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import build_loader, compose
from tests.digests import batch_digest

RECORDS = 1_000


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    rng = np.random.default_rng(0)
    np.save(folder / "images.npy", rng.integers(0, 256, (RECORDS, 8, 8, 3), np.uint8))
    np.save(folder / "labels.npy", np.arange(RECORDS) % 3)
    return folder


def hashes(arrays, *overrides, world_size=1):
    """Hashes of the batches of two epochs, by rank."""
    config = compose(
        [
            "dataset=memmap", f"dataset.storage.path={arrays}", "dataset.val_fraction=0",
            "augment=as_is", "sampler=weighted", "loader.batch_size=6", "loader.drop_last=false",
            *overrides,
        ]
    )  # fmt: skip
    found = []
    for rank in range(world_size):
        with build_loader(config, "train", rank=rank, world_size=world_size) as loader:
            found.append([batch_digest(batch) for _ in range(2) for batch in loader])
    return found


@pytest.mark.parametrize("world_size", [1, 2])
def test_they_are_the_same_in_all_engines(arrays, world_size):
    expected = hashes(arrays, "loader=inline", world_size=world_size)
    assert all(len({*each}) == len(each) == 334 for each in expected)
    for engine in ("threads", "processes"):
        way = [f"loader={engine}", "loader.num_workers=2"]
        assert hashes(arrays, *way, world_size=world_size) == expected
