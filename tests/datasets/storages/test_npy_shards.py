"""Shards of arrays: what the contract asks, and every layout."""

import multiprocessing
import os
import resource
import shutil

import numpy as np
import pytest

from penstock.core.sample import BadRecord
from penstock.datasets.records.splits import StorageRecipe, open_split
from penstock.datasets.storages.npy_shards import open_npy_shards
from tests.contracts.storage import check_storage, summary
from tests.datasets.storages.npy_arrays import (
    DEPTH,
    IMAGES,
    LABELS,
    N,
    made,
    message,
    write,
    write_npz,
)

rng = np.random.default_rng(0)


def expected(keys=None):
    return [
        (keys[i] if keys else str(i),
         {"image": IMAGES[i], "label": int(LABELS[i]), "depth": DEPTH[i]})
        for i in range(N)
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "shards")


def test_it_is_a_storage(folder, tmp_path):
    def copy():
        shutil.copytree(folder, tmp_path / "copy", dirs_exist_ok=True)
        return open_npy_shards(str(tmp_path / "copy"))

    check_storage(lambda: open_npy_shards(str(folder)), expected(), make_copy=copy)
    storage = open_npy_shards(str(folder))
    assert storage.index.class_names == ("0", "1", "2", "3")
    assert storage.index.column("height").tolist() == [6] * N
    assert storage.index.column("width").tolist() == [5] * N
    assert storage.fields == ("image", "label", "depth")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("checksums", [False, True])
def test_archives_are_storages(tmp_path, save, checksums):
    folder = write_npz(tmp_path / "shards", save)
    check_storage(
        lambda: open_npy_shards(str(folder), checksums=checksums),
        expected(),
        processes=("forked",),
    )


@pytest.mark.parametrize(
    "layout",
    ["{field}-{shard:05d}-of-00005", "{field}{shard}", "{field}/{shard}", "{shard}/{field}",
     "{field}.{shard:02d}"],
)  # fmt: skip
def test_layouts(tmp_path, layout):
    storage = open_npy_shards(str(write(tmp_path / "shards", layout)))
    assert summary(storage.read(np.arange(N))) == [
        (i, key, {"image": (IMAGES.dtype.str, IMAGES[i].tolist()), "label": LABELS[i],
                  "depth": (DEPTH.dtype.str, DEPTH[i].tolist())})
        for i, (key, _) in enumerate(expected())
    ]  # fmt: skip


def test_ten_comes_after_nine_and_a_pattern_names_files(tmp_path):
    for shard in range(12):
        np.save(tmp_path / f"x_{shard}.npy", np.full((2, 3), shard))
        np.save(tmp_path / f"y_{shard}.npy", np.zeros(2))
    storage = open_npy_shards(str(tmp_path / "x_*.npy"))
    values = [int(r.fields["x"][0]) for r in storage.read(np.arange(24))]
    assert values == np.repeat(np.arange(12), 2).tolist()
    np.save(tmp_path / "3.npy", np.ones((4, 2)))
    assert open_npy_shards(str(tmp_path / "3.npy")).read(np.array([0]))[0].fields.keys() == {
        "array"
    }


def test_large_rows_are_views_and_none_can_be_written(folder, tmp_path):
    np.save(made(tmp_path / "large") / "volume_0.npy", rng.normal(size=(3, 16, 16, 16)))
    large = open_npy_shards(str(tmp_path / "large"))
    for storage, name, is_view in ((large, "volume", True), (open_npy_shards(str(folder)), "image",
                                                             False)):  # fmt: skip
        first, again = (storage.read(np.array([2]))[0].fields[name] for _ in range(2))
        assert np.shares_memory(first, again) == is_view and not first.flags.writeable
        assert type(first) is np.ndarray


@pytest.mark.parametrize("indices", [[22, 0, 0, 7, 19], [3, 1, 6], [0, 7, 20], []])
def test_columns_are_what_reading_gives(folder, indices):
    storage, indices = open_npy_shards(str(folder)), np.array(indices, np.int64)
    taken, records = storage.take(indices, storage.fields), storage.read(indices)
    for name, column in taken.items():
        assert column.flags.owndata and column.flags.c_contiguous and column.flags.writeable
        assert column.tolist() == [np.asarray(r.fields[name]).tolist() for r in records]
    asked = []

    def allocate(size_bytes):
        asked.append(bytearray(size_bytes))
        return asked[-1]

    again = storage.take(indices, {"image", "label"}, allocate=allocate)
    assert [len(memory) for memory in asked] == [len(indices) * IMAGES[0].nbytes]
    assert bytes(asked[0]) == IMAGES[indices].tobytes() == again["image"].tobytes()
    with pytest.raises(IndexError, match=str(N)):
        storage.take(np.array([0, N]), storage.fields)


def test_large_rows_are_columns_too(tmp_path):
    big = rng.normal(size=(5, 64, 64))
    for shard in range(5):
        np.save(tmp_path / f"volume_{shard}.npy", big[shard : shard + 1])
    storage = open_npy_shards(str(tmp_path))
    assert np.array_equal(storage.take(np.array([4, 0, 4]), {"volume"})["volume"], big[[4, 0, 4]])


def test_shards_that_differ_in_shape_are_read_and_give_no_columns(tmp_path):
    np.save(tmp_path / "wave_0.npy", np.zeros((2, 10), np.float32))
    np.save(tmp_path / "wave_1.npy", np.ones((2, 12), np.float32))
    storage = open_npy_shards(str(tmp_path))
    assert storage.fields == ()
    assert [r.fields["wave"].shape for r in storage.read(np.arange(4))] == [(10,)] * 2 + [(12,)] * 2


