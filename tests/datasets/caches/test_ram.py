"""Records in memory: the same storage, the same pixels, within the limit."""

from __future__ import annotations

import logging
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from penstock.core.contracts import TransformCapabilities
from penstock.core.sample import BadRecord
from penstock.datasets.caches.limits import parse_bytes
from penstock.datasets.caches.ram import open_ram_cache
from penstock.datasets.map_dataset import MapDataset
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.datasets.storages.memmap import MemmapStorage
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.raw import RawDecoder
from penstock.transforms.decode.scaled import ScaledDecoder
from tests.cached_records import BAD, EXPECTED, Records, fields
from tests.contracts.storage import check_storage, summary
from tests.encoded_images import JPEGS, OTHERS
from tests.memory_storage import MemoryStorage
from tests.photographs import photograph, turned


@pytest.mark.parametrize("max_bytes", [60_000, "10MB"], ids=["half fits", "all fits"])
def test_it_is_the_storage_that_it_wraps(max_bytes):
    check_storage(lambda: open_ram_cache(Records(), max_bytes=max_bytes), EXPECTED)


def test_what_is_held_is_not_read_again_and_bad_records_are():
    storage = MemoryStorage(fields())
    cache = open_ram_cache(storage, max_bytes="64MB")
    every = np.arange(12)
    for epoch in range(3):
        records = cache.read(every[::-1])
        assert summary(records) == summary(storage.read(every[::-1]))
        assert (records.hits, records.misses) == ((0, 12) if epoch == 0 else (11, 1))
    assert isinstance(records[11 - BAD], BadRecord)
    assert storage.reads[::2] == [[*range(11, -1, -1)], [BAD], [BAD]]
    assert str(cache) == str(storage)


