"""A dataset in which single records end or stop the process that computes them."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import time
from pathlib import Path
from typing import Any

from penstock.pipeline.samplers.random import RandomSampler
from tests.pipeline.loader.fakes import Collated, FakeDataset, digests, make_loader

N = 60
RECORD = 20


class DeadlyDataset(FakeDataset):
    """FakeDataset with one record that is computed in a way that ends badly.

    Args:
        how: ``kill``, ``segfault``, ``memory``, ``hang``, ``stop``, or ``busy``: the first four
            computations take 3 s.
        witness: A file that gets a line for every time the record is computed.
    """

    def __init__(self, how: str, witness: Path | None = None, **settings: Any) -> None:
        super().__init__(N, **settings)
        self.how, self.witness = how, witness

    def _one(self, index: int, position: int, epoch: int) -> Any:
        if index == RECORD:
            if self.witness is not None:
                with open(self.witness, "a") as file:
                    file.write(f"{os.getpid()} {position}\n")
            if self.how != "busy":
                _end(self.how)
            elif len(self.witness.read_text().splitlines()) <= 4:
                time.sleep(3)
        return super()._one(index, position, epoch)


class DeadlyCollate(Collated):
    """Ends the process that collates one record with others."""

    def __call__(self, samples: list[Any]) -> Any:
        if len(samples) > 1 and any(sample["index"] == RECORD for sample in samples):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(samples)


def _end(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(3600)  # the thread may run on for a moment
    elif how == "segfault":
        faulthandler.disable()  # the runner's; its report of this one would look like a real one
        ctypes.string_at(0)
    elif how == "memory":
        bytearray(1 << 60)
    elif how == "hang":
        time.sleep(3600)
    else:
        raise AssertionError(how)


def sampler() -> RandomSampler:
    return RandomSampler(N)


def position_of(record: int, epoch: int = 0) -> int:
    return sampler().indices(epoch, 0, N).tolist().index(record)


def expected(epochs: int = 1, quarantined: bool = True) -> list[str]:
    """Batches of the inline engine, with the deadly record quarantined from the start."""
    loader = make_loader(FakeDataset(N), sampler())
    if quarantined:
        loader.load_state_dict(loader.state_dict() | {"quarantined": [RECORD]})
    return digests(loader, epochs)
