"""Splits: folders where they exist, else a hash that moves no record when another is added."""

import glob
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import contracts
from penstock.datasets.records.splits import StorageRecipe, find_parts, is_val, open_split
from penstock.datasets.records.subset import Subset
from penstock.datasets.records.table import Table
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.datasets.storages.lmdb import LmdbStorage
from tests.contracts.storage import check_storage
from tests.datasets.storages.lmdb_files import Listed
from tests.packed import write_lmdb


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
    assert keys(train) == ["a/2.jpg", "b/1.jpg", "c/3.jpg"]
    assert keys(val) == ["b/5.jpg", "c/4.jpg"]
    assert val.index.class_names == train.index.class_names == ("a", "b", "c")
    assert [r.fields["label"] for r in val.read(np.arange(2))] == [1, 2]
    put(tmp_path, ["val/new/1.jpg"])
    with pytest.raises(ValueError, match="class 'new' is not among the 3 classes"):
        open_split(recipe(tmp_path), split="val", val_fraction=0.5)


def test_sub_files(tmp_path):
    def part(*labels):
        return Listed({f"{i}": {"image": b"x", "label": n} for i, n in enumerate(labels)},
                      ("a", "b")[: max(labels) + 1])  # fmt: skip

    for suffix in ("", ".lmdb"):
        root = tmp_path / f"x{suffix}"
        write_lmdb(root / f"train{suffix}", part(0, 1, 1))
        write_lmdb(root / f"val{suffix}", part(0, 0))
        train, val = both(StorageRecipe(LmdbStorage, {"path": str(root)}), 0.9)
        assert (len(train), len(val)) == (3, 2)
        assert val.index.class_names == ("a", "b")
        assert val.index.column("label").tolist() == [0, 0]


def test_a_storage_without_classes_must_have_the_same_ones(tmp_path):
    put(tmp_path, ["train/x", "val/x"])

    def make(path):
        name = "a" if path.endswith("train") else "b"
        return Listed({"k": {"image": b"", "label": 0}}, (name,))

    with pytest.raises(ValueError, match="class 'b' is not trained on"):
        both(StorageRecipe(make, {"path": str(tmp_path)}), 0.1)


@pytest.mark.parametrize(
    ("train", "val"),
    [("train", "valid"), ("Train", "Val"), ("Training", "Validation"), ("trn", "dev"),
     ("train2017", "val2017"), ("my-train", "my-val"), ("TRAIN_images", "VAL_images")],
)  # fmt: skip
def test_the_usual_words_name_splits_in_any_case(tmp_path, train, val, caplog):
    put(tmp_path, [f"{train}/a/1.jpg", f"{train}/b/2.jpg", f"{val}/a/3.jpg", "notes.txt"])
    assert find_parts(tmp_path) == {"train": str(tmp_path / train), "val": str(tmp_path / val)}
    assert [keys(part) for part in both(recipe(tmp_path), 0.5)] == [
        ["a/1.jpg", "b/2.jpg"], ["a/3.jpg"],
    ]  # fmt: skip
    assert not caplog.records


@pytest.mark.parametrize(
    ("train", "test"), [("Train", "Test"), ("Training", "Testing"), ("seg_train", "seg_test")]
)
def test_without_a_val_it_is_split_off_the_training_part(tmp_path, train, test):
    names = [f"{'ab'[n % 2]}/{n}.jpg" for n in range(40)]
    put(tmp_path / train, names)
    put(tmp_path / test, ["a/x.jpg"])
    trained, validated = map(keys, both(recipe(tmp_path), 0.5))
    assert trained and validated and sorted(trained + validated) == sorted(names)
    assert keys(open_split(recipe(tmp_path), split="test", val_fraction=0.5)) == ["a/x.jpg"]


def test_a_test_part_is_one_of_its_own_beside_a_val(tmp_path, caplog):
    put(tmp_path / "x", ["Train/a/1.jpg", "Train/b/2.jpg", "VALID/b/3.jpg", "Testing/b/4.jpg"])
    assert find_parts(tmp_path / "x")["test"] == str(tmp_path / "x" / "Testing")
    test = open_split(recipe(tmp_path / "x"), split="test", val_fraction=0.5)
    assert keys(test) == ["b/4.jpg"] and test.index.class_names == ("a", "b")
    assert not caplog.records
    with pytest.raises(ValueError, match=r"no test split .*type dataset\.test_path="):
        open_split(recipe(tmp_path / "x" / "Train"), split="test", val_fraction=0.5)


def test_a_test_part_may_lie_apart_from_data_that_is_split_by_keys(tmp_path):
    put(tmp_path / "x", [f"{'ab'[n % 2]}/{n}.jpg" for n in range(40)])
    put(tmp_path / "y", ["b/1.jpg", "b/2.jpg"])
    apart = StorageRecipe(ImageFolder, {"path": f"{tmp_path}/x"}, test_path=f"{tmp_path}/y")
    assert sum(map(len, both(apart, 0.25))) == 40
    test = open_split(apart, split="test", val_fraction=0.25)
    assert test.index.column("label").tolist() == [1, 1]


