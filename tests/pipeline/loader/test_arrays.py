"""Batches of other arrays than images: types, memory, and the same values from every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock import build_loader, compose
from penstock.datasets.map_dataset import MapDataset
from penstock.pipeline.collates.fields import stack
from tests.digests import batch_digest


def test_types_that_torch_has_not(tmp_path):
    samples = [{"array": np.ones(3, np.longdouble), "key": str(i)} for i in range(2)]
    with pytest.raises(ValueError, match=f"torch .*{np.dtype(np.longdouble)}"):
        stack.into(samples, allocate=lambda size_bytes: pytest.fail("asked for memory"))
    samples = [{"array": np.empty((0, 3)), "key": str(i)} for i in range(2)]
    assert stack.into(samples, allocate=lambda size_bytes: pytest.fail("asked for memory"))[
        "array"
    ].shape == (2, 0, 3)
    samples = [{"array": torch.ones(2), "label": i} for i in range(2)]
    memory = bytearray(16)
    batch = stack.into(samples, allocate=lambda size_bytes: memory)
    assert (
        batch["array"].tolist()
        == [[1, 1], [1, 1]]
        == np.frombuffer(memory, "f4").reshape(2, 2).tolist()
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    rng, root = np.random.default_rng(0), tmp_path_factory.mktemp("arrays")
    for name, n in (("a", 13), ("b", 9)):
        arrays = {
            "labels": np.arange(n) % 4,
            "spectrum": (rng.normal(size=(n, 40)) + 1j * rng.normal(size=(n, 40))).astype("<c8"),
            "volume": rng.normal(size=(n, 4, 5, 6)).astype(">f8"),
        }
        (root / name).mkdir()
        for field, values in arrays.items():
            np.save(root / name / f"{field}.npy", values)
    return root


@pytest.mark.parametrize("way", ["columns", "sample"])
@pytest.mark.parametrize("data", ["memmap", "mix"])
def test_every_engine_makes_the_same_batches(folders, data, way, monkeypatch):
    key, names = ("dataset", "a") if data == "memmap" else ("dataset.sources.{}.dataset", "ab")
    typed = [f"dataset={data}", "augment=as_is", "loader.batch_size=5", "loader.drop_last=false"]
    for name in names:
        node = key.format(name)
        typed += [f"{node}=memmap", f"{node}.storage.path={folders / name}"]
        typed += [f"{node}.val_fraction=0"]
    monkeypatch.setattr(MapDataset, "columnar", way == "columns")
    found = {}
    for engine in ("inline", "threads", "processes", "torch"):
        with build_loader(compose([*dict.fromkeys(typed), f"loader={engine}"])) as loader:
            assert loader._compute.way == way
            found[engine] = [batch_digest(batch) for _ in range(2) for batch in loader]
    assert len({*found["inline"]}) == (6 if data == "memmap" else 10)
    assert all(each == found["inline"] for each in found.values())
