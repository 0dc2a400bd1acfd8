"""Contract of a collate."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from penstock.core.contracts import Collate
from penstock.core.sample import Batch, Sample
from penstock.pipeline.loader.contract import mapped, to_tensor
from tests.contracts.equality import assert_same, untouched_global_states


class InTensors:
    """A collate whose batches have tensors, as the loader hands them out."""

    def __init__(self, collate: Any) -> None:
        self.collate = collate

    def __call__(self, samples: list[Sample]) -> Batch:
        return mapped(self.collate(samples), to_tensor)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        given = getattr(self.collate, name)
        if name in ("into", "columns"):
            return lambda *asked, **more: mapped(given(*asked, **more), to_tensor)
        return given


def in_tensors(kind: Any) -> Any:
    """Return a maker of collates of a class whose batches have tensors."""
    return lambda **arguments: InTensors(kind(**arguments))


def check_collate(collate: Collate, samples: list[Sample]) -> Batch:
    """Check that a collate is pure, keeps the order and owns the memory of its batch."""
    before = copy.deepcopy(samples)
    collate = collate if isinstance(collate, InTensors) else InTensors(collate)
    with untouched_global_states():
        batch = collate(samples)
    assert_same(samples, before, "the collate changed its samples")
    size = len(samples)
    for name in ("index", "position", "label"):
        assert batch[name].dtype == torch.int64 and batch[name].shape == (size,)
        assert batch[name].tolist() == [sample[name] for sample in samples]
    assert batch["key"] == [sample["key"] for sample in samples]
    if isinstance(batch["image"], torch.Tensor):
        assert batch["image"].dtype == torch.uint8 and len(batch["image"]) == size
    assert_same(collate(samples), batch, "a second time")
    assert_same(pickle.loads(pickle.dumps(collate))(samples), batch, "pickled")
    assert_same(collate(samples[:1])["key"], batch["key"][:1], "one sample")
    for sample in samples:  # a batch must not share memory with its samples
        for value in sample.values():
            if isinstance(value, np.ndarray):
                value.fill(0)
    assert_same(collate(before), batch, "it shares memory with its samples")
    lacking = [*before[:-1], {k: v for k, v in before[-1].items() if k != "label"}]
    with pytest.raises(ValueError, match="'label'"):
        collate(lacking)
    return batch
