"""The index: it is read as it was written, in little space, wherever it is pickled to."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.contracts import Index
from penstock.core.user_errors import ExplainedError
from penstock.datasets.records.table import Table, constant, numbered
from tests.contracts.damage import flipped


def made(path, keys, class_names=("a", "b"), **columns):
    Table(keys, columns, class_names).write(path)
    return Table.open(path, verify=True)


@given(
    keys=st.lists(st.binary(max_size=12), max_size=40),
    dtype=st.sampled_from(["u1", "i4", "u4", "i8", "f4", "?"]),
    data=st.data(),
)
def test_round_trip(tmp_path_factory, keys, dtype, data):
    values = np.arange(len(keys)).astype(dtype)
    index = made(tmp_path_factory.mktemp("i") / "x.npz", keys, x=values, label=values.astype("i8"))
    assert index.raw_keys(np.arange(len(keys))) == keys == index.raw_keys()
    assert index.column("x").tolist() == values.tolist()
    if not keys:
        return
    picks = data.draw(st.lists(st.integers(0, len(keys) - 1)))
    taken = pickle.loads(pickle.dumps(index.take(np.array(picks, np.int32))))
    assert taken.raw_keys(np.arange(len(picks))) == [keys[i] for i in picks]
    assert taken.column("x").tolist() == values[picks].tolist()
    twice = taken.take(np.arange(len(picks))[::2])
    assert twice.raw_keys() == [keys[i] for i in picks[::2]]


def test_a_pickled_index_refuses_the_file_of_other_data(tmp_path):
    index = made(tmp_path / "x", ["a", "b"])
    pickled = pickle.dumps([index, index.take(np.array([0]))])
    made(tmp_path / "x", ["new", "a", "b"])
    with pytest.raises(ExplainedError, match="the data changed since the run began"):
        pickle.loads(pickled)


def test_contract(tmp_path):
    index = made(tmp_path / "x", ["ü", "b"], label=np.array([0, 1]))
    assert isinstance(index, Index)
    assert index.keys(np.array([1, 0, 1])) == ["b", "ü", "b"]
    assert index.class_names == ("a", "b") and index.columns == ("label",)
    with pytest.raises(KeyError, match="no column 'nope'; columns: label"):
        index.column("nope")
    for wrong in (2, -1):
        with pytest.raises(IndexError, match=f"index {wrong} is outside 0 .. 1"):
            index.keys(np.array([wrong]))
        with pytest.raises(IndexError):
            index.take(np.array([wrong]))
    with pytest.raises(ValueError, match="read-only"):
        index.column("label")[0] = 1


def test_generated_keys_and_constant_columns_take_no_space(tmp_path):
    columns = {"size_bytes": constant(7, 10**7)}
    Table(numbered(10**7, "i_{:03d}.jpg", 1), columns).write(tmp_path / "x")
    assert os.path.getsize(tmp_path / "x") < 4000
    index = pickle.loads(pickle.dumps(Table.open(tmp_path / "x", verify=True)))
    assert index.keys(np.array([0, 10**7 - 1])) == ["i_001.jpg", "i_10000000.jpg"]
    assert index.take(np.array([4, 2])).keys(np.array([1])) == ["i_003.jpg"]
    assert index.values("size_bytes", np.array([0, 10**7 - 1])).tolist() == [7, 7]
    assert index.column("size_bytes").shape == (10**7,)


def test_the_fingerprint_covers_keys_sizes_and_labels(tmp_path):
    base = {"label": np.array([0, 1]), "size_bytes": np.array([5, 6])}
    same = made(tmp_path / "1", ["a", "bc"], **base).fingerprint()

    def other(keys=("a", "bc"), names=("a", "b"), **columns):
        return made(tmp_path / "2", keys, names, **{**base, **columns}).fingerprint()

    assert other(label=np.array([0, 1], np.uint8), height=np.array([3, 4])) == other() == same
    different = {
        other(keys=["ab", "c"]), other(keys=["a", "bd"]), other(names=("a", "c")),
        other(label=np.array([1, 0])), other(size_bytes=np.array([5, 7])), same,
    }  # fmt: skip
    assert len(different) == 6
    index = Table.open(tmp_path / "1")
    taken = index.take(np.array([1, 0]))
    assert taken.fingerprint() not in (same, index.take(np.array([0, 1])).fingerprint())
    assert taken.fingerprint() == index.take(np.array([1, 0], np.int32)).fingerprint()
    sevens = [Table(["a", "b"], {"size_bytes": each}) for each in (constant(7, 2), [7, 7])]
    assert sevens[0].fingerprint() == sevens[1].fingerprint()


def test_damage_anywhere_is_found(tmp_path):
    path = tmp_path / "x"
    index = made(path, [f"key {i}" for i in range(50)], label=np.arange(50))
    keys, found = index.keys(np.arange(50)), 0
    for _ in flipped(path, range(0, path.stat().st_size, 7), np.random.default_rng(0)):
        try:
            read = Table.open(path, verify=True)
        except ValueError as error:
            assert "damaged or no index file" in str(error)
            found += 1
        else:  # a part of the archive that nothing reads
            assert read.keys(np.arange(50)) == keys
            assert read.column("label").tolist() == list(range(50))
    assert found > 50
    with pytest.raises(FileNotFoundError):
        Table.open(tmp_path / "none")


def test_tables_and_mapped_selections_pickle_as_paths(tmp_path):
    n = 100_000
    whole = made(tmp_path / "x", numbered(n), label=np.arange(n))
    np.save(tmp_path / "rows.npy", np.arange(0, n, 2, dtype=np.int32))
    index = whole.take(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    recipe = pickle.dumps(index)
    assert len(recipe) < 2000
    copy = pickle.loads(recipe)
    assert copy.keys(np.array([7])) == ["14"] and copy.fingerprint() == index.fingerprint()
