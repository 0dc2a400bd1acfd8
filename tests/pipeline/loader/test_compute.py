"""A batch computed in one call."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.datasets.map_dataset import MapDataset
from penstock.pipeline.collates.fields import stack
from penstock.pipeline.loader.compute import BatchComputer
from penstock.pipeline.loader.contract import BatchTask
from penstock.pipeline.samplers.random import SequentialSampler
from tests.contracts.equality import assert_same
from tests.datasets.test_map_dataset import dataset


def computer(data, collate=stack, on_error="replace") -> BatchComputer:
    sampler = SequentialSampler(len(data))
    return BatchComputer(data, sampler=sampler, collate=collate, seed=0, on_error=on_error)


def task(*positions: int, quarantined: tuple[int, ...] = ()) -> BatchTask:
    at = np.array(positions, np.int64)
    return BatchTask(1, 0, at, np.ones(at.size, np.bool_), at, quarantined=quarantined)


def test_the_stages_are_timed():
    times = computer(dataset())(task(0, 1, 3)).stats
    assert min(times.read, times.decode, times.transform, times.collate) > 0
    assert times.total == pytest.approx(times.read + times.decode + times.transform + times.collate)


class Darker(MapDataset):
    """A user's subclass that changes what is fetched."""

    staged = columnar = False

    def fetch(self, indices, positions, epoch):
        samples = super().fetch(indices, positions, epoch)
        return [{**sample, "image": sample["image"] // 2} for sample in samples]


def test_a_subclass_with_a_fetch_of_its_own_is_asked_for_it():
    plain = dataset()
    darker = dataset()
    darker.__class__ = Darker
    compute = computer(darker)
    batch = compute(task(0, 1, 3)).batch
    assert_same(batch["image"], computer(plain)(task(0, 1, 3)).batch["image"] // 2)


def test_a_field_that_the_loader_would_overwrite_is_refused():
    compute = computer(dataset(), collate=lambda samples: {"valid": [1] * len(samples)})
    with pytest.raises(ValueError, match=r"field 'valid', .* dataset.keys={valid:valid_}"):
        compute(task(0, 1))
