"""HDF5 as it is written: what other programs see in it, and what cannot be held."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from penstock.datasets.storages.hdf5 import Hdf5Storage, Hdf5Writer
from penstock.datasets.writing import write_storage
from tests.datasets.writers.writer_contract import (
    ListedRecords,
    assert_equal_records,
    check_writer,
    records_of,
)


def small() -> Hdf5Writer:
    writer = Hdf5Writer()
    writer.part_records = 5
    return writer


def test_contract(tmp_path):
    check_writer(small, tmp_path)


def test_any_program_that_reads_hdf5_finds_the_fields(tmp_path):
    source = records_of(frozenset(("files", "keys", "labels", "arrays", "values", "shapes")))
    write_storage(small(), tmp_path / "a", source)
    records = list(source.records.items())
    names = [file.name for file in sorted((tmp_path / "a").glob("*.h5"))]
    assert names == [f"part-{n:05d}-of-00005.h5" for n in range(5)]
    with h5py.File(tmp_path / "a" / names[1]) as file:
        assert file["keys"].asstr()[:].tolist() == [key for key, _ in records[5:10]]
        assert file["label"][:].tolist() == [fields["label"] for _, fields in records[5:10]]
        assert file["class_names"].asstr()[:].tolist() == list(source.index.class_names)
        assert file["mask"].dtype == np.int32 and file["mask"].shape == (5, 4, 5)
        assert file["of_f2"].dtype == np.float16 and file["of_bool"].dtype == bool
        for row, (_, fields) in enumerate(records[5:10]):
            assert file["image"][row].tobytes() == fields["image"]
            assert file["text"].asstr()[row] == fields["text"]


def test_arrays_of_one_shape_are_columns(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (23, 6, 5, 3), np.uint8)
    listed = ListedRecords(
        {f"k{i:02d}": {"image": images[i], "label": i % 2, "age": i / 3} for i in range(23)},
        ("a", "b"),
    )
    write_storage(small(), tmp_path / "a", listed)
    storage = Hdf5Storage(str(tmp_path / "a"))
    assert storage.column_fields == ("image", "age", "label")
    rows = np.array([22, 0, 7, 7])
    assert np.array_equal(storage.take(rows, ("image",))["image"], images[rows])
    assert_equal_records(storage, listed)


@pytest.mark.parametrize(
    "fields",
    [
        [{"image": b"a", "x": 1 << 70}, {"image": b"a", "x": 3}],
        [{"x": 1}, {"x": 1.5}, {"x": True}, {"x": "1"}, {"x": None}, {"x": b"1"}, {}],
        [{"x": "\ud800"}, {"x": "a"}],
        [{"x": "a\0b\0"}, {}, {"x": ""}],
        [{"x": np.zeros((0, 4), np.float32)}, {"x": np.zeros((0, 4), np.float32)}],
        [{"x": np.array(3)}, {"x": np.array(4)}],
        [{"x": np.zeros(2, ">i2") + 3}, {"x": np.zeros(2, "<i2") + 3}],
        [{"x": np.zeros((2, 1), complex) + 1j}, {"x": np.zeros((1, 1), complex)}],
        [{"x": np.zeros((2, 1))}, {"x": np.zeros(3)}, {}],
        [{"x": True}, {"x": False}, {}],
    ],
)
def test_values_of_any_kind_come_back(tmp_path, fields):
    listed = ListedRecords({str(i): each for i, each in enumerate(fields)})
    write_storage(small(), tmp_path / "a", listed)
    assert_equal_records(Hdf5Storage(str(tmp_path / "a")), listed)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"keys": 1}, "hdf5 cannot hold a field 'keys'"),
        ({"a/b": 1}, "hdf5 cannot hold a field 'a/b'"),
        ({"image": np.zeros((2, 2, 3))}, "its image is float64"),
        ({"x": {1, 2}}, "is a set"),
    ],
)
def test_what_cannot_be_held_is_said_before_anything_is_written(tmp_path, fields, said):
    with pytest.raises(ValueError, match=said):
        write_storage(small(), tmp_path / "a", ListedRecords({"0": fields}))
    assert not (tmp_path / "a").exists()


def test_labels_of_some_records_are_refused(tmp_path):
    listed = ListedRecords({"0": {"image": b"a", "label": 1}, "1": {"image": b"b"}})
    with pytest.raises(ValueError, match="have a label"):
        write_storage(small(), tmp_path / "a", listed)