def test_settled_classes_are_those_of_every_part(tmp_path):
    put(tmp_path, ["train/b/1.jpg", "train/a/2.jpg", "val/a/3.jpg"])
    settled = StorageRecipe(
        ImageFolder, {"path": str(tmp_path)}, classes={"label": ("c", "b", "a")}
    )
    parts = both(settled, 0.5)
    assert [part.index.column("label").tolist() for part in parts] == [[2, 1], [2]]


def test_two_parts_for_one_split_are_refused(tmp_path):
    put(tmp_path, ["train/a/1.jpg", "val/a/2.jpg", "valid/a/3.jpg"])
    with pytest.raises(ValueError, match=r"holds val and valid, expected one of them; .*val_path"):
        both(recipe(tmp_path), 0.5)


def test_parts_may_lie_apart(tmp_path):
    put(tmp_path / "x", ["a/1.jpg", "b/2.jpg"])
    put(tmp_path / "y", ["b/3.jpg"])
    apart = StorageRecipe(ImageFolder, {"path": str(tmp_path / "x")}, str(tmp_path / "y"))
    train, val = both(apart, 0.5)
    assert [keys(train), keys(val)] == [["a/1.jpg", "b/2.jpg"], ["b/3.jpg"]]
    assert val.index.class_names == ("a", "b")


def test_a_path_beside_val_path_is_the_training_part_itself(tmp_path):
    put(tmp_path / "x", ["train/a/1.jpg", "test/a/2.jpg"])
    put(tmp_path / "y", ["a/3.jpg"])
    apart = StorageRecipe(ImageFolder, {"path": str(tmp_path / "x")}, str(tmp_path / "y"))
    with pytest.raises(ValueError, match=r"'train' and 'test' look like parts"):
        both(apart, 0.5)


def test_classes_that_look_like_splits_are_refused(tmp_path):
    put(tmp_path, ["x/1.jpg"])

    def make(path, classes=None):
        return Listed({"k": {"image": b"", "label": 0}}, classes or ("Test", "Train", "x"))

    with pytest.raises(ValueError, match=r"'Train' and 'Test' look like parts .*classes=\[...\]"):
        both(StorageRecipe(make, {"path": str(tmp_path)}), 0.1)
    typed = {"path": str(tmp_path), "classes": ["Test", "Train", "x"]}
    assert len(both(StorageRecipe(make, typed), 0)[0]) == 1


def test_a_class_called_train_is_one(tmp_path):
    put(tmp_path / "y", ["train/1.jpg", "plane/1.jpg", "test_tube/1.jpg", "train_station/2.jpg"])
    assert find_parts(tmp_path / "y") is None
    assert both(recipe(tmp_path / "y"), 0)[0].index.class_names == (
        "plane", "test_tube", "train", "train_station",
    )  # fmt: skip
    put(tmp_path / "z", ["train.jpg", "test.jpg"])
    assert find_parts(tmp_path / "z") is find_parts(None) is find_parts(tmp_path / "no") is None


def test_hash_split_is_a_partition_and_reads_as_the_whole(tmp_path):
    names = [f"{'ab'[i % 2]}/{i}.jpg" for i in range(200)]
    whole = ImageFolder(put(tmp_path, names))
    train, val = both(recipe(tmp_path), 0.25)
    assert sorted(keys(train) + keys(val)) == sorted(names)
    assert 30 < len(val) < 70
    assert train.fingerprint() != val.fingerprint() != whole.fingerprint()
    for part in (train, val):
        check_storage(
            lambda part=part: part,
            [(key, {"image": key.encode(), "label": int(key[0] == "b")}) for key in keys(part)],
            processes=("forked", "new"),
        )
        assert part.index.class_names == ("a", "b")


def test_what_a_split_has_left_is_split_again_by_a_larger_share_which_is_said(tmp_path, caplog):
    put(tmp_path / "whole", [f"a/{i}.jpg" for i in range(1000)])
    left, _ = both(recipe(tmp_path / "whole"), 0.2)
    put(tmp_path / "left", keys(left))
    assert len(both(recipe(tmp_path / "left"), 0.2)[1]) == 0
    [said] = [record.getMessage() for record in caplog.records]
    typed = float(said.rpartition("type dataset.val_fraction=")[2])
    assert 0.17 < len(both(recipe(tmp_path / "left"), typed)[1]) / len(left) < 0.23
    put(tmp_path / "few", keys(left)[:5])
    both(recipe(tmp_path / "few"), 0.2)
    assert len(caplog.records) == 1


def test_adding_a_record_moves_no_other(tmp_path):
    put(tmp_path, [f"a/{i}.jpg" for i in range(100)])
    before = [set(keys(part)) for part in both(recipe(tmp_path), 0.3)]
    put(tmp_path, [f"a/0{i}.jpg" for i in range(100)])
    after = [set(keys(part)) for part in both(recipe(tmp_path), 0.3)]
    assert before[0] < after[0]
    assert before[1] < after[1]
    wider = [set(keys(part)) for part in both(recipe(tmp_path), 0.5)]
    assert after[1] < wider[1]


