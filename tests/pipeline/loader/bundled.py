"""Arrays in files, which say what is taken of them, and fail where they are to."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from penstock.core.sample import BadRecord
from penstock.datasets.map_dataset import MapDataset
from penstock.datasets.storages.memmap.storage import MemmapStorage
from penstock.pipeline.collates.stack import stack
from penstock.pipeline.loader.compute import BatchComputer
from penstock.pipeline.loader.contract import BatchTask
from penstock.pipeline.samplers.sequential import SequentialSampler
from penstock.transforms.cpu.stack import build_stack
from penstock.transforms.decode.raw import RawDecoder
from tests.building import build_step

N = 301
THREADS = {"engine": "threads", "num_workers": 2, "collate": stack, "drop_last": False}
PROCESS = {**THREADS, "engine": "processes"}
ALONE = {"engine": "inline", "collate": stack, "drop_last": False}


class Arrays(MemmapStorage):
    """Says which rows are taken together; one may be bad, or end in an error or in death."""

    def __init__(
        self, path: Path, *, bad=None, broken=None, error=OSError, deadly=None, hangs=False
    ) -> None:
        super().__init__(str(path))
        self._bad, self._broken, self._error, self._deadly = bad, broken, error, deadly
        self._hangs, self._taken = hangs, []

    @property
    def taken(self) -> list[int]:
        """How many rows each take had."""
        return self._taken

    def take(self, indices, fields, **options):
        if len(indices):
            self._taken.append(len(indices))
        if self._broken in indices:
            raise self._error(f"the disk has lost {self._broken}")
        if self._deadly in indices:
            self._die()
        return None if self._bad in indices else super().take(indices, fields, **options)

    def read(self, indices):
        if self._deadly in indices:
            self._die()
        records = super().read(indices)
        return [
            BadRecord(r.index, r.key, "a flipped bit") if r.index == self._bad else r
            for r in records
        ]

    def _die(self):
        if self._hangs:
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)


def write_arrays(folder: Path) -> None:
    """Noise as images [N, 8, 6, 3], labels, and float32 [N, 3] more."""
    rng = np.random.default_rng(0)
    np.save(folder / "images.npy", rng.integers(0, 256, (N, 8, 6, 3), np.uint8))
    np.save(folder / "labels.npy", rng.integers(0, 4, N).astype(np.int16))
    np.save(folder / "depth.npy", rng.normal(size=(N, 3)).astype(np.float32))


def dataset(storage):
    transform = build_stack({}, build_step=build_step)
    return MapDataset(storage, decode=RawDecoder(), transform=transform, seed=0)


def computer(storage, **options):
    options = {"collate": stack, "on_error": "replace", **options}
    return BatchComputer(dataset(storage), sampler=SequentialSampler(N), seed=0, **options)


def task(number, *positions, epoch=0, quarantined=(), items=None):
    at = np.array(positions, np.int64)
    return BatchTask(epoch, number, at, at < N, at % N, quarantined=quarantined, items=items)
