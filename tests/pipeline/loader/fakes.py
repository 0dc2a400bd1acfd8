"""A small in-memory dataset whose pixels depend on everything that they may depend on."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.core.contracts import Collate, Dataset, Index, Storage, StreamDataset
from penstock.core.rng import KeyedRng, Stream
from penstock.core.sample import BadSample, Batch, Sample
from penstock.pipeline.loader.contract import Delivery
from penstock.pipeline.loader.loader import Loader
from penstock.pipeline.loader.settings import LoaderSettings
from tests.digests import batch_digest as digest
from tests.waiting import wait_until


class FakeIndex(Index):
    def __init__(self, labels: np.ndarray, class_names: tuple[str, ...] | None = None) -> None:
        self._columns = {"label": labels.astype(np.int64), "size": labels * 10.0 + 1}
        self.class_names = class_names

    def __len__(self) -> int:
        return self._columns["label"].size

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def column(self, name: str) -> np.ndarray:
        return self._columns[name]

    def values(self, name: str, indices: np.ndarray) -> np.ndarray:
        return self._columns[name][indices]

    def keys(self, indices: np.ndarray) -> list[str]:
        return [f"img/{index:07d}.jpg" for index in indices.tolist()]

    def fingerprint(self) -> str:
        return hashlib.sha1(self._columns["label"].tobytes()).hexdigest()


class FakeDataset(Dataset):
    """Images of noise: pixels are a function of (seed, epoch, position, index).

    Args:
        n: Number of records.
        bad: Indices that cannot be decoded.
        crash: Index whose computation raises in user code.
        deadly: Index that kills its process.
        slow_s: Seconds that every fetch takes.
    """

    def __init__(
        self,
        n: int,
        *,
        seed: int = 0,
        bad: Sequence[int] = (),
        crash: int | None = None,
        deadly: int | None = None,
        slow_s: float = 0.0,
        size: int = 4,
    ) -> None:
        self.index = FakeIndex(np.arange(n) % 3)
        self.seed, self.bad, self.crash, self.deadly = seed, frozenset(bad), crash, deadly
        self.slow_s, self.size = slow_s, size

    def __len__(self) -> int:
        return len(self.index)

    def fetch(self, indices: Any, positions: Any, epoch: int) -> list[Sample | BadSample]:
        if self.slow_s:
            time.sleep(self.slow_s)
        pairs = zip(indices.tolist(), positions.tolist(), strict=True)
        return [self._one(index, position, epoch) for index, position in pairs]

    def _one(self, index: int, position: int, epoch: int) -> Sample | BadSample:
        key = f"img/{index:07d}.jpg"
        if index in self.bad:
            return BadSample(index, key, position, "truncated", "fake /data")
        if index == self.crash:
            raise KeyError("a user's mistake")
        if index == self.deadly:
            os.kill(os.getpid(), 9)
        rng = KeyedRng().at(self.seed, epoch, position, Stream.AUGMENT)
        image = rng.integers(0, 256, (self.size, self.size, 3), np.uint8)
        image[0, 0] = index % 251
        label = int(self.index.column("label")[index])
        return {"image": image, "label": label, "index": index, "key": key, "position": position}

    def fingerprint(self) -> str:
        return self.index.fingerprint()


class FakeStream(StreamDataset):
    """Numbers in order; a few of them may be bad."""

    def __init__(self, n: int, *, seed: int = 0, bad: Sequence[int] = ()) -> None:
        self._data = FakeDataset(n, seed=seed, bad=bad)
        self._n = n

    def open(self, epoch: int, start: int) -> Iterator[int]:
        return iter(range(start, self._n))

    def fetch_items(
        self, items: Sequence[Any], positions: np.ndarray, epoch: int, *, rows: Any, times: Any
    ) -> list[Sample | BadSample]:
        return self._data.fetch(np.asarray(items, np.int64), positions, epoch)

    def fingerprint(self) -> str:
        return "stream"


class Collated(Collate):
    """Stacks what FakeDataset gives."""

    def __call__(self, samples: list[Sample]) -> Batch:
        batch: Batch = {
            name: np.array([sample[name] for sample in samples])
            for name in ("label", "index", "position")
        }
        batch["image"] = np.stack([sample["image"] for sample in samples])
        batch["key"] = [sample["key"] for sample in samples]
        return batch

    def overhead(self, batch: Batch) -> tuple[int, int]:
        return 3 * len(batch["key"]), 4 * len(batch["key"])


class DrawingDataset(FakeDataset):
    """Says that it draws from the global random states."""

    global_random = True


class DrawingCollate(Collated):
    """Says that it draws from the global random states."""

    global_random = True


def make_loader(dataset: Any, sampler: Any = None, **changes: Any) -> Loader:
    """A loader with small settings; `changes` go to the loader or to its settings."""
    names = ("seed", "split", "rank", "world_size", "identity", "bad_samples_path", "group",
             "collate", "goes_on")  # fmt: skip
    own = {name: changes.pop(name) for name in names if name in changes}
    defaults = {"engine": "inline", "batch_size": 8, "num_workers": 0, "drop_last": False}
    settings = LoaderSettings(**{**defaults, **changes})
    own = {"seed": 0, "collate": Collated(), "identity": {}, **own}
    return Loader(dataset, sampler=sampler, settings=settings, **own)


def the_pool(loader: Loader) -> Any:
    """The executor of a loader; None before it is started."""
    return loader._scheduler._executor


def pids_of(loader: Loader) -> list[int]:
    """Process ids of the workers."""
    return [worker.child.pid for worker in the_pool(loader)._workers]


def kill_worker(loader: Loader, number: int, *, spared: Sequence[int] = ()) -> int:
    """Kill a worker process; its process id.

    Args:
        loader: Its loader, at work.
        number: Its number.
        spared: Those killed before, one of which may not be replaced yet.
    """
    wait_until(lambda: pids_of(loader)[number] not in spared, "it is not replaced")
    pid: int = pids_of(loader)[number]
    os.kill(pid, signal.SIGKILL)
    return pid


def digests(loader: Loader, epochs: int = 1) -> list[str]:
    return [digest(batch) for _ in range(epochs) for batch in loader]


class Nothing:
    """A batch computer that takes no time and gives no batch."""

    imports: tuple[str, ...] = ()
    global_random = False

    def several(self, tasks: Any, *, allocate: Any = None) -> list[Delivery]:
        return [Delivery(task.number, {}) for task in tasks]


class Bare(Storage):
    """A storage without columns."""

    def __init__(self, storage: Any) -> None:
        self.index = storage.index
        self._storage = storage

    def read(self, indices: Any) -> Any:
        return self._storage.read(indices)

    def fingerprint(self) -> str:
        return self._storage.fingerprint()
