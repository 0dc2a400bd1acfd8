"""Records in memory: the same storage, the same pixels, within the limit."""

from __future__ import annotations

import os

import numpy as np
import pytest

from penstock.core.contracts import TransformCapabilities
from penstock.core.sample import BadRecord
from penstock.datasets.caches.limits import parse_bytes
from penstock.datasets.caches.ram import open_ram_cache
from penstock.datasets.map_dataset import MapDataset
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
