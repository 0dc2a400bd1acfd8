"""The example components: short, and they work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline import registry
from pipeline.config.compose import compose

FILE = Path(__file__).resolve().parents[2] / "examples" / "my_components.py"


@pytest.fixture
def config(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (40, 20, 30, 3), np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=np.arange(40) % 4)
    return compose([
        f"imports=[{FILE}]", "sampler=repeated", "sampler.times=3", "transform=exposure",
        "augment.train.exposure.stops=1.0", "dataset/storage=npz", "dataset/decode=raw",
        f"dataset.storage.path={tmp_path / 'data.npz'}", "loader=inline", "loader.batch_size=6",
    ])  # fmt: skip


def test_the_file_is_short():
    assert len(FILE.read_text().splitlines()) < 40


def test_the_components_make_batches(config):
    from pipeline.build import build_loader

    with build_loader(config) as loader:
        batch = next(iter(loader))
    index = batch["index"].tolist()
    assert index[0] == index[1] == index[2] != index[3]
    # Three times the same record, and never the same pixels.
    assert (batch["image"][0] != batch["image"][1]).any()
    assert batch["label"].tolist() == [int(key) % 4 for key in batch["key"]]


def test_the_sampler_is_pure_and_covers_the_data(config):
    sampler = registry.find("sampler/repeated").target(10, 3, times=2)
    whole = sampler.indices(1, 0, 20)
    assert sorted(whole.tolist()) == sorted([*range(10)] * 2)
    assert np.array_equal(sampler.indices(1, 5, 9), whole[5:9])
    assert not np.array_equal(sampler.indices(2, 0, 20), whole)