def test_parts_and_class_names(folder, tmp_path):
    (folder / "classes.txt").write_text("ant\nbee\ncat\ndog\n")
    storage = open_npy_shards(str(folder))
    assert storage.index.class_names == ("ant", "bee", "cat", "dog")
    recipe = StorageRecipe(open_npy_shards, {"path": str(folder)})
    split = {s: open_split(recipe, split=s, val_fraction=0.4) for s in ("train", "val")}
    keys = [key for part in split.values() for key in part.index.keys(np.arange(len(part)))]
    assert sorted(keys, key=int) == [str(i) for i in range(N)]
    write(tmp_path / "both/train")
    write(tmp_path / "both/val")
    recipe = StorageRecipe(open_npy_shards, {"path": str(tmp_path / "both")})
    assert len(open_split(recipe, split="val", val_fraction=0.4)) == N
    (folder / "classes.txt").write_text("ant\nbee\n")
    assert "label 3 in row 0, expected 0 to 1: there are 2 classes" in message(folder)


def test_keys_texts_and_ragged_values(tmp_path):
    texts = ["", "Straße", "x" * 9, "ab"]
    raw = [text.encode() for text in texts]
    waves = [rng.normal(size=(n, 2)) for n in (3, 0, 1, 5)]
    for shard, rows in enumerate((slice(0, 3), slice(3, 4))):
        ends = np.cumsum([0, *map(len, raw[rows])])
        np.save(tmp_path / f"text_{shard}.npy", np.frombuffer(b"".join(raw[rows]), np.uint8))
        np.save(tmp_path / f"text.offsets_{shard}.npy", ends)
        values = np.concatenate([wave.ravel() for wave in waves[rows]])
        np.save(tmp_path / f"wave_{shard}.npy", values)
        np.save(tmp_path / f"wave.offsets_{shard}.npy",
                np.cumsum([0, *(wave.size for wave in waves[rows])]))  # fmt: skip
        np.save(tmp_path / f"wave.shapes_{shard}.npy", [wave.shape for wave in waves[rows]])
        np.save(tmp_path / f"keys_{shard}.npy", np.array([f"k{t}" for t in texts[rows]]))
        np.save(tmp_path / f"name_{shard}.npy", np.array([f"n{t}" for t in texts[rows]]))
    wanted = [
        (f"k{t}", {"text": t, "wave": w, "name": f"n{t}"})
        for t, w in zip(texts, waves, strict=True)
    ]

    def make():
        return open_npy_shards(str(tmp_path), kinds={"text": "text"})

    check_storage(make, wanted, processes=("forked",))
    assert make().fields == ()
    np.save(tmp_path / "keys_1.npy", np.array(["k"]))
    assert "the key 'k' stands twice" in message(tmp_path)
    np.save(tmp_path / "keys_1.npy", np.array(["k1"]))
    np.save(tmp_path / "text.offsets_0.npy", np.array([0, 5, 1 << 40, 3]))
    first, *others = make().read(np.arange(4))
    assert [isinstance(r, BadRecord) for r in (first, *others)] == [False, True, True, False]
    assert "row 1 lies outside" in others[0].cause


def test_files_of_one_sample_each(tmp_path):
    wanted = []
    for name, at in (("cat", 1), ("dog", 0), ("cat", 0)):
        path = tmp_path / "files" / name / f"{at}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        array = rng.normal(size=(2 + at, 3))
        np.save(path, array)
        wanted.append((f"{name}/{at}.npy", {"array": array, "label": int(name == "dog")}))
    np.savez_compressed(tmp_path / "files/dog/z.npz", volume=DEPTH, age=3)
    wanted.append(("dog/z.npz", {"volume": DEPTH, "age": 3, "label": 1}))
    (tmp_path / "files/dog/bad.npy").write_bytes(b"\x93NUMPY\x01\0")
    wanted.append(("dog/bad.npy", None))
    wanted.sort()
    check_storage(
        lambda: open_npy_shards(str(tmp_path / "files"), rows=False), wanted,
        processes=("forked",),
    )  # fmt: skip
    storage = open_npy_shards(str(tmp_path / "files"), rows=False, labels=None)
    assert "label" not in storage.index.columns
    np.save(tmp_path / "files/dog/bad.npy", np.array([{}], object), allow_pickle=True)
    bad = storage.read(np.array([3]))[0]
    assert bad.key == "dog/bad.npy" and "holds Python objects (pickled)" in bad.cause


def test_many_files_do_not_exhaust_descriptors(tmp_path):
    for shard in range(400):
        np.save(tmp_path / f"x_{shard}.npy", np.full((2, 4), shard))
    storage = open_npy_shards(str(tmp_path))
    len(storage)
    context = multiprocessing.get_context("spawn")  # without the descriptors of other tests
    process = context.Process(target=_read_with_few_descriptors, args=(storage,))
    process.start()
    process.join(120)
    assert process.exitcode == 0


def _read_with_few_descriptors(storage):
    most = len(os.listdir("/proc/self/fd")) + 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    order = np.random.default_rng(0).permutation(800)
    records = storage.read(order)
    assert [int(r.fields["x"][0]) for r in records] == (order // 2).tolist()
    few = [storage.read(order[i : i + 8]) for i in range(0, 800, 8)]
    assert few
    assert np.array_equal(storage.take(order, {"x"})["x"][:, 0], order // 2)
