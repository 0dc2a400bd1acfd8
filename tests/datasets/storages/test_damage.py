"""Files of every form with a flipped bit, or cut short: refused in one line, or bad records."""

from __future__ import annotations

import pickle
import re
import zipfile
from functools import partial

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from penstock.core.sample import BadRecord
from penstock.datasets.storages.arrays import NpyShards, PtShards
from penstock.datasets.storages.arrow import ArrowStorage
from penstock.datasets.storages.csv import CsvStorage
from penstock.datasets.storages.hdf5 import Hdf5Storage
from penstock.datasets.storages.lmdb import LmdbStorage
from penstock.datasets.storages.parquet import ParquetStorage
from penstock.datasets.storages.webdataset.storage import WebDatasetStorage, WebDatasetWriter
from penstock.datasets.storages.zip import ZipStorage
from penstock.datasets.writing import write_storage
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.records import ListedRecords
from tests.contracts.storage import read_all, summary
from tests.datasets.storages.hdf5_files import write_lists
from tests.datasets.storages.lmdb_files import foreign
from tests.datasets.storages.sqlite_tables import at, put_samples
from tests.datasets.storages.tables import hub_table, images, write_arrow
from tests.packed import write_lmdb

ROWS = 30
IMAGES, SMALL = images(ROWS, largest=3000), images(ROWS, largest=30)
ARRAYS = {"x": np.random.default_rng(0).integers(0, 99, (ROWS, 40)), "label": np.arange(ROWS) % 3}
LISTED = ListedRecords(
    {f"{'abc'[n % 3]}/{n}.jpg": {"image": image, "label": n % 3} for n, image in enumerate(IMAGES)},
    tuple("abc"),
)


def arrow(folder, **options):
    write_arrow(hub_table(SMALL), folder / "a.arrow", **options)


def hdf5(folder, *, libver="earliest", **pieces):
    with h5py.File(folder / "a.h5", "w", libver=libver) as file:
        file.create_dataset("x", data=ARRAYS["x"], **pieces)
        file["label"] = ARRAYS["label"]


def lists(folder):
    with h5py.File(folder / "a.h5", "w") as file:
        write_lists(file, "image", SMALL)
        file["label"] = [f"class {n % 3}" for n in range(ROWS)]


def zipped(folder):
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for key, fields in LISTED.records.items():
            archive.writestr(key, fields["image"])


def directory(content):
    """Return the start of a ZIP archive's directory; checksums cover the members before it."""
    return content.index(b"PK\x01\x02")


def footer(content):
    """Return the start of a Parquet file's footer; checksums cover the pages before it."""
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


TABLE = hub_table(IMAGES)
TORCH = {name: torch.tensor(array) for name, array in ARRAYS.items()}
TEXT = "k,s\n" + "".join(f"{n:03d},text {n}\n" for n in range(ROWS))
STORED = {b"%03d" % n: bytes(n % 50 or 5000) for n in range(300)}
FORMS = {
    "npy": (lambda to: np.save(to / "x.npy", ARRAYS["x"]), NpyShards),
    "npz": (lambda to: np.savez_compressed(to / "a.npz", **ARRAYS), NpyShards),
    "pt": (lambda to: torch.save(TORCH, to / "a.pt"), PtShards),
    "arrow": (arrow, ArrowStorage),
    "arrow_lz4": (partial(arrow, compression="lz4"), ArrowStorage),
    "stream": (partial(arrow, new=pa.ipc.new_stream), ArrowStorage),
    "stream_lz4": (partial(arrow, new=pa.ipc.new_stream, compression="lz4"), ArrowStorage),
    "parquet": (lambda to: pq.write_table(TABLE, to / "a.parquet", 10, write_page_checksum=True),
                partial(ParquetStorage, cache_bytes=0)),
    "csv": (lambda to: (to / "a.csv").write_text(TEXT), CsvStorage),
    "hdf5": (hdf5, Hdf5Storage),
    "hdf5_checked": (partial(hdf5, chunks=(4, 40), compression="lzf", fletcher32=True),
                     Hdf5Storage),
    "hdf5_latest": (partial(hdf5, libver="latest", chunks=(4, 40), compression="gzip"),
                    Hdf5Storage),
    "hdf5_lists": (lists, Hdf5Storage),
    "lmdb": (lambda to: write_lmdb(to / "packed", LISTED),
             lambda path: LmdbStorage(f"{path}/packed")),
    "lmdb_foreign": (lambda to: foreign(to / "a.lmdb", STORED, subdir=False),
                     lambda path: LmdbStorage(path, key_format="sorted")),
    "sql": (lambda to: put_samples(to / "t.db", SMALL, page_size=512),
            lambda path: at(f"{path}/t.db")),
    "tar": (lambda to: write_storage(WebDatasetWriter(), to / "packed", LISTED),
            lambda path: WebDatasetStorage(f"{path}/packed")),
    "zip": (zipped, ZipStorage),
}  # fmt: skip
# Up to this byte of a file, a flipped bit spoils so many records at most, and none unseen.
CHECKED = {
    "npz": (directory, ROWS), "parquet": (footer, 10), "lmdb": (len, 1), "zip": (directory, 1),
    "tar": (lambda content: len(content.rstrip(b"\0")), 1),
}  # fmt: skip


