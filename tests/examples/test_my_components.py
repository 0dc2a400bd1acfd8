"""The example components: short, and they work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.core import registry
from penstock.pipeline.config.compose import compose

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILE = EXAMPLES / "my_components.py"


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
    from penstock.pipeline.build import build_loader

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


def test_a_model_with_its_own_losses_trains_and_is_evaluated(data_dir, tmp_path):
    import torch

    from penstock.pipeline.training.job import train

    file = EXAMPLES / "own_losses.py"
    assert len(file.read_text().splitlines()) < 40
    config = compose([
        f"imports=[{file}]", "model=own_losses", f"data_dir={data_dir}", f"outputs={tmp_path}",
        "augment=none", "loader=inline", "trainer.max_epochs=2", "trainer.limit_train_batches=8",
        "trainer.limit_val_batches=2", "trainer.progress=off", "trainer.num_threads=1",
    ])  # fmt: skip
    model = registry.find("model/own_losses").target(num_classes=3)
    batch = {
        "image": torch.rand(2, 3, 16, 16),
        "label": torch.tensor([0, 2]),
        "valid": torch.tensor([False, False]),
    }
    losses = model(batch)
    sum(losses.values()).backward()
    assert all(value == 0 for value in losses.values())
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)
    results = train(config)
    assert {"val/accuracy", "val/loss"} <= set(results)
    assert results["step"] == 16
