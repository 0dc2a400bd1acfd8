"""Splits: folders where they exist, else a hash that moves no record when another is added."""

import glob
import pickle
from dataclasses import replace

import numpy as np
import pytest

from penstock.datasets.records.splits import StorageRecipe, find_parts, is_val, open_split
from penstock.datasets.records.table import Table
from penstock.datasets.records.views import Subset
from penstock.datasets.storages.arrays import MemmapStorage
from penstock.datasets.storages.image_folder import ImageFolder
from tests.contracts.storage import check_storage
from tests.datasets.storages.lmdb_files import Listed
from tests.memory_storage import MemoryStorage


def put(root, names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return str(root)


def keys(storage):
    return storage.index.keys(np.arange(len(storage)))


def recipe(root, **arguments):
    return StorageRecipe(ImageFolder, {"path": str(root), **arguments})


def both(recipe, val_fraction):
    return [open_split(recipe, split=s, val_fraction=val_fraction) for s in ("train", "val")]


def test_sub_folders_share_the_training_classes(tmp_path):
    put(tmp_path, ["train/b/1.jpg", "train/a/2.jpg", "train/c/3.jpg", "val/c/4.jpg", "val/b/5.jpg"])
    train, val = both(recipe(tmp_path), 0.5)
    assert keys(train) == ["a/2.jpg", "b/1.jpg", "c/3.jpg"] and keys(val) == ["b/5.jpg", "c/4.jpg"]
    assert val.index.class_names == train.index.class_names == ("a", "b", "c")
    assert [r.fields["label"] for r in val.read(np.arange(2))] == [1, 2]
    put(tmp_path, ["val/new/1.jpg"])
    with pytest.raises(ValueError, match="class 'new' is not among the 3 classes"):
        open_split(recipe(tmp_path), split="val", val_fraction=0.5)


def test_paths_may_begin_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", put(tmp_path, ["here/a/1.jpg", "there/a/2.jpg"]))
    train, val = both(replace(recipe("~/here"), val_path="~/there"), 0.5)
    assert keys(train) == ["a/1.jpg"] and keys(val) == ["a/2.jpg"]


def test_a_row_of_a_label_table_that_fits_two_parts_is_refused(tmp_path):
    root = put(tmp_path / "d", ["train/1.jpg", "val/1.jpg"])
    (tmp_path / "t.csv").write_text("image,label\n1.jpg,a\n")
    with pytest.raises(ValueError, match=r"may be '.*train/1\.jpg' or '.*val/1\.jpg'"):
        both(recipe(root, labels=str(tmp_path / "t.csv")), 0.5)


def test_a_storage_without_classes_must_have_the_same_ones(tmp_path):
    put(tmp_path, ["train/x", "val/x"])

    def make(path):
        name = "a" if path.endswith("train") else "b"
        return Listed({"k": {"image": b"", "label": 0}}, (name,))

    with pytest.raises(ValueError, match="class 'b' is not trained on"):
        both(StorageRecipe(make, {"path": str(tmp_path)}), 0.1)


def test_classes_that_look_like_splits_are_refused(tmp_path):
    put(tmp_path, ["x/1.jpg"])

    def make(path, classes=None):
        return Listed({"k": {"image": b"", "label": 0}}, classes or ("Test", "Train", "x"))

    with pytest.raises(ValueError, match=r"'Train' and 'Test' look like parts .*classes=\[...\]"):
        both(StorageRecipe(make, {"path": str(tmp_path)}), 0.1)
    typed = {"path": str(tmp_path), "classes": ["Test", "Train", "x"]}
    assert len(both(StorageRecipe(make, typed), 0)[0]) == 1


def test_hash_split_is_a_partition_and_reads_as_the_whole(tmp_path):
    names = [f"{'ab'[i % 2]}/{i}.jpg" for i in range(200)]
    whole = ImageFolder(put(tmp_path, names))
    train, val = both(recipe(tmp_path), 0.25)
    assert sorted(keys(train) + keys(val)) == sorted(names) and 30 < len(val) < 70
    assert train.fingerprint() != val.fingerprint() != whole.fingerprint()
    for part in (train, val):
        check_storage(
            lambda part=part: part,
            [(key, {"image": key.encode(), "label": int(key[0] == "b")}) for key in keys(part)],
        )
        assert part.index.class_names == ("a", "b")
        assert part.held_bytes(np.arange(len(part))).tolist() == [len(key) for key in keys(part)]


def test_the_hash_of_a_split_never_changes():
    names = [b"a/%d.jpg" % i for i in range(16)]
    assert "".join("01"[v] for v in is_val(names, 0.5)) == "0011010010111100"


def test_a_storage_with_any_index_can_be_split():
    source = MemoryStorage([{"image": b"%d" % i, "label": i % 2} for i in range(50)])
    assert not isinstance(source.index, Table)
    train, val = both(StorageRecipe(lambda: source, {}), 0.5)
    assert sorted(keys(train) + keys(val)) == sorted(keys(source))
    for part in (train, val):
        for i, record in enumerate(part.read(np.arange(len(part)))):
            row = keys(source).index(record.key)
            assert (record.index, record.fields["image"]) == (i, b"%d" % row)


def test_a_long_selection_is_mapped_and_made_once(tmp_path, monkeypatch):
    n = 100_000
    np.save(tmp_path / "x.npy", np.zeros(n))
    recipe = StorageRecipe(MemmapStorage, {"path": str(tmp_path)})
    train, val = both(recipe, 0.5)
    assert isinstance(val, Subset)
    assert isinstance(val.index, Table)
    assert len(train) + len(val) == n
    assert len(pickle.dumps(val)) < 5000
    monkeypatch.setattr("penstock.datasets.records.splits.is_val", None)
    again = open_split(recipe, split="val", val_fraction=0.5)
    assert again.fingerprint() == val.fingerprint()
    assert keys(pickle.loads(pickle.dumps(again))) == keys(val)


def test_the_usual_words_name_splits_in_any_case(tmp_path):
    put(tmp_path, ["Training/1.jpg", "Validation/2.jpg", "notes.txt"])
    found = {"train": str(tmp_path / "Training"), "val": str(tmp_path / "Validation")}
    assert find_parts(tmp_path) == found
    alone = put(tmp_path / "alone", ["train/a/1.jpg", ".cache/x"])
    assert find_parts(alone) == {"train": f"{alone}/train"}, "hidden folders hold no data"
    with pytest.raises(ValueError, match=r"holds val and valid, expected one of them; .*val_path"):
        find_parts(put(tmp_path / "two", ["train/1.jpg", "val/2.jpg", "valid/3.jpg"]))


HUB = ["train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"]


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        ([f"data/{name}.parquet" for name in [*HUB, "test-00000-of-00001"]],
         {part: f"data/{word}-*-of-*.parquet" for part, word in
          (("train", "train"), ("val", "validation"), ("test", "test"))}),
        (["in1k-train-0000.tar", "in1k-train-0001.tar", "in1k-val-0000.tar"],
         {part: f"in1k-{part}-*.tar" for part in ("train", "val")}),
        (["dataset_dict.json", "train/x.arrow", "validation/x.arrow"],
         {"train": "train", "val": "validation"}),
        (["train.lmdb", "val.lmdb"], {"train": "train.lmdb", "val": "val.lmdb"}),
        (["train-00000-of-00001.parquet"], {}),
        (["a.jpg", "train.csv", "test.csv"], {}),
    ],
)  # fmt: skip
def test_files_of_splits_and_shards_of_public_hubs(tmp_path, names, parts):
    found = find_parts(put(tmp_path, names))
    assert all(glob.glob(path) for path in found.values())
    assert found == {part: f"{tmp_path}/{name}" for part, name in parts.items()}