def _hit_rates(share: float, epochs: int = 12, n: int = 800) -> list[float]:
    """Hits of shuffled epochs, with memory for a share of the records."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(4000, 12_000, n)
    storage = MemoryStorage([{"image": bytes(size)} for size in sizes.tolist()])
    size_bytes = int(share * (sizes.sum() + 192 * n)) + 8192 + 8 * n
    cache = open_ram_cache(storage, max_bytes=size_bytes)
    rates = []
    for _ in range(epochs):
        records = [cache.read(part) for part in np.split(rng.permutation(n), 50)]
        rates.append(sum(r.hits for r in records) / n)
    return rates


def test_half_of_the_memory_hits_half_of_the_time_over_shuffled_epochs():
    assert np.mean(_hit_rates(0.5)[1:]) == pytest.approx(0.5, abs=0.02)
    assert min(_hit_rates(1.05, epochs=3)[1:]) == 1.0


def test_records_that_are_drawn_more_often_are_held():
    rng = np.random.default_rng(0)
    storage = MemoryStorage([{"image": bytes(8000)} for _ in range(600)])
    weights = 1 / np.arange(1.0, 601)
    cache = open_ram_cache(storage, max_bytes="1MB")
    for _ in range(60):
        records = cache.read(rng.choice(600, 200, p=weights / weights.sum()))
    assert records.hits > 120  # of a fifth of the records, with two thirds of the weight


def test_no_more_memory_is_taken_than_allowed():
    storage = MemoryStorage([{"image": bytes([i % 256]) * 50_000} for i in range(200)])
    cache = open_ram_cache(storage, max_bytes="2MB")
    for epoch in range(6):
        cache.read(np.random.default_rng(epoch).permutation(200))
    taken = os.fstat(cache.store._area.descriptor).st_blocks * 512
    assert 1_000_000 < taken <= 2_000_000
    shm = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    # Other processes of this machine may have semaphores there.
    assert not [name for name in shm if "penstock" in name and not name.startswith("sem.")]


def test_threads_share_it():
    storage = MemoryStorage([{"image": bytes([i]) * (100 * i)} for i in range(200)])
    cache = open_ram_cache(storage, max_bytes=900_000)
    every = summary(storage.read(np.arange(200)))

    def work(seed: int) -> bool:
        order = np.random.default_rng(seed).permutation(200)
        return summary(cache.read(order)) == [every[i] for i in order.tolist()]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(60)))


IMAGES = {
    **JPEGS,
    **{name: data for name, data in OTHERS.items() if "LA" not in name},
    "photograph": photograph(200, 300),
    "tiled": photograph(200, 320, interval=20),
    "damaged at its end": photograph(200, 300)[:-200],
    **{f"turned {n}": turned(40, 60, n) for n in (3, 6)},
    "pixels": np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8),
}


class _CropHead:
    """Cuts out a part near the top left, of pending images as of others."""

    capabilities = TransformCapabilities(crops_first=True)

    def __call__(self, sample, rng):
        image = sample["image"]
        left, top = (int(v) for v in rng.integers(0, 8, 2))
        if hasattr(image, "around"):
            pixels, x, y = image.around((left, top, left + 20, top + 16))
            image = pixels[top - y : top - y + 16, left - x : left - x + 20]
        else:
            image = image[top : top + 16, left : left + 20]
        return {**sample, "image": image.copy()}


@pytest.mark.parametrize("what", ["encoded", "decoded"])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_pixels_are_those_without_it(what, mode):
    storage = MemoryStorage([{"jpg": image, "label": 1} for image in IMAGES.values()])
    keys = {"jpg": "image"}
    every = np.arange(len(IMAGES))
    for region, transform in (("exact", _CropHead()), ("whole", _CropHead())):
        decode = ImageDecoder(mode=mode, region=region)
        cache = open_ram_cache(storage, decode=decode, keys=keys, max_bytes="64MB", what=what)
        plain, ours = (
            MapDataset(each, decode=decode, transform=transform, seed=3, keys=keys)
            for each in (storage, cache)
        )
        for epoch in range(3):
            for a, b in zip(
                plain.fetch(every, every, epoch), ours.fetch(every, every, epoch), strict=True
            ):
                if isinstance(a, dict):
                    assert np.array_equal(a["image"], b["image"])
                    assert a["image"].shape == b["image"].shape
                    assert {**a, "image": 0} == {**b, "image": 0}
                else:
                    assert a == b
    if what == "decoded":
        records = cache.read(every)
        assert records.hits >= len(IMAGES) - 3
        kept = [r.fields["jpg"] for r in records if hasattr(r.fields["jpg"], "dtype")]
        assert len(kept) >= len(IMAGES) - 3


def test_decoded_pixels_are_not_copied_out_and_cannot_be_harmed():
    storage = MemoryStorage([{"image": photograph(64, 64), "label": 1}])
    cache = open_ram_cache(storage, decode=ImageDecoder(), max_bytes="8MB", what="decoded")
    first = cache.read(np.array([0]))[0].fields["image"]
    first[:] = 0  # what was read first is its reader's own
    held = cache.read(np.array([0]))[0].fields["image"]
    assert held.any()
    assert not held.flags.writeable
    sample = ImageDecoder()(cache.read(np.array([0]))[0])
    sample["image"][:] = 0
    assert np.array_equal(cache.read(np.array([0]))[0].fields["image"], held)
    assert held.any()


def test_pixels_that_depend_on_the_crop_are_not_kept():
    storage = MemoryStorage(fields())
    for decode in (ScaledDecoder(), RawDecoder(), None):
        with pytest.raises(ValueError, match=r"dataset\.cache\.what: decoded given"):
            open_ram_cache(storage, decode=decode, what="decoded")
        open_ram_cache(storage, decode=decode, max_bytes="1MB")


def test_records_that_cannot_be_packed_pass_and_it_is_said_once(caplog):
    storage = MemoryStorage([{"image": {1, 2}}, {"image": {3}}, {"image": b"x"}])
    cache = open_ram_cache(storage, max_bytes="1MB")
    for _ in range(2):
        assert [r.fields["image"] for r in cache.read(np.arange(3))] == [{1, 2}, {3}, b"x"]
    assert caplog.text.count("is not kept") == 1


def test_columns_are_passed_on_and_a_map_is_better_left_alone(tmp_path, caplog):
    np.save(tmp_path / "images.npy", np.arange(5 * 12, dtype=np.uint8).reshape(5, 2, 2, 3))
    storage = MemmapStorage(str(tmp_path))
    with caplog.at_level(logging.WARNING):
        cache = open_ram_cache(storage, max_bytes="1MB")
    assert "dataset/cache=none is better" in caplog.text
    indices = np.array([3, 0, 3])
    columns = cache.capabilities.columns
    assert columns.fields == ("image",)
    taken = columns.take(indices, ["image"])["image"]
    assert np.array_equal(taken, storage.take(indices, ["image"])["image"])
    data = MapDataset(cache, decode=RawDecoder(), transform=_Unchanged(), seed=0)
    assert data.columnar


class _Unchanged:
    capabilities = TransformCapabilities(unchanged=True)

    def __call__(self, sample, rng):
        return sample


def test_an_image_folder_through_it_pickles_small_and_stays_shared(tmp_path):
    for i in range(20):
        (tmp_path / f"{i % 2}").mkdir(exist_ok=True)
        (tmp_path / f"{i % 2}" / f"{i}.jpg").write_bytes(photograph(30 + i, 40))
    cache = open_ram_cache(ImageFolder(str(tmp_path)), max_bytes="4MB")
    copy = pickle.loads(pickle.dumps(cache))
    assert copy.read(np.arange(20)).misses == 20
    again = cache.read(np.arange(20))
    assert again.hits == 20
    assert summary(again) == summary([replace(r) for r in cache.base.read(np.arange(20))])


@pytest.mark.parametrize(
    "given, expected",
    [("4GB", 4 * 10**9), ("1.5 MB", 1_500_000), ("2GiB", 2 << 30), ("300", 300), (77, 77),
     ("25%", 250), ("12b", 12), ("1kib", 1024)],
)  # fmt: skip
def test_amounts(given, expected):
    assert parse_bytes(given, whole=1000) == expected


@pytest.mark.parametrize("given", ["", "x", "4 XB", "-1GB", 0, -5, "0", "0%", "101%", True, "1e9"])
def test_what_is_no_amount_is_said_in_a_line(given):
    with pytest.raises(ValueError, match=r"^dataset\.cache\.max_bytes: .* such as 4GB") as caught:
        parse_bytes(given, whole=1000)
    assert "\n" not in str(caught.value)


def test_a_limit_that_the_table_alone_would_take():
    with pytest.raises(ValueError, match=r"max_bytes: 5,000 bytes.*allow more"):
        open_ram_cache(MemoryStorage([{"image": b""}] * 500), max_bytes=5000)


def test_a_limit_above_what_there_is_is_lowered_and_said(caplog, monkeypatch):
    monkeypatch.setattr("penstock.datasets.caches.ram.available_bytes", lambda: 10_000_000)
    cache = open_ram_cache(MemoryStorage(fields()), max_bytes="1TB")
    assert len(cache.store._area.memory) <= 9_000_000
    assert "are available" in caplog.text
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    cache = open_ram_cache(MemoryStorage(fields()), max_bytes="40%")
    assert 900_000 < len(cache.store._area.memory) <= 1_000_000
