"""Batches of a mix taken as a whole: those that samples one by one would make, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.datasets.map_dataset import MapDataset
from penstock.datasets.mix import MixDataset
from penstock.datasets.storages.arrays import MemmapStorage
from penstock.pipeline.collates.fields import stack
from penstock.pipeline.loader.compute import BatchComputer
from penstock.pipeline.loader.contract import BatchTask
from penstock.pipeline.samplers.random import SequentialSampler
from penstock.transforms.cpu.stack import Stack
from penstock.transforms.decode.raw import RawDecoder
from tests.building import build_step
from tests.contracts.equality import assert_same
from tests.pipeline.loader.fakes import Bare

SIZES = {"a": 13, "b": 7, "c": 5}
CLASSES = ["ant", "bee", "cat"]


def write(folder: Path, name: str, **more) -> Path:
    """Arrays of a source; `more` by field, or None for one that is left out."""
    n, rng = SIZES[name], np.random.default_rng(SIZES[name])
    fields = {
        "images": rng.integers(0, 256, (n, 8, 6, 3), np.uint8),
        "labels": rng.integers(0, len(CLASSES), n),
        "depth": rng.normal(size=(n, 8)).astype(">f4"),
        "age": rng.normal(size=n) * 1e30,
        **more,
    }
    (folder / name).mkdir()
    for field, values in fields.items():
        if values is not None:
            np.save(folder / name / f"{field}.npy", values)
    np.save(folder / name / "keys.npy", np.array([f"{name}-{i}" for i in range(n)]))
    if fields["labels"] is not None:
        (folder / name / "classes.txt").write_text("\n".join(CLASSES))
    return folder / name


def mixed(*folders: Path, bare: bool = False, keys=None) -> MixDataset:
    sources = {}
    for folder in folders:
        storage = MemmapStorage(str(folder))
        sources[folder.name] = MapDataset(
            Bare(storage) if bare else storage,
            decode=RawDecoder(),
            transform=Stack({}, build_step=build_step),
            seed=0,
            keys=keys,
        )
    return MixDataset(sources)


def computed(data, indices, **options):
    at, asked = np.arange(len(indices)) * 3, np.array(indices, np.int64)
    task = BatchTask(3, 1, at, np.ones(at.size, np.bool_), asked)
    sampler = SequentialSampler(len(data))
    computer = BatchComputer(data, sampler=sampler, collate=stack, seed=0, on_error="raise")
    return computer(task, **options).batch


def never(*_, **__):
    raise AssertionError("samples were made one by one")


def both(folders, indices, **options):
    """A batch taken as a whole, and the one of its samples."""
    whole = mixed(*folders, **options)
    for source in whole.sources.values():
        source.finish = never
    return computed(whole, indices), computed(mixed(*folders, bare=True, **options), indices)


@pytest.fixture
def folders(tmp_path):
    return [write(tmp_path, name) for name in SIZES]


INDICES = {
    "all, interleaved": [24, 0, 13, 12, 19, 20, 1, 14, 0],
    "the last first": [24, 22, 3],
    "two of three": [3, 15, 4],
    "one source": [14, 13, 19, 14],
    "one sample": [21],
}


@pytest.mark.parametrize("indices", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("keys", [None, {"depth": None}, {"image": "array", "label": "kind"}])
def test_a_batch_is_that_of_its_samples(folders, indices, keys):
    whole, expected = both(folders, indices, keys=keys)
    assert_same(whole, expected)
    if keys is None:
        sources = [list(SIZES)[s] for s in whole["source"].tolist()]
        own = [int(key.partition("-")[2]) for key in whole["key"]]
        labels = {n: np.load(f / "labels.npy") for n, f in zip(SIZES, folders, strict=True)}
        for source, row, label in zip(sources, own, whole["label"].tolist(), strict=True):
            assert label == labels[source][row]


def test_numbers_of_several_widths_are_made_one_by_one(tmp_path):
    small = (np.arange(13) % 3).astype(np.uint8), np.arange(13).astype(np.float32) / 3
    folders = [write(tmp_path, "a", labels=small[0], age=small[1]), write(tmp_path, "b")]
    batches = [computed(mixed(*folders, bare=bare), [0, 14, 12, 13]) for bare in (False, True)]
    assert_same(*batches)


UNLIKE = {
    "a field of one": ({"depth": None}, "field 'depth' is in sample 'a-0' but not in 'b-1'"),
    "sizes": ({"images": np.zeros((7, 6, 6, 3), np.uint8)}, r"\[8, 6, 3\] in sample 'a-0' and"),
    "types": ({"depth": np.zeros((7, 8), np.float64)}, "'depth' is >f4 in sample 'a-0' and"),
    "a field of the mix": ({"source": np.zeros(7)}, "'source'; .*{source:origin}, or .*code"),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_cannot_be_put_together_is_said_as_of_samples(tmp_path, name):
    more, message = UNLIKE[name]
    folders = [write(tmp_path, "a"), write(tmp_path, "b", **more)]
    for bare in (False, True):
        with pytest.raises(ValueError, match=message):
            computed(mixed(*folders, bare=bare), [0, 14])
