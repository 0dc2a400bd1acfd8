"""Records on disk: from run to run, by several at once, never a damaged one, within the limit."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.datasets.caches.disk import open_disk_cache
from penstock.datasets.storages.csv import CsvStorage
from penstock.transforms.decode.image import ImageDecoder
from tests.cached_records import BAD, EXPECTED, Records
from tests.contracts.storage import check_storage, summary
from tests.memory_storage import MemoryStorage
from tests.photographs import photograph

EVERY = np.arange(12)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "caches"


def closed(cache) -> None:
    """As at the end of a run."""
    cache.store.close()


def same_as_source(cache) -> bool:
    return summary(cache.read(EVERY)) == summary(Records().read(EVERY))


def filled(folder: Path, **arguments):
    cache = open_disk_cache(Records(), path=str(folder), **arguments)
    cache.read(EVERY)
    return cache


def test_it_is_the_storage_that_it_wraps(folder):
    check_storage(lambda: open_disk_cache(Records(), path=str(folder)), EXPECTED)


def test_a_later_run_hits_what_an_earlier_one_read(folder):
    closed(filled(folder))
    storage = Records()
    cache = open_disk_cache(storage, path=str(folder))
    records = cache.read(EVERY)
    assert (records.hits, records.misses, records.damaged) == (11, 1, 0)
    assert storage.reads == [[BAD]]
    assert summary(records) == summary(Records().read(EVERY))
    records[0].fields["boxes"][:] = 9
    assert same_as_source(cache)


def test_images_of_another_place_are_another_cache(folder, tmp_path):
    (tmp_path / "table.csv").write_text("image,label\na.jpg,0\n")
    found = []
    for place in ("v1", "v2"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.jpg").write_bytes(place.encode() * 4)
        storage = CsvStorage(str(tmp_path / "table.csv"), root=str(tmp_path / place))
        cache = open_disk_cache(storage, path=str(folder))
        found.append(cache.read(np.array([0]))[0].fields["image"])
        closed(cache)
    assert found == [b"v1v1v1v1", b"v2v2v2v2"]


def test_a_record_of_thousands_of_arrays(folder):
    rows = [np.arange(n % 5) for n in range(3000)]
    cache = open_disk_cache(MemoryStorage([{"rows": rows}]), path=str(folder))
    _, again = cache.read(np.array([0])), cache.read(np.array([0]))
    assert (again.hits, again.damaged) == (1, 0)
    assert all(map(np.array_equal, again[0].fields["rows"], rows))


def test_other_data_other_decoding_and_another_place_are_other_caches(folder):
    class Elsewhere(Records):
        def __str__(self) -> str:
            return "memory elsewhere"

    filled(folder)
    image = {"image": photograph(40, 50), "label": 1}
    storage = MemoryStorage([image])
    caches = [open_disk_cache(Elsewhere(), path=str(folder))]
    for decode in (ImageDecoder(), ImageDecoder(mode="L"), ImageDecoder(orientation="ignore")):
        caches.append(open_disk_cache(storage, path=str(folder), decode=decode, what="decoded"))
        caches.append(open_disk_cache(storage, path=str(folder), decode=decode))
    names = [cache.store.path for cache in caches]
    assert len(set(names)) == 5, "decoding matters where pixels are kept, and only there"
    for cache in caches:
        assert cache.read(np.array([0])).hits == (cache is not caches[0] and cache in caches[4::2])
    grey = caches[3].read(np.array([0]))
    assert grey.hits == 1
    assert grey[0].fields["image"].shape == (40, 50, 1)
    assert np.array_equal(grey[0].fields["image"], ImageDecoder(mode="L").decode(image["image"]))


def test_every_flipped_byte_is_found(folder):
    closed(filled(folder))
    (path,) = folder.glob("*.records")
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    noticed = 0
    for at in sorted({*rng.integers(0, len(whole), 25).tolist(), *range(0, 120, 7)}):
        damaged = bytearray(whole)
        damaged[at] ^= int(rng.integers(1, 256))
        path.unlink(missing_ok=True)  # what others have open stays as it is
        path.write_bytes(damaged)
        cache = open_disk_cache(Records(), path=str(folder))
        noticed += cache.read(EVERY).damaged
        assert same_as_source(cache), at
        assert same_as_source(cache), at
        closed(cache)
    assert noticed > 10


def test_what_is_damaged_is_dropped_counted_said_once_and_kept_anew(folder, caplog):
    closed(filled(folder))
    (path,) = folder.glob("*.records")
    with open(path, "r+b") as file:
        places = np.frombuffer(file.read(8 * 12), np.int64).copy()
        for record in range(7):
            if places[record]:
                file.seek(places[record] + 20)
                file.write(b"zeros")
        places[7:9] = places[8], 0
        file.seek(0)
        file.write(places.tobytes())
    cache = open_disk_cache(Records(), path=str(folder))
    with caplog.at_level(logging.WARNING):
        records = cache.read(EVERY)
    assert records.damaged == 7, "six, and one that is another record's"
    assert records.misses == records.damaged + 2
    assert caplog.text.count("damaged entry") == 1
    assert summary(records) == summary(Records().read(EVERY))
    assert cache.read(EVERY).hits == 11


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_file_cut_short_gives_misses_and_never_a_signal(folder, share):
    for is_open in (True, False):
        shutil.rmtree(folder, ignore_errors=True)
        cache = filled(folder)
        if not is_open:
            closed(cache)
        (path,) = folder.glob("*.records")
        os.truncate(path, int(share * path.stat().st_size))
        if not is_open:
            cache = open_disk_cache(Records(), path=str(folder))
        assert same_as_source(cache)
        assert same_as_source(cache)


def test_a_full_disk_ends_admission_with_one_warning(folder, caplog):
    code = (
        "import resource, signal, sys, logging, numpy as np; logging.basicConfig();"
        "from penstock.datasets.caches.disk import open_disk_cache;"
        "from tests.cached_records import Records;"
        "from tests.contracts.storage import summary;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "cache = open_disk_cache(Records(), path=sys.argv[1]); every = np.arange(12);"
        "cache.read(every[:2]);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000));"
        "same = [summary(cache.read(every)) == summary(Records().read(every)) for _ in range(5)];"
        "print(same, cache.read(every).hits)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=Path(__file__).resolve().parents[3], capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.startswith("[True, True, True, True, True] "), done.stderr
    assert int(done.stdout.split()[-1]) < 11
    assert done.stderr.count("nothing more is admitted") == 1, done.stderr
    assert done.stderr.count("WARNING") == 1, done.stderr


def test_a_folder_that_cannot_be_used_is_said_in_a_line(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    for path in (file, file / "below", Path("/proc/nowhere")):
        with pytest.raises(ValueError, match=r"^dataset\.cache\.path: .* cannot be") as caught:
            open_disk_cache(Records(), path=str(path))
        assert "\n" not in str(caught.value)
