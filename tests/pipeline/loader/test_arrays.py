"""Data that is no images: the same batches from every engine, and one copy of what is mapped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from penstock import compose
from penstock.core.contracts import Storage
from penstock.datasets.map_dataset import MapDataset
from penstock.datasets.storages.memmap.storage import MemmapStorage
from penstock.datasets.storages.npy_shards import open_npy_shards
from penstock.pipeline.build import build_loader
from penstock.pipeline.collates.stack import stack
from penstock.pipeline.config.components import register_components
from penstock.pipeline.loader.compute import BatchComputer
from penstock.pipeline.loader.contract import BatchTask
from penstock.pipeline.samplers.sequential import SequentialSampler
from penstock.transforms.cpu.stack import build_stack
from penstock.transforms.decode.array import ArrayDecoder
from tests.building import build_step
from tests.contracts.equality import assert_same

register_components()
N = 24
rng = np.random.default_rng(0)
ARRAYS = {
    "waveform": rng.normal(size=(N, 300)).astype(np.float32),
    "volume": rng.integers(-1000, 1000, (N, 12, 10, 9)).astype(np.int16),
    "spectrum": (rng.normal(size=(N, 40, 3)) + 1j * rng.normal(size=(N, 40, 3))).astype("<c8"),
    "big_endian": rng.normal(size=(N, 20, 20)).astype(">f8"),
}
CROPS = {"waveform": "[64]", "volume": "[5,null,4]", "spectrum": "[16]", "big_endian": "[8,8]"}
WAYS = [
    ["loader=threads", "loader.num_workers=2"],
    ["loader=processes", "loader.num_workers=2"],
    ["loader=torch", "loader.num_workers=2"],
]


def write(folder: Path, kind: str) -> Path:
    folder.mkdir()
    for shard in range(3):
        rows = slice(shard * 8, shard * 8 + 8)
        np.save(folder / f"array_{shard}.npy", ARRAYS[kind][rows])
        np.save(folder / f"labels_{shard}.npy", np.arange(N)[rows] % 4)
    return folder


@pytest.mark.parametrize("crop", [False, True], ids=["whole", "crop"])
@pytest.mark.parametrize("kind", ARRAYS)
def test_every_engine_makes_the_same_batches(tmp_path, kind, crop):
    folder = write(tmp_path / "shards", kind)
    common = [
        "dataset=npy_shards", f"dataset.storage.path={folder}", "dataset/decode=array",
        "augment=small", "loader.batch_size=5", "loader.drop_last=false", "sampler=random",
        "dataset.val_fraction=0",
    ]  # fmt: skip
    if crop:
        step = f"{{_target_: transform/array_crop, size: {CROPS[kind]}}}"
        common.append(f"augment.train.crop={step}")

    def epochs(way):
        with build_loader(compose([*common, *way])) as loader:
            return [list(loader) for _ in range(2)]

    expected = epochs(["loader=inline"])
    assert len(expected[0]) == 5
    for batch in expected[0]:
        for row, index in enumerate(batch["index"].tolist()):
            whole, part = ARRAYS[kind][index], batch["array"][row].numpy()
            assert part.dtype == whole.dtype.newbyteorder("=")
            if crop:
                assert np.isin(part, whole).all() and part.shape != whole.shape
            else:
                assert np.array_equal(part, whole)
    for way in WAYS:
        assert_same(epochs(way), expected)


class Counting(np.ndarray):
    """An array whose copies are counted."""

    copies = 0

    def __array_finalize__(self, source):
        if isinstance(source, Counting) and not np.shares_memory(self, source):
            Counting.copies += 1


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("storage_name", ["memmap", "npy_shards"])
def test_a_slice_of_a_map_is_copied_once_and_to_where_the_batch_is_wanted(
    tmp_path, monkeypatch, kind, storage_name
):
    monkeypatch.setattr("penstock.datasets.array_shards.storage.ArrayStorage.large_row_bytes", 0)
    folder = tmp_path / "arrays"
    if storage_name == "memmap":
        folder.mkdir()
        np.save(folder / "array.npy", ARRAYS[kind])
        storage = MemmapStorage(str(folder))
    else:
        storage = open_npy_shards(str(write(folder, kind)))
    crop = {"_target_": "transform/array_crop", "size": [5], "place": "centre"}
    data = MapDataset(
        Watched(storage),
        decode=ArrayDecoder(),
        transform=build_stack({"crop": crop}, build_step=build_step),
        seed=0,
    )
    computer = BatchComputer(
        data, sampler=SequentialSampler(N), collate=stack, seed=0, on_error="raise"
    )
    at = np.array([5, 0, 21, 5])
    task = BatchTask(0, 0, at, np.ones(4, np.bool_), at)
    slot, asked = bytearray(1 << 20), []

    def allocate(size_bytes):
        asked.append(size_bytes)
        return memoryview(slot)[:size_bytes]

    Counting.copies = 0
    batch = computer(task, allocate=allocate).batch
    assert Counting.copies == 0, "the only copy is into the batch"
    assert asked == [batch["array"].nbytes]
    assert np.shares_memory(batch["array"], np.frombuffer(slot, np.uint8))
    middle = (ARRAYS[kind].shape[1] - 5) // 2
    wanted = np.ascontiguousarray(ARRAYS[kind][at, middle : middle + 5])
    assert np.array_equal(batch["array"], wanted)
    assert_same(batch, computer(task).batch)


class Watched(Storage):
    """A storage whose arrays count their copies; it must give views."""

    def __init__(self, storage):
        self._storage = storage
        self.index = storage.index

    def read(self, indices):
        records = self._storage.read(indices)
        again = self._storage.read(indices)
        for record, other in zip(records, again, strict=True):
            array = record.fields["array"]
            assert np.shares_memory(array, other.fields["array"]), "a view of the map"
            record.fields["array"] = array.view(Counting)
        return records


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
