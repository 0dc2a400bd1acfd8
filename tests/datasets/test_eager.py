"""Records held in memory: read and decoded once, within the limit."""

from __future__ import annotations

import numpy as np

from penstock.datasets.caches.limits import available_bytes
from penstock.datasets.eager import held_in_memory
from penstock.datasets.map_dataset import MapDataset
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.raw import RawDecoder
from tests.contracts.equality import assert_same
from tests.datasets.test_map_dataset import fetch, identity, storage
from tests.memory_storage import MemoryStorage

ORDER = ([7, 1, 2, 0, 5, 7, 3], [3, 4, 5, 6, 7, 8, 9])


def eager(records, *, decode, keys=None, **others) -> MapDataset:
    """As `datasets.eager.open_eager`, over any storage."""
    held = held_in_memory(records, decode=decode, keys=keys)
    return MapDataset(held, decode=decode, keys=keys, **others)


def test_only_bad_records_are_read_and_decoded_again():
    decoded = []

    class Counting(ImageDecoder):
        def decode(self, data):
            if isinstance(data, bytes):  # pixels pass
                decoded.append(data)
            return super().decode(data)

        whole_image = decode

    records = storage()
    data = eager(records, decode=Counting(), transform=identity, seed=0)
    assert (
        data.fingerprint() == MapDataset(records, decode=None, transform=None, seed=0).fingerprint()
    )
    before = len(records.reads)
    assert len(decoded) >= 6
    decoded.clear()
    fetch(data, *ORDER)
    assert records.reads[before:] == [[2]]
    assert len(decoded) <= 1, "the damaged one alone"


def test_a_transform_does_not_change_the_records_in_memory():
    def spoil(sample, rng):
        sample["image"][:] = 0
        sample["label"] = -1
        return sample

    records = held_in_memory(storage(), decode=ImageDecoder())
    plain, spoiled = (
        MapDataset(records, decode=ImageDecoder(), transform=transform, seed=0)
        for transform in (identity, spoil)
    )
    expected = fetch(plain, [0], [0])
    fetch(spoiled, [0], [0])
    assert_same(fetch(plain, [0], [0]), expected)


def test_records_beyond_the_memory_are_decoded_later(monkeypatch, caplog):
    records = MemoryStorage([{"image": bytes(50_000)} for _ in range(2000)])
    monkeypatch.setattr("penstock.datasets.caches.ram.available_bytes", lambda: 20_000_000)
    held = held_in_memory(records, decode=RawDecoder())
    assert "memory here does not fit into memory" in caplog.text
    assert [len(record.fields["image"]) for record in held.read(np.array([0, 1999]))] == [
        50_000
    ] * 2


def test_available_memory_is_the_smallest_of_the_limits(tmp_path):
    assert available_bytes(tmp_path) is None
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert available_bytes(tmp_path) == 5000 * 1024
    (tmp_path / "proc/self/cgroup").write_text("0::/jobs/mine\n")
    group = tmp_path / "sys/fs/cgroup/jobs"
    (group / "mine").mkdir(parents=True)
    (group / "mine/memory.max").write_text("max\n")
    (group / "mine/memory.current").write_text("100\n")
    assert available_bytes(tmp_path) == 5000 * 1024
    (group / "memory.max").write_text("1000000\n")
    (group / "memory.current").write_text("400000\n")
    (group / "memory.stat").write_text("anon 7\ninactive_file 150000\n")
    assert available_bytes(tmp_path) == 750_000
    real = available_bytes()
    assert real is None or real > 1 << 20
