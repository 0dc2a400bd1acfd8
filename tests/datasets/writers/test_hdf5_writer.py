"""Packed HDF5: the view of other programs, and records that are refused."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from penstock.datasets.storages.hdf5 import Hdf5Storage, Hdf5Writer
from penstock.datasets.writing import write_storage
from tests.contracts.packing import assert_equal
from tests.contracts.records import ListedRecords, records_of


def small() -> Hdf5Writer:
    writer = Hdf5Writer()
    writer.part_records = 5
    return writer


def test_other_programs_find_the_fields(tmp_path):
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


def test_texts_come_back(tmp_path):
    listed = ListedRecords({"b": {"x": "ü 日本"}, "a": {"x": ""}})
    write_storage(small(), tmp_path / "a", listed)
    assert_equal(Hdf5Storage(str(tmp_path / "a")), listed.records)


@pytest.mark.parametrize(
    ("value", "said"),
    [(np.zeros((2, 2, 3)), "images are float64"), ({1, 2}, "is a set"), ("a\0", "is a str")],
)
def test_values_that_it_cannot_hold_are_refused_before_writing(tmp_path, value, said):
    with pytest.raises(ValueError, match=said):
        write_storage(small(), tmp_path / "a", ListedRecords({"0": {"image": value}}))
    assert not (tmp_path / "a").exists()
