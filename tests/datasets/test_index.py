"""The index: what is written is what is read, in little space, wherever it is pickled to."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import contracts
from penstock.datasets.records.table import Table, constant, numbered
from tests.contracts.damage import flipped
from tests.contracts.memory import worker_memory

ROOT = Path(__file__).resolve().parents[2]


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
    index = made(tmp_path_factory.mktemp("i") / "x.arrow", keys, x=values)
    assert len(index) == len(keys)
    assert index.raw_keys(np.arange(len(keys))) == keys == index.raw_keys()
    assert index.column("x").tolist() == values.tolist()
    if not keys:
        return
    picks = data.draw(st.lists(st.integers(0, len(keys) - 1)))
    taken = pickle.loads(pickle.dumps(index.take(np.array(picks, np.int32))))
    assert taken.raw_keys(np.arange(len(picks))) == [keys[i] for i in picks]
    assert taken.column("x").tolist() == values[picks].tolist()
    if picks:
        again = data.draw(st.lists(st.integers(0, len(picks) - 1)))
        twice = taken.take(np.array(again, np.int64))
        assert twice.raw_keys(np.arange(len(again))) == [keys[picks[i]] for i in again]


def test_contract(tmp_path):
    index = made(tmp_path / "x", ["ü", "b"], label=np.array([0, 1]))
    assert isinstance(index, contracts.Index)
    assert isinstance(Table(["a"]), contracts.Index)
    assert index.keys(np.array([1, 0, 1])) == ["b", "ü", "b"]
    assert index.class_names == ("a", "b")
    assert index.columns == ("label",)
    with pytest.raises(KeyError, match="no column 'nope'; columns: label"):
        index.column("nope")
    for wrong in (2, -1):
        with pytest.raises(IndexError, match=f"index {wrong} is outside 0 .. 1"):
            index.keys(np.array([wrong]))
        with pytest.raises(IndexError):
            index.take(np.array([wrong]))
    with pytest.raises(ValueError, match="read-only"):
        index.column("label")[0] = 1


def test_what_was_noted_is_there_wherever_it_is_pickled_to(tmp_path):
    noted = {"field_classes": {"mask": ["sky", "road"]}, "files": ["a"]}
    Table(["a", "b"], metadata=noted).write(tmp_path / "x")
    index = Table.open(tmp_path / "x")
    for one in (index, index.take(np.array([1]))):
        copy = pickle.loads(pickle.dumps(one))
        assert copy.metadata == one.metadata == noted
        assert copy.field_classes == {"mask": ("sky", "road")}


def test_generated_keys_store_nothing(tmp_path):
    Table(numbered(10**9, "i_{:03d}.jpg", 1)).write(tmp_path / "x")
    index = Table.open(tmp_path / "x", verify=True)
    assert len(index) == 10**9
    assert index.keys(np.array([0, 10**9 - 1])) == ["i_001.jpg", "i_1000000000.jpg"]
    assert os.path.getsize(tmp_path / "x") < 2000
    assert index.take(np.array([4, 2])).keys(np.array([1])) == ["i_003.jpg"]


def test_a_constant_column_takes_no_space_and_counts_as_any_other(tmp_path):
    table = Table(numbered(10**6), {"size_bytes": constant(7, 10**6)})
    table.write(tmp_path / "x")
    assert os.path.getsize(tmp_path / "x") < 3000
    index = pickle.loads(pickle.dumps(Table.open(tmp_path / "x", verify=True)))
    assert index.values("size_bytes", np.array([0, 10**6 - 1])).tolist() == [7, 7]
    assert index.column("size_bytes").shape == (10**6,)
    stored = Table(numbered(10**6), {"size_bytes": np.full(10**6, 7, np.int32)})
    assert index.fingerprint() == table.fingerprint() == stored.fingerprint()


def test_fingerprint_is_of_keys_sizes_and_labels(tmp_path):
    keys = ["a", "bc"]
    base = {"label": np.array([0, 1]), "size_bytes": np.array([5, 6])}
    same = made(tmp_path / "1", keys, **base).fingerprint()

    def other(keys=keys, names=("a", "b"), **columns):
        return made(tmp_path / "2", keys, names, **{**base, **columns}).fingerprint()

    assert other() == same
    assert other(label=np.array([0, 1], np.uint8), height=np.array([3, 4])) == same
    different = {
        other(keys=["ab", "c"]), other(keys=["a", "bd"]), other(names=("a", "c")),
        other(label=np.array([1, 0])), other(size_bytes=np.array([5, 7])), same,
    }  # fmt: skip
    assert len(different) == 6
    index = Table.open(tmp_path / "1")
    taken = index.take(np.array([1, 0]))
    assert taken.fingerprint() not in (same, index.take(np.array([0, 1])).fingerprint())
    assert taken.fingerprint() == index.take(np.array([1, 0], np.int32)).fingerprint()


def test_writing_is_whole_or_nothing(tmp_path, monkeypatch):
    made(tmp_path / "x", ["old"])

    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(OSError, match="No space"):
            made(tmp_path / "x", ["new"])
    assert os.listdir(tmp_path) == ["x"]
    assert Table.open(tmp_path / "x").keys(np.array([0])) == ["old"]


def test_a_disk_that_fills_up_leaves_what_was_there(tmp_path):
    made(tmp_path / "x", ["old"])
    code = (
        "import resource, signal, sys, numpy as np;"
        "from penstock.datasets.records.table import Table;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        "Table(['new'] * 10**5, {'x': np.zeros(10**5)}).write(sys.argv[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x")],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert "OSError: [Errno 27] File too large" in done.stderr
    assert os.listdir(tmp_path) == ["x"]
    assert Table.open(tmp_path / "x", verify=True).keys(np.array([0])) == ["old"]


def test_damage_anywhere_is_found(tmp_path):
    path = tmp_path / "x"
    index = made(path, [f"key {i}" for i in range(50)], label=np.arange(50))
    keys = index.keys(np.arange(50))
    found = 0
    for _ in flipped(path, range(0, path.stat().st_size, 7), np.random.default_rng(0)):
        try:
            read = Table.open(path, verify=True)
        except ValueError as error:
            assert "damaged or no index file" in str(error)
            found += 1
        else:  # padding, or the copy of the schema that nobody reads
            assert read.keys(np.arange(50)) == keys
            assert read.column("label").tolist() == list(range(50))
    assert found > 50
    with open(path, "ab") as file:
        file.write(b"more")
    with pytest.raises(ValueError, match="damaged or no index file"):
        Table.open(path)
    with pytest.raises(FileNotFoundError):
        Table.open(tmp_path / "none")


def test_a_compressed_index_is_refused_and_not_decompressed(tmp_path):
    made(tmp_path / "x", [f"key {i}" for i in range(50)])
    with (
        zipfile.ZipFile(tmp_path / "x") as ours,
        zipfile.ZipFile(tmp_path / "y", "w", zipfile.ZIP_DEFLATED) as theirs,
    ):
        for name in ours.namelist():
            theirs.writestr(name, ours.read(name))
    with pytest.raises(ValueError, match="it is compressed, and was not"):
        Table.open(tmp_path / "y")


def test_a_mapped_selection_pickles_as_its_path(tmp_path):
    n = 100_000
    Table(numbered(n), {"label": np.arange(n)}).write(tmp_path / "x")
    np.save(tmp_path / "rows.npy", np.arange(0, n, 2, dtype=np.int32))
    index = Table.open(tmp_path / "x").take(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    recipe = pickle.dumps(index)
    assert len(recipe) < 2000
    copy = pickle.loads(recipe)
    assert copy.keys(np.array([7])) == ["14"]
    assert copy.fingerprint() == index.fingerprint()


@pytest.mark.slow
def test_ten_million_rows_cost_a_worker_no_memory(tmp_path):
    n = 10_000_000
    keys = [b"n%08d/%08d.jpg" % (i % 1000, i) for i in range(n)]
    labels = (np.arange(n) % 1000).astype(np.int32)
    sizes = np.full(n, 100_000, np.uint32)
    Table(keys, {"label": labels, "size_bytes": sizes}).write(tmp_path / "x")
    text_bytes = sum(map(len, keys))
    del keys
    per_row = (os.path.getsize(tmp_path / "x") - text_bytes) / n
    assert per_row < 60
    start = time.perf_counter()
    index = Table.open(tmp_path / "x", verify=True)
    opened_s = time.perf_counter() - start
    private_mb, answer = worker_memory(index)
    print(
        f"10^7 rows: {per_row:.1f} bytes a row beside the key, opened and checked in "
        f"{opened_s:.2f} s, {private_mb:.1f} MB of a worker's own for 10^5 keys and labels"
    )
    assert private_mb < 10
    assert answer == "n00000999/09999999.jpg"


@pytest.mark.slow
def test_a_million_files_open_in_seconds(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for i in range(1000):
        folder = tmp_path / f"d/{i:04d}"
        folder.mkdir(parents=True)
        for j in range(1000):
            os.close(os.open(f"{folder}/{j:06d}.jpg", os.O_CREAT | os.O_WRONLY))
    code = (
        "import sys, time; t = time.perf_counter();"
        "from penstock.datasets.storages.image_folder import ImageFolder;"
        "assert len(ImageFolder(sys.argv[1])) == 10**6; print(time.perf_counter() - t)"
    )
    seconds = [
        float(subprocess.check_output([sys.executable, "-c", code, str(tmp_path / "d")]))
        for _ in range(2)
    ]
    shutil.rmtree(tmp_path / "d")  # pytest keeps the last runs' folders
    print(f"10^6 files: {seconds[0]:.1f} s, the second time {seconds[1]:.2f} s")
    assert seconds[0] < 30
    assert seconds[1] < 2
