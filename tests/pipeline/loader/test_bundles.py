"""Small batches made together: each is what it would be alone, and so is what goes wrong."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from penstock.core.sample import BadRecord
from penstock.datasets.map_dataset import MapDataset
from penstock.datasets.storages.arrays import MemmapStorage
from penstock.pipeline.collates.fields import stack
from penstock.pipeline.loader import plan
from penstock.pipeline.loader.faults import BadSampleError
from penstock.pipeline.samplers.random import SequentialSampler
from penstock.transforms.cpu.stack import Stack
from penstock.transforms.decode.raw import RawDecoder
from tests.building import build_step
from tests.pipeline.loader.fakes import make_loader

N = 301
THREADS = {"engine": "threads", "num_workers": 2, "collate": stack, "drop_last": False}
PROCESS = {**THREADS, "engine": "processes"}


class Arrays(MemmapStorage):
    """Arrays of which a row is bad, ends in an error, or ends its process once."""

    witness: Path | None = None

    def __init__(self, path: Path, *, bad=None, broken=None, error=OSError) -> None:
        super().__init__(str(path))
        self._bad, self._broken, self._error = bad, broken, error

    def take(self, indices, fields, **options):
        if self.witness is not None and 200 in indices and not self.witness.exists():
            self.witness.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self._broken in indices:
            raise self._error(f"the disk has lost {self._broken}")
        return None if self._bad in indices else super().take(indices, fields, **options)

    def read(self, indices):
        return [
            BadRecord(r.index, r.key, "a flipped bit") if r.index == self._bad else r
            for r in super().read(indices)
        ]


@pytest.fixture(scope="module")
def arrays_folder(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("arrays")
    rng = np.random.default_rng(0)
    np.save(folder / "images.npy", rng.integers(0, 256, (N, 8, 6, 3), np.uint8))
    np.save(folder / "labels.npy", rng.integers(0, 9, N))
    return folder


def dataset(storage) -> MapDataset:
    transform = Stack({}, build_step=build_step)
    return MapDataset(storage, decode=RawDecoder(), transform=transform, seed=0)


class Halt(BaseException):
    """Nothing that ``except Exception`` catches."""


@pytest.mark.parametrize("ways", [THREADS, PROCESS], ids=["threads", "process"])
@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ({"broken": 200}, OSError),
        ({"broken": 200, "error": Halt}, Halt),
        ({"bad": 200}, BadSampleError),
    ],
)
def test_what_comes_before_an_error_is_delivered_first(arrays_folder, broken, error, ways):
    with make_loader(
        dataset(Arrays(arrays_folder, **broken)), batch_size=3, on_error="raise", **ways
    ) as loader:
        seen = []
        with pytest.raises(error, match=r"200|flipped"):
            for batch in loader:
                seen += batch["index"].tolist()
        assert seen == list(range(198)), "the row is in the batch that begins there"


def test_padding_is_not_counted(arrays_folder):
    settings = {**THREADS, "batch_size": 3, "drop_last": "pad"}
    with make_loader(dataset(Arrays(arrays_folder)), **settings) as loader:
        assert len([*loader]) == -(-N // 3)
        assert loader.stats.samples == N


class Broken(SequentialSampler):
    """A sampler with a mistake at position 198."""

    def at(self, epoch, positions):
        return np.where(positions < 198, positions, N)


def test_what_comes_before_an_error_of_the_sampler_is_delivered_first(arrays_folder, monkeypatch):
    monkeypatch.setattr(plan, "_TOGETHER", 1)
    with make_loader(dataset(Arrays(arrays_folder)), Broken(N), batch_size=3, **THREADS) as loader:
        seen = []
        with pytest.raises(ValueError, match="expected 0 to 300"):
            for batch in loader:
                seen += batch["index"].tolist()
        assert seen == list(range(198))


def test_all_batches_of_a_dead_worker_are_computed_again(arrays_folder, tmp_path):
    storage = Arrays(arrays_folder)
    storage.witness = tmp_path / "witness"
    with make_loader(dataset(storage), batch_size=3, **PROCESS) as loader:
        assert [row for batch in loader for row in batch["index"].tolist()] == list(range(N))
        assert loader.stats.workers().restarts == 1
