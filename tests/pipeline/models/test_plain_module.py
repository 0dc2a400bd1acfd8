"""A model that takes images, as torch's own do, trains as it is."""

from __future__ import annotations

import pytest
from torch import nn

from penstock import compose
from penstock.core import registry
from penstock.pipeline.config.components import register_components
from penstock.pipeline.learning.building import build_model
from penstock.pipeline.training import job


@pytest.mark.parametrize("name", ["x", "batch"])
def test_a_registered_module_of_images_or_batches_trains(name, data_dir, tmp_path, monkeypatch):
    register_components()
    monkeypatch.setattr(registry, "_components", dict(registry._components))

    class Net(nn.Module):
        def __init__(self, *, num_classes: int) -> None:
            super().__init__()
            self.head = nn.Linear(3, num_classes)

    if name == "x":
        Net.forward = lambda self, x: self.head(x.mean((2, 3)))
    else:
        Net.forward = lambda self, batch: self.head(batch["image"].mean((2, 3)))
    registry.register("model", "net")(Net)
    config = compose(["model=net", "loader=inline", "loader.batch_size=8", "trainer.max_steps=2",
                      "trainer.validate_every=0", f"data_dir={data_dir}",
                      f"outputs={tmp_path}"])  # fmt: skip
    assert job.train(config)["run_dir"]
    assert isinstance(build_model(config, 6), Net) == (name == "batch")
