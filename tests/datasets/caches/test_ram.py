"""Records in memory: the same storage, the same pixels, within the limit."""

from __future__ import annotations

import os

import numpy as np
import pytest

from penstock.core.sample import BadRecord
from penstock.datasets.caches.limits import parse_bytes
from penstock.datasets.caches.ram import open_ram_cache
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.raw import RawDecoder
from tests.cached_records import BAD, EXPECTED, Records, counted_read, fields
from tests.contracts.storage import check_storage, summary
from tests.memory_storage import MemoryStorage
from tests.photographs import photograph


@pytest.mark.parametrize("max_bytes", [60_000, "10MB"], ids=["half fits", "all fits"])
def test_it_keeps_the_contract_of_its_storage(max_bytes):
    check_storage(lambda: open_ram_cache(Records(), max_bytes=max_bytes), EXPECTED)


def test_only_bad_records_are_read_again():
    storage = MemoryStorage(fields())
    cache = open_ram_cache(storage, max_bytes="64MB")
    every = np.arange(12)
    for epoch in range(3):
        records = counted_read(cache, every[::-1])
        assert summary(records) == summary(storage.read(every[::-1]))
        assert (records.hits, records.misses) == ((0, 12) if epoch == 0 else (11, 1))
    assert isinstance(records[11 - BAD], BadRecord)
    assert storage.reads[::2] == [[*range(11, -1, -1)], [BAD], [BAD]]
    assert str(cache) == str(storage)


def test_no_more_memory_is_taken_than_allowed():
    storage = MemoryStorage([{"image": bytes([i % 256]) * 50_000} for i in range(200)])
    cache = open_ram_cache(storage, max_bytes="2MB")
    for epoch in range(6):
        cache.read(np.random.default_rng(epoch).permutation(200))
    taken = os.stat(cache.store.path).st_blocks * 512
    assert 1_000_000 < taken <= 2_000_000
    shm = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    # Other processes of this machine may have semaphores there.
    assert not [name for name in shm if "penstock" in name and not name.startswith("sem.")]


def test_decoded_pixels_are_read_only_views():
    storage = MemoryStorage([{"image": photograph(64, 64), "label": 1}])
    cache = open_ram_cache(storage, decode=ImageDecoder(), max_bytes="8MB", what="decoded")
    first, held = (cache.read(np.array([0]))[0].fields["image"] for _ in range(2))
    assert np.array_equal(first, held) and held.any()
    assert not first.flags.writeable and not held.flags.writeable
    sample = ImageDecoder()(cache.read(np.array([0]))[0])
    sample["image"][:] = 0
    assert np.array_equal(cache.read(np.array([0]))[0].fields["image"], held)
    assert held.any()


def test_pixels_that_depend_on_the_crop_are_not_kept():
    storage = MemoryStorage(fields())
    for decode in (RawDecoder(), None):
        with pytest.raises(ValueError, match=r"dataset\.cache\.what: decoded given"):
            open_ram_cache(storage, decode=decode, what="decoded")
        open_ram_cache(storage, decode=decode, max_bytes="1MB")


def test_records_that_it_cannot_hold_are_read_again():
    cache = open_ram_cache(MemoryStorage([{"image": {1, 2}}, {"image": b"x"}]), max_bytes="1MB")
    for hits in range(2):
        records = counted_read(cache, np.arange(2))
        assert [r.fields["image"] for r in records] == [{1, 2}, b"x"] and records.hits == hits


@pytest.mark.parametrize(
    "given, expected",
    [("4GB", 4 * 10**9), ("1.5 MB", 1_500_000), ("2GiB", 2 << 30), ("300", 300), (77, 77)],
)
def test_amounts(given, expected):
    assert parse_bytes(given) == expected


@pytest.mark.parametrize("given", ["", "x", "4 XB", "-1GB", 0, "0", "40%", "1e9"])
def test_invalid_amounts_are_refused(given):
    with pytest.raises(ValueError, match=r"^an amount such as 4GB or 500MB$"):
        parse_bytes(given)


def test_a_limit_below_the_size_of_the_table_is_refused():
    with pytest.raises(ValueError, match=r"max_bytes: 4,000 bytes.*allow more"):
        open_ram_cache(MemoryStorage([{"image": b""}] * 500), max_bytes=4000)
