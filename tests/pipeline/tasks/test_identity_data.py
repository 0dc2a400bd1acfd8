"""Persons and cameras from files named as Market-1501 names them, as far as a batch."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

from penstock import build_loader, compose
from penstock.pipeline.build import build_device_transforms
from penstock.pipeline.learning.building import build_model, build_task
from penstock.pipeline.learning.fields import task_field


@pytest.fixture
def market(tmp_path):
    """Five persons to train on, two others to find, one that is nobody."""
    rng = np.random.default_rng(0)
    parts = {"train": range(2, 7), "val/query": [8, 9], "val/gallery": [-1, 8, 9]}
    for part, people in parts.items():
        (tmp_path / part).mkdir(parents=True)
        for person in people:
            for camera in (1, 2) if "query" not in part else (1,):
                for frame in range(2):
                    name = f"{person:04d}_c{camera}s1_{frame:06d}_00.jpg"
                    name = name.replace("-001", "-1")
                    image = rng.integers(0, 255, (32, 16, 3), np.uint8)
                    cv2.imwrite(str(tmp_path / part / name), image)
    return tmp_path


def test_batches_have_identity_camera_and_path(market):
    config = compose(
        ["experiment=market1501", f"dataset.storage.path={market}", "loader=inline",
         "loader.batch_size=12"]
    )  # fmt: skip
    with build_loader(config, "train") as loader:
        names = loader.classes_of(task_field(config))
        [batch] = loader
    assert names == ("2", "3", "4", "5", "6")
    identities = batch["identity"].reshape(3, 4)
    assert (identities == identities[:, :1]).all() and len(identities[:, 0].unique()) == 3
    for key, who, camera in zip(batch["key"], batch["identity"], batch["camera"], strict=True):
        assert key.startswith(f"{who:04d}_c{camera}s1_")
    model, task = build_model(config, len(names)), build_task(config, len(names), names)
    for transform in build_device_transforms(config, "train"):
        batch = transform(batch)
    losses = task.losses(model(batch), batch)
    assert losses.keys() == {"triplets", "cross_entropy"}
    assert torch.stack(list(losses.values())).sum() > 0

    with build_loader(config, "val") as loader:
        batches = list(loader)
    metrics = task.metrics()
    for batch in batches:
        # Whoever knows the persons finds them; the query's own camera gives nothing away.
        known = torch.stack([batch["identity"], batch["camera"] * 0.1], 1)
        task.update(metrics, {"features": known}, batch)
    figures = {name: float(value) for name, value in metrics.compute().items()}
    assert figures == {"rank_1": 1, "rank_5": 1, "rank_10": 1, "map": 1}
    assert (
        sorted(row for batch in batches for row in batch["role"])
        == ["gallery"] * 12 + ["query"] * 4
    )
