"""SQLite databases damaged anywhere: an error or bad records, never a crash."""

from __future__ import annotations

import contextlib
import os
import pickle

import numpy as np
import pytest

from penstock.core.arrays import write_npy
from penstock.core.sample import BadRecord
from penstock.datasets.storages.sqlite import SqliteStorage
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import check_storage, read_all
from tests.datasets.storages.sqlite_tables import everything, put, put_samples, sample_records
from tests.datasets.storages.tables import images

rng = np.random.default_rng(0)


@pytest.mark.parametrize("damage", [b"", b"x", b"\x93NUMPY\1\0", "text"])
def test_arrays_that_are_none(tmp_path, damage):
    whole = write_npy(np.zeros(3))
    objects = pickle.dumps(print)
    header = whole[:10] + whole[10:128].replace(b"'<f8'", b"'|O' ")
    for value in (damage, whole[:-1], whole + b"x", header + objects,
                  whole.replace(b"(3,)", b"(9999999999,)"[:4].ljust(4))):  # fmt: skip
        path = put(tmp_path / "t.db", "DROP TABLE IF EXISTS samples", "CREATE TABLE samples (a)",
                   rows=[(value,), (whole,)])  # fmt: skip
        bad, good = SqliteStorage(path, types={"a": "array"}).read(np.arange(2))
        assert isinstance(bad, BadRecord) and "column 'a' " in bad.cause
        assert good.fields["a"].tolist() == [0, 0, 0]


def test_text_that_is_no_utf8_is_a_bad_record(tmp_path):
    path = put(tmp_path / "t.db", "CREATE TABLE samples (s)", rows=[("ä",), ("b",)])
    put(tmp_path / "t.db", "INSERT INTO samples VALUES (CAST(x'c328' AS TEXT))")
    good, _, bad = SqliteStorage(path).read(np.arange(3))
    assert good.fields == {"s": "ä"}
    assert bad.cause == "column 's' is no UTF-8"


def test_the_images_are_not_read_for_the_index(tmp_path):
    path = put_samples(tmp_path / "t.db", [b"x" * 100_000] * 50)
    content = bytearray(open(path, "rb").read())
    pages = [i for i in range(0, len(content), 4096) if content[i + 5 : i + 4001] == b"x" * 3996]
    assert len(pages) > 1000
    for at in pages:
        content[at : at + 4] = b"\xff\xff\xff\xff"  # the next page of the image: nowhere
    with open(path, "wb") as file:
        file.write(content)
    storage = SqliteStorage(path)
    assert storage.index.column("size_bytes").tolist() == [100_000] * 50
    assert all(
        "cannot be read (database disk image is malformed)" in record.cause
        for record in storage.read(np.arange(3))
    )


def test_a_damaged_image_spoils_its_record_alone(tmp_path):
    encoded = [rng.bytes(9000) for _ in range(20)]
    path = put_samples(tmp_path / "t.db", encoded)
    storage = SqliteStorage(path)
    assert len(storage) == 20
    with open(path, "r+b") as file:
        at = file.read().index(encoded[7][3000:3100]) // 4096 * 4096
        file.seek(at)
        file.write(b"\xff\xff\xff\xff")
    check_storage(
        lambda: storage,
        [(key, None if key == "8" else fields) for key, fields in sample_records(encoded)],
        processes=("forked",),
    )


def test_a_file_cut_short_anywhere_is_an_error_or_bad_records(tmp_path):
    encoded = images(60, largest=3000)
    path = put_samples(tmp_path / "t.db", encoded, page_size=512)
    content = open(path, "rb").read()
    wanted = {key: fields for key, fields in sample_records(encoded)}
    for size in {0, 1, 15, 16, 20, 99, 100, 511, 512, 513, 1024, 5000, len(content) // 2,
                 len(content) - 512, len(content) - 1}:  # fmt: skip
        with open(path, "wb") as file:
            file.write(content[:size])
        with contextlib.suppress(ValueError):
            found = everything(SqliteStorage(path))
            assert any(fields is None for *_, fields in found)
            assert all(fields in (None, wanted[key]) for _, key, fields in found)


def test_a_flipped_bit_anywhere_never_ends_the_interpreter(tmp_path):
    path = put_samples(tmp_path / "t.db", images(60, largest=60), page_size=512)
    places = [*rng.integers(0, 200, 60), *rng.integers(0, os.path.getsize(path), 200)]
    refused = bad = 0
    for _ in flipped(path, places, rng):
        records = unless_refused(lambda: read_all(SqliteStorage(path)))
        refused += records is None
        bad += any(isinstance(record, BadRecord) for record in records or [])
    assert refused > 10
    assert bad > 1
