"""A dataset whose reading is apart and whose images are written into rows, and fake page locks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from datasets.sample import BadSample, Sample
from pipeline.columns import from_rows
from pipeline.loader import host_memory
from tests.pipeline.loader.fakes import Collated, FakeDataset


class StagedFake(FakeDataset):
    """FakeDataset in two parts; the samples are those of FakeDataset.

    Args:
        on_read: Called with the records before they are read.
        on_finish: Called with the positions before they are decoded.
        **settings: Those of FakeDataset.
    """

    def __init__(
        self,
        n: int,
        *,
        on_read: Callable[[list[int]], None] | None = None,
        on_finish: Callable[[list[int]], None] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(n, **settings)
        self.on_read, self.on_finish = on_read, on_finish

    @property
    def row_shape(self) -> tuple[int, int, int]:
        return self.size, self.size, 3

    def read(self, indices: Any) -> list[int]:
        records: list[int] = indices.tolist()
        if self.on_read is not None:
            self.on_read(records)
        return records

    def finish(
        self,
        records: Sequence[int],
        positions: Any,
        epoch: int,
        *,
        rows: Any = None,
        times: Any = None,
    ) -> list[Sample | BadSample]:
        if self.on_finish is not None:
            self.on_finish(positions.tolist())
        samples = []
        for row, (index, position) in enumerate(zip(records, positions.tolist(), strict=True)):
            sample = self._one(index, position, epoch)
            if rows is not None and not isinstance(sample, BadSample):
                rows[row] = sample["image"]
                sample["image"] = rows[row]
            samples.append(sample)
        return samples

    def fetch(self, indices: Any, positions: Any, epoch: int) -> list[Sample | BadSample]:
        return self.finish(self.read(indices), positions, epoch)


class RowsCollated(Collated):
    """Makes the image tensor of the rows that the images were written to."""

    def with_rows(self, samples: list[Sample], rows: Any) -> Any:
        batch = self(samples)
        image = from_rows([sample["image"] for sample in samples], rows)
        return batch if image is None else {**batch, "image": image}


class FakeFence:
    """Passed when the test says so."""

    def __init__(self, passed: bool) -> None:
        self.passed, self.waited_for = passed, False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.waited_for = self.passed = True


class FakeMemory:
    """Page locks without CUDA: what was asked for, and slabs that are spoiled when they go.

    Attributes:
        slabs: Slabs made; the same ones are given out again and again.
        pinned_bytes: Sizes of the tensors that were copied into a slab.
        registered: Sizes of registered memory by address.
        calls: ``("register" or "unregister", address)``, in order.
        fences: Those made; they are passed if `passed`.
    """

    def __init__(self, *, refuses: bool = False, passed: bool = True) -> None:
        self.refuses, self.passed = refuses, passed
        self.slabs = 0
        self.pinned_bytes: list[int] = []
        self.registered: dict[int, int] = {}
        self.calls: list[tuple[str, int]] = []
        self.fences: list[FakeFence] = []
        self._free: list[bytearray] = []
        self._lent: dict[int, tuple[weakref.ref[memoryview], bytearray]] = {}

    def allocate(self, size_bytes: int) -> torch.Tensor:
        slab = next((slab for slab in self._free if len(slab) == size_bytes), None)
        if slab is None:
            slab = bytearray(size_bytes)
            self.slabs += 1
        else:
            self._free = [other for other in self._free if other is not slab]
        view = memoryview(slab)
        ref = weakref.ref(view, self._ended)
        self._lent[id(ref)] = ref, slab
        return torch.frombuffer(view, dtype=torch.uint8)

    def _ended(self, ref: weakref.ref[memoryview]) -> None:
        slab = self._lent.pop(id(ref))[1]
        slab[:] = b"\xee" * len(slab)
        self._free.append(slab)

    @property
    def lent(self) -> int:
        """Slabs that somebody views."""
        return len(self._lent)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        for start, size_bytes in self.registered.items():
            if start <= tensor.data_ptr() < start + size_bytes:
                return tensor
        self.pinned_bytes.append(tensor.nbytes)
        copy = self.allocate(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
        return copy.copy_(tensor)

    def register(self, address: int, size_bytes: int) -> bool:
        self.calls.append(("register", address))
        assert (is_mapped(address) and not self.refuses) or self.refuses
        if not self.refuses:
            assert address not in self.registered
            self.registered[address] = size_bytes
        return not self.refuses

    def unregister(self, address: int) -> None:
        self.calls.append(("unregister", address))
        assert is_mapped(address), "unmapped before"
        del self.registered[address]

    def fence(self) -> FakeFence:
        self.fences.append(FakeFence(self.passed))
        return self.fences[-1]


def use_instead_of_cuda(monkeypatch: Any, memory: FakeMemory) -> None:
    """Let loaders take `memory` for that of CUDA."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(host_memory, "CudaHostMemory", lambda: memory)


def is_mapped(address: int) -> bool:
    """Whether there is memory at an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(part, 16) for part in line.split(" ", 1)[0].split("-"))
        if start <= address < stop:
            return True
    return False