@pytest.fixture
def written(request, tmp_path):
    """Write a form; return the function that opens it, its file, and the path of the folder."""
    write, opened = FORMS[request.param]
    write(tmp_path)
    [file] = (path for path in tmp_path.rglob("*") if path.suffix not in ("", ".txt", ".lmdb-lock"))
    return request.param, partial(opened, str(tmp_path)), file


@pytest.mark.parametrize("written", FORMS, indirect=True)
def test_a_flipped_bit_anywhere_is_refused_or_spoils_the_records_in_its_place(written):
    form, opened, file = written
    content, rng = file.read_bytes(), np.random.default_rng(0)
    wanted = summary(read_all(opened()))
    end, together = CHECKED.get(form, (len, 0))
    noticed = 0
    for place in flipped(file, rng.integers(0, len(content), 50), rng):
        found = unless_refused(lambda: summary(read_all(opened())))
        noticed += found != wanted
        if found is not None and together and place < end(content):
            wrong = [row for row, record in enumerate(found) if record != wanted[row]]
            assert all(found[row][2] is None for row in wrong)
            assert len({row // together for row in wrong}) <= 1
    assert noticed


@pytest.mark.parametrize("written", sorted(FORMS.keys() - {"csv", "sql"}), indirect=True)
def test_a_file_cut_short_anywhere_is_refused_or_ends_in_bad_records_if_it_is_open(written):
    form, opened, file = written
    content, storage = file.read_bytes(), opened()
    end = len(content.rstrip(b"\0") if form in ("tar", "stream", "stream_lz4") else content)
    wanted = summary(read_all(storage))
    sizes = {0, 1, 6, 8, 100, 511, 512, 513, 4096, end // 2, end - 22, end - 8, end - 1}
    for size in sorted(size for size in sizes if size < end):
        file.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"copy (it|the file) again") as error:
            len(opened())
        assert "\n" not in str(error.value)
        # The pages of a mapped Arrow file are gone, so only another process can read it.
        is_mapped = "arrow" in form or "stream" in form
        for one in (storage, pickle.loads(pickle.dumps(storage)))[is_mapped:]:
            found = unless_refused(lambda storage=one: read_all(storage))
            if size > end // 2 or (found is None and form == "lmdb_foreign"):
                continue
            bad = [record for record in found if isinstance(record, BadRecord)]
            assert bad and all(re.search("copy|written anew", record.cause) for record in bad)
            assert all(row in (*wanted, (*row[:2], None)) for row in summary(found))
    file.unlink()
    elsewhere = pickle.loads(pickle.dumps(storage))
    gone = unless_refused(lambda: elsewhere.read(np.array([ROWS - 1]))[0].cause)
    assert "No such file" in gone if gone else form == "lmdb_foreign"