def test_the_hash_is_what_it_was():
    names = [b"a/%d.jpg" % i for i in range(16)]
    assert "".join("01"[v] for v in is_val(names, 0.5)) == "0011010010111100"


@given(st.floats(0, 1), st.lists(st.binary(), min_size=1, max_size=20))
def test_shares(fraction, names):
    chosen = list(is_val(names, fraction))
    assert chosen == list(is_val(names[::-1], fraction))[::-1]
    assert all(b >= a for a, b in zip(chosen, is_val(names, 1.0), strict=True))
    assert not any(is_val(names, 0.0))


def test_the_share_is_the_fraction():
    chosen = list(is_val((b"%d" % i for i in range(100_000)), 0.2))
    assert abs(sum(chosen) / 100_000 - 0.2) < 0.005


def test_no_validation_and_nothing_but_validation(tmp_path):
    put(tmp_path, ["a/1.jpg", "a/2.jpg"])
    train, val = both(recipe(tmp_path), 0)
    assert (type(train), len(train), len(val)) == (ImageFolder, 2, 0)
    assert val.read(np.array([], np.int64)) == []
    assert val.index.class_names == ("a",)
    assert [len(part) for part in both(recipe(tmp_path), 1)] == [0, 2]


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), True])
def test_wrong_fractions(tmp_path, fraction):
    with pytest.raises(ValueError, match=r"val_fraction: got .*, expected a number from 0 to 1"):
        open_split(recipe(tmp_path), split="train", val_fraction=fraction)


def test_a_storage_with_any_index_can_be_split():
    class Bare(contracts.Index):
        """Only what the contract asks for."""

        def __init__(self, index):
            self._index = index
            self.column, self.columns = index.column, index.columns
            self.class_names = index.class_names

        def __len__(self):
            return len(self._index)

        def keys(self, indices):
            return self._index.keys(indices)

        def fingerprint(self):
            return self._index.fingerprint()

    source = Listed({f"k{i}": {"image": b"%d" % i, "label": i % 2} for i in range(50)}, "ab")
    source.index = Bare(source.index)
    train, val = both(StorageRecipe(lambda: source, {}), 0.5)
    assert sorted(keys(train) + keys(val)) == sorted(source.records)
    for part in (train, val):
        for i, record in enumerate(part.read(np.arange(len(part)))):
            assert (record.index, record.fields) == (i, source.records[record.key])
            assert part.index.column("label")[i] == record.fields["label"]


def test_a_long_selection_is_mapped_and_made_once(tmp_path, monkeypatch):
    n = 100_000
    arguments = {"path": put(tmp_path / "d", ["i_7.jpg"]), "pattern": "i_{}.jpg", "count": n}
    train, val = both(StorageRecipe(ImageFolder, arguments), 0.5)
    assert isinstance(val, Subset)
    assert isinstance(val.index, Table)
    assert len(train) + len(val) == n
    assert len(pickle.dumps(val)) < 5000
    monkeypatch.setattr("penstock.datasets.records.splits.is_val", None)
    again = open_split(StorageRecipe(ImageFolder, arguments), split="val", val_fraction=0.5)
    assert again.fingerprint() == val.fingerprint()
    assert keys(pickle.loads(pickle.dumps(again))) == keys(val)


def test_a_train_folder_alone_is_not_taken_for_a_class(tmp_path):
    root = put(tmp_path / "d", ["train/a/1.jpg", "train/b/2.jpg"])
    assert find_parts(root) == {"train": f"{root}/train"}
    put(tmp_path / "d", ["bus/1.jpg"])
    assert find_parts(root) is None


def test_an_object_that_is_no_storage_is_named():
    class Half:
        def __len__(self):
            return 3

    with pytest.raises(ValueError, match="Half is no Storage"):
        open_split(StorageRecipe(Half, {}), split="train", val_fraction=0.5)


def test_shards_and_folders_of_the_public_hubs(tmp_path):
    shards = ["train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"]
    put(tmp_path, [f"a/data/{name}.parquet" for name in [*shards, "test-00000-of-00001"]])
    parts = find_parts(tmp_path / "a")
    assert parts == find_parts(tmp_path / "a/data") == {
        "train": str(tmp_path / "a/data/train-*-of-*.parquet"),
        "val": str(tmp_path / "a/data/validation-*-of-*.parquet"),
        "test": str(tmp_path / "a/data/test-*-of-*.parquet"),
    }  # fmt: skip
    put(tmp_path, [f"[b]/{name}.parquet" for name in shards])
    assert len(glob.glob(find_parts(tmp_path / "[b]")["train"])) == 2
    put(tmp_path, ["c/train-00000-of-00001.parquet", "c/test-00000-of-00001.parquet"])
    assert find_parts(tmp_path / "c")["test"] == str(tmp_path / "c/test-*-of-*.parquet")
    put(tmp_path, ["d/train-00000-of-00001.parquet"])
    assert find_parts(tmp_path / "d") is None
    put(tmp_path, ["e/dataset_dict.json", "e/train/x.arrow", "e/validation/x.arrow"])
    assert find_parts(tmp_path / "e") == {
        "train": str(tmp_path / "e/train"), "val": str(tmp_path / "e/validation")}  # fmt: skip
