"""LMDB files damaged or cut short anywhere: an error or bad records, never a crash."""

import numpy as np
import pytest

from penstock.core.sample import BadRecord, Record
from penstock.datasets.storages.lmdb import LmdbStorage
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import read_all
from tests.datasets.storages.lmdb_files import Listed, foreign, images, packed_file
from tests.packed import write_lmdb

rng = np.random.default_rng(0)


def test_a_flipped_bit_anywhere_is_an_error_or_spoils_the_record_it_is_in(tmp_path):
    records = images(30)
    write_lmdb(tmp_path / "a", Listed(records))
    data = packed_file(tmp_path / "a")
    wanted = list(records.values())
    spoilt_runs = refused = 0
    for _ in flipped(data, rng.integers(0, data.stat().st_size, 300), rng):
        found = unless_refused(lambda: LmdbStorage(str(tmp_path / "a")).read(np.arange(30)))
        refused += found is None
        bad = [r for r in found or () if isinstance(r, BadRecord)]
        assert len(bad) <= 1
        assert all("checksum" in r.cause for r in bad)
        assert all(r.fields == wanted[r.index] for r in found or () if isinstance(r, Record))
        spoilt_runs += len(bad)
    assert spoilt_runs > 50 and refused > 0


def test_a_file_cut_short_is_one_clear_error(tmp_path):
    write_lmdb(tmp_path / "a", Listed(images(30)))
    data = packed_file(tmp_path / "a")
    content = data.read_bytes()
    storage = LmdbStorage(str(tmp_path / "a"))
    assert len(storage) == 30
    for size in (0, 1, 100, 4096, 8192, len(content) // 2, len(content) - 1):
        data.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"cut short") as error:
            len(LmdbStorage(str(tmp_path / "a")))
        assert "\n" not in str(error.value)
        # Cut while it is open: bad records, and no bus error.
        if size <= len(content) // 2:
            assert isinstance(storage.read(np.array([29]))[0], BadRecord)


def test_a_foreign_file_damaged_anywhere_never_ends_the_interpreter(tmp_path):
    items = {b"%08d" % i: np.random.default_rng(i).bytes(i * 37 % 6000) for i in range(200)}
    path = foreign(tmp_path / "f", items)
    data = tmp_path / "f/data.mdb"
    content = data.read_bytes()
    # Most pages are values; the first and the branch and leaf pages are where the danger is.
    pages = [n for n in range(len(content) // 4096) if content[n * 4096 + 10] in (1, 2, 8)]
    places = np.resize(pages, 200) * 4096 + rng.integers(0, 4096, 200)
    for _ in flipped(data, places, rng):
        unless_refused(lambda: read_all(LmdbStorage(path, key_format="sorted")))
    for size in (0, 1, 5000, len(content) // 2, len(content) - 4096):
        data.write_bytes(content[:size])
        with pytest.raises(ValueError, match="cut short"):
            len(LmdbStorage(path, key_format="sorted"))
