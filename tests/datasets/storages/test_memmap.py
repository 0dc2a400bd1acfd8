"""Arrays in files: what the contract asks, every way to name them, and files that are wrong."""

import pickle
import shutil

import numpy as np
import pytest

from penstock.datasets.storages.arrays import MemmapStorage
from tests.contracts.storage import check_storage

rng = np.random.default_rng(0)
IMAGES = rng.integers(0, 256, (11, 6, 5, 3), np.uint8)
LABELS = np.array([0, 2, 1, 0, 3, 1, 0, 2, 2, 1, 0], np.uint8)
DEPTH = rng.normal(size=(11, 6, 5)).astype(np.float32)
AGES = rng.normal(size=11)


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "arrays", images=IMAGES, labels=LABELS, depth=DEPTH, age=AGES)


def write(folder, **arrays):
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def expected():
    return [
        (str(i), {"image": IMAGES[i], "label": int(LABELS[i]), "age": float(AGES[i]),
                  "depth": DEPTH[i]})
        for i in range(11)
    ]  # fmt: skip


def message(*arguments, **options):
    with pytest.raises(ValueError) as caught:
        len(MemmapStorage(*arguments, **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_it_is_a_storage(folder, tmp_path):
    def copy():
        shutil.copytree(folder, tmp_path / "copy", dirs_exist_ok=True)
        return MemmapStorage(str(tmp_path / "copy"))

    check_storage(lambda: MemmapStorage(str(folder)), expected(), make_copy=copy)


def test_large_arrays_are_views_of_the_file_and_cannot_be_written(tmp_path):
    large = rng.normal(size=(3, 16, 16, 16))
    storage = MemmapStorage(str(write(tmp_path / "a", volume=large)))
    first, again = (storage.read(np.array([2]))[0].fields["volume"] for _ in range(2))
    assert np.shares_memory(first, again) and not first.flags.writeable
    assert type(first) is np.ndarray
    copy = pickle.loads(pickle.dumps(storage))
    assert len(pickle.dumps(storage)) < 5000
    assert np.array_equal(copy.read(np.array([2]))[0].fields["volume"], large[2])


def test_keys_are_an_array(folder):
    for keys, said in ((["a"] * 11, "stands twice"), (["a"], "key has 1, expected the same")):
        np.save(folder / "keys.npy", np.array(keys))
        assert said in message(str(folder))
    np.save(folder / "keys.npy", np.array([*"abcdefghijk"]))
    assert MemmapStorage(str(folder)).index.keys(np.arange(2)) == ["a", "b"]


def test_files_that_are_not_there(tmp_path):
    assert "nothing there" in message(str(tmp_path / "none"))
    there = write(tmp_path / "a", images=IMAGES)
    assert len(MemmapStorage(str(there / "images.npy"))) == 11
    np.save(there / "image.npy", IMAGES)
    assert "image.npy and images.npy are both the field 'image'" in message(str(there))
    assert "field 'epoch'" in message(str(write(tmp_path / "r", epoch=AGES)))


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"labels": LABELS[:10]}, "image has 11 rows and label has 10"),
        ({"labels": LABELS.astype(float)}, "label is float64 [11], expected integers"),
        ({"labels": LABELS.astype(int) - 1}, "row 0: label -1, expected a class id"),
        ({"labels": LABELS.astype(int) << 40}, "is a code, expected class ids"),
        ({"age": np.arange(11, dtype=np.uint64)}, "age.npy: it holds uint64"),
        ({"age": np.float32(3)}, "age.npy: it holds float32 []"),
        ({"depth": np.asfortranarray(DEPTH)}, "[11, 6, 5] in Fortran order"),
        ({"images": IMAGES / 255}, "images are float64 [11, 6, 5, 3], expected uint8"),
        ({"images": IMAGES.transpose(0, 3, 1, 2).copy()}, "transpose them"),
        ({"images": IMAGES[:0], "labels": LABELS[:0], "depth": DEPTH[:0], "age": AGES[:0]},
         "the arrays are empty"),
    ],
)  # fmt: skip
def test_arrays_that_cannot_be_used(folder, arrays, said):
    assert said in message(str(write(folder, **arrays)))
