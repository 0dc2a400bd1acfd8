"""Batches taken as a whole: those that samples one by one would make, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.datasets.map_dataset import MapDataset
from penstock.datasets.storages.arrays import MemmapStorage
from penstock.pipeline.collates.fields import ListCollate, stack
from penstock.pipeline.loader.compute import BatchComputer
from penstock.pipeline.loader.contract import BatchTask
from penstock.pipeline.samplers.random import SequentialSampler
from penstock.transforms.cpu.stack import Stack
from penstock.transforms.decode.raw import RawDecoder
from tests.building import build_step
from tests.contracts.equality import assert_same
from tests.pipeline.loader.fakes import Bare

N = 37
KEYS = (
    None,
    {"depth": None},
    {"image": "array", "label": "kind"},
    {"*": None, "age": "label", "image": "image"},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "images.npy", rng.integers(0, 256, (N, 8, 6, 3), np.uint8))
    np.save(tmp_path / "labels.npy", rng.integers(0, 4, N).astype(np.int16))
    np.save(tmp_path / "depth.npy", rng.normal(size=(N, 8)).astype(">f4"))
    np.save(tmp_path / "age.npy", rng.normal(size=N) * 1e30)
    np.save(tmp_path / "old.npy", rng.random(N) < 0.5)
    return tmp_path


def dataset(storage, *, kind=MapDataset, keys=None, steps=None, decode=None):
    transform = Stack(steps or {}, build_step=build_step)
    return kind(storage, decode=decode or RawDecoder(), transform=transform, seed=0, keys=keys)


def computed(data, task, collate=stack, **options):
    computer = BatchComputer(
        data, sampler=SequentialSampler(N), collate=collate, seed=0, on_error="replace"
    )
    return computer(task, **options)


def task(*positions, quarantined=()):
    at = np.array(positions or [5, 0, 36, 5, 12], np.int64)
    valid = np.ones(at.size, np.bool_)
    valid[-1] = False
    return BatchTask(3, 1, at, valid, (at * 5 + 1) % N, quarantined=quarantined)


@pytest.fixture
def taken(monkeypatch):
    """How often columns were taken."""
    calls = []
    take = MemmapStorage.take

    def counting(self, indices, fields, **options):
        if len(indices):  # a take of nothing asks whether there are columns
            calls.append(set(fields))
        return take(self, indices, fields, **options)

    monkeypatch.setattr(MemmapStorage, "take", counting)
    return calls


@pytest.mark.parametrize("keys", KEYS)
def test_a_batch_is_that_of_its_samples(folder, taken, keys):
    storage = MemmapStorage(str(folder))
    one_by_one = computed(dataset(Bare(storage), keys=keys), task())
    assert not taken
    whole = computed(dataset(storage, keys=keys), task())
    assert len(taken) == 1
    assert_same(whole.batch, one_by_one.batch)
    assert (whole.positions, whole.stats.samples, whole.faults) == (4, 4, ())
    assert (one_by_one.positions, one_by_one.stats.samples) == (4, 4)
    assert whole.stats.read > 0 and whole.stats.collate > 0
    if keys and "depth" in keys:
        assert "depth" not in taken[0], "what is dropped is not read"


class Decoding(MapDataset):
    columnar = False

    def finish(self, records, positions, epoch, **options):
        samples = super().finish(records, positions, epoch, **options)
        return [{**sample, "label": 0} for sample in samples]


class Halving:
    def __call__(self, record):
        return {**RawDecoder()(record), "label": record.fields["label"] // 2}


FLIP = {"flip": {"_target_": "albumentations.HorizontalFlip", "p": 1.0}}


@pytest.mark.parametrize(
    ("changes", "collate", "quarantined"),
    [
        ({"steps": FLIP}, stack, ()),
        ({"decode": Halving()}, stack, ()),
        ({"kind": Decoding}, stack, ()),
        ({}, ListCollate(), ()),
        ({}, stack, (36,)),
    ],
)
def test_samples_that_need_a_look_are_made_one_by_one(folder, taken, changes, collate, quarantined):
    storage = MemmapStorage(str(folder))
    asked = task(quarantined=quarantined)
    delivery = computed(dataset(storage, **changes), asked, collate)
    assert not taken
    assert_same(delivery.batch, computed(dataset(Bare(storage), **changes), asked, collate).batch)
    assert [fault.position for fault in delivery.faults] == list(quarantined)
