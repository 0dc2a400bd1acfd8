"""Packed HDF5: the view of other programs, and records that are refused."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from penstock.datasets.storages.hdf5 import Hdf5Storage, Hdf5Writer
from penstock.datasets.writing import write_storage
from tests.datasets.writers.writer_contract import (
    ListedRecords,
    assert_equal_records,
    records_of,
)


def small() -> Hdf5Writer:
    writer = Hdf5Writer()
    writer.part_records = 5
    return writer


def test_any_program_that_reads_hdf5_finds_the_fields(tmp_path):
    source = records_of(frozenset(("files", "keys", "labels", "arrays", "numbers")))
    write_storage(small(), tmp_path / "a", source)
    records = list(source.records.items())
    names = [file.name for file in sorted((tmp_path / "a").glob("*.h5"))]
    assert names == [f"part-{n:05d}.h5" for n in range(5)]
    with h5py.File(tmp_path / "a" / names[1]) as file:
        assert file["key"].asstr()[:].tolist() == [key for key, _ in records[5:10]]
        assert file["label"][:].tolist() == [fields["label"] for _, fields in records[5:10]]
        assert file["mask"].dtype == np.int32 and file["mask"].shape == (5, 4, 5)
        assert file["of_f2"].dtype == np.float16 and file["of_bool"].dtype == bool
        for row, (_, fields) in enumerate(records[5:10]):
            assert file["image"][row].tobytes() == fields["image"]


def test_arrays_of_one_shape_are_columns(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (23, 6, 5, 3), np.uint8)
    listed = ListedRecords(
        {f"k{i:02d}": {"image": images[i], "label": i % 2, "age": i / 3} for i in range(23)},
        ("a", "b"),
    )
    write_storage(small(), tmp_path / "a", listed)
    storage = Hdf5Storage(str(tmp_path / "a"))
    assert storage.column_fields == ("image", "label", "age")
    rows = np.array([22, 0, 7, 7])
    assert np.array_equal(storage.take(rows, ("image",))["image"], images[rows])
    assert_equal_records(storage, listed)


def test_texts_come_back(tmp_path):
    listed = ListedRecords({"b": {"x": "ü 日本"}, "a": {"x": ""}})
    write_storage(small(), tmp_path / "a", listed)
    assert_equal_records(Hdf5Storage(str(tmp_path / "a")), listed)


@pytest.mark.parametrize(
    ("value", "said"),
    [(np.zeros((2, 2, 3)), "images are float64"), ({1, 2}, "is a set"), ("a\0", "is a str")],
)
def test_what_cannot_be_held_is_said_before_anything_is_written(tmp_path, value, said):
    with pytest.raises(ValueError, match=said):
        write_storage(small(), tmp_path / "a", ListedRecords({"0": {"image": value}}))
    assert not (tmp_path / "a").exists()
