"""Arrays in files: what the contract asks, every way to name them, and files that are wrong."""

import pickle
import shutil

import numpy as np
import pytest

from penstock.datasets.records.splits import StorageRecipe, open_split
from penstock.datasets.storages.memmap.storage import MemmapStorage
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
    storage = MemmapStorage(str(folder))
    assert storage.index.class_names == ("0", "1", "2", "3")
    assert storage.index.column("height").tolist() == [6] * 11
    assert storage.index.column("width").tolist() == [5] * 11


def test_arrays_are_views_of_the_file_and_cannot_be_written(folder):
    storage = MemmapStorage(str(folder))
    first, again = (storage.read(np.array([4]))[0].fields["image"] for _ in range(2))
    assert np.shares_memory(first, again) and not first.flags.writeable
    assert type(first) is np.ndarray
    copy = pickle.loads(pickle.dumps(storage))
    assert len(pickle.dumps(storage)) < 5000
    assert np.array_equal(copy.read(np.array([4]))[0].fields["image"], IMAGES[4])


def test_columns_are_what_reading_gives(folder):
    storage = MemmapStorage(str(folder))
    assert storage.column_fields == ("image", "label", "age", "depth")
    indices = np.array([10, 0, 0, 7])
    taken = storage.take(indices, storage.column_fields)
    records = storage.read(indices)
    for name, column in taken.items():
        assert column.flags.owndata and column.flags.c_contiguous
        assert column.tolist() == [np.asarray(r.fields[name]).tolist() for r in records]
    assert list(storage.take(indices, {"depth"})) == ["depth"]
    for outside in (11, -1):
        with pytest.raises(IndexError, match=str(outside)):
            storage.take(np.array([0, outside]), storage.column_fields)


def test_the_largest_column_goes_where_it_is_told(folder):
    memory = bytearray(2 * IMAGES[0].nbytes)
    asked = []

    def allocate(size_bytes):
        asked.append(size_bytes)
        return memory

    # A row of float32 [6, 5] is larger than one of uint8 [6, 5, 3].
    taken = MemmapStorage(str(folder)).take(np.array([3, 1]), ("image",), allocate=allocate)
    assert asked == [len(memory)]
    assert bytes(memory) == IMAGES[[3, 1]].tobytes() == taken["image"].tobytes()
    assert np.shares_memory(taken["image"], np.frombuffer(memory, np.uint8))


def test_a_part_of_it_gives_columns_too(folder):
    recipe = StorageRecipe(MemmapStorage, {"path": str(folder)})
    parts = {split: open_split(recipe, split=split, val_fraction=0.4) for split in ("train", "val")}
    keys = [key for part in parts.values() for key in part.index.keys(np.arange(len(part)))]
    assert sorted(keys, key=int) == [str(i) for i in range(11)] and len(parts["val"]) > 0
    for part in parts.values():
        indices = np.arange(len(part))[::-1].copy()
        rows = [int(key) for key in part.index.keys(indices)]
        assert np.array_equal(part.take(indices, part.column_fields)["image"], IMAGES[rows])
        assert [r.index for r in part.read(indices)] == indices.tolist()


def test_folders_train_and_val_are_the_splits(tmp_path):
    write(tmp_path / "train", images=IMAGES, labels=LABELS)
    write(tmp_path / "val", images=IMAGES[:3], labels=LABELS[:3])
    recipe = StorageRecipe(MemmapStorage, {"path": str(tmp_path)})
    val = open_split(recipe, split="val", val_fraction=0.2)
    assert len(val) == 3 and val.index.class_names == ("0", "1", "2", "3")
    np.save(tmp_path / "val/labels.npy", np.array([0, 9, 1]))
    with pytest.raises(ValueError, match=r"label 9 in row 1, expected 0 to 3: there are 4 classes"):
        open_split(recipe, split="val", val_fraction=0.2)


def test_class_names_lie_beside_the_arrays(folder):
    (folder / "classes.txt").write_text("ant\nbee\ncat\ndog\n")
    names = ("ant", "bee", "cat", "dog")
    assert MemmapStorage(str(folder)).index.class_names == names
    assert MemmapStorage(str(folder), classes=list(names)).index.class_names == names
    assert "has other classes than" in message(str(folder), classes=["ant", "bee", "dog", "cat"])
    (folder / "classes.txt").write_text("ant\nbee\n")
    assert "label 2 in row 1, expected 0 to 1: there are 2 classes" in message(str(folder))


def test_files_may_be_named_and_raw(folder, tmp_path):
    raw = tmp_path / "pixels.bin"
    raw.write_bytes(b"0123456789abcdef" + IMAGES.tobytes())
    targets = tmp_path / "targets.u2"
    LABELS.astype(">u2").tofile(targets)
    storage = MemmapStorage(
        {"label": str(targets), "image": str(raw), "depth": str(folder / "depth.npy")},
        shapes={"image": [6, 5, 3], "label": []},
        dtypes={"label": ">u2"},
        offsets={"image": 16},
    )
    records = storage.read(np.arange(11))
    for i, record in enumerate(records):
        assert list(record.fields) == ["image", "label", "depth"]
        assert np.array_equal(record.fields["image"], IMAGES[i])
        assert record.fields["label"] == LABELS[i] and type(record.fields["label"]) is int
    assert len(MemmapStorage(str(folder / "images.npy"))) == 11


def test_an_array_that_is_written_anew_is_indexed_anew(folder):
    assert len(MemmapStorage(str(folder))) == 11
    write(folder, images=IMAGES[:4], labels=LABELS[:4], depth=DEPTH[:4], age=AGES[:4])
    storage = MemmapStorage(str(folder))
    assert len(storage) == 4 and storage.index.class_names == ("0", "1", "2")


def test_files_that_are_not_there(tmp_path):
    assert "expected an array file at" in message(str(tmp_path / "none"))
    assert "no .npy file in there" in message(str(tmp_path))
    there = write(tmp_path / "a", images=IMAGES)
    assert "got a folder" in message({"image": str(there)})
    assert "shapes names the field 'pixels'" in message(str(there), shapes={"pixels": [3]})
    assert "dtypes names 'image', and shapes does not" in message(
        str(there), dtypes={"image": "uint8"}
    )
    np.save(there / "image.npy", IMAGES)
    assert "image.npy and images.npy are both the field 'image'" in message(str(there))
    for name in ("key", "position", "epoch", "a-b"):
        assert f"field {name!r}" in message(str(write(tmp_path / "r", **{name: AGES})))
        (tmp_path / f"r/{name}.npy").unlink()


def test_headers_and_files_cut_short(folder):
    whole = (folder / "images.npy").read_bytes()
    for length in range(0, len(whole), 41):
        (folder / "images.npy").write_bytes(whole[:length])
        said = message(str(folder))
        assert "images.npy" in said and ("cut short" in said or "is no .npy" in said), said
    (folder / "images.npy").write_bytes(whole + b"more")
    assert len(MemmapStorage(str(folder))) == 11
    for place in range(0, 128, 3):
        damaged = bytearray(whole)
        damaged[place] ^= 0x55
        (folder / "images.npy").write_bytes(damaged)
        try:
            len(MemmapStorage(str(folder)))
        except ValueError as error:
            assert "\n" not in str(error)


def test_what_would_have_to_be_unpickled_is_refused(folder, tmp_path):
    np.save(folder / "boxes.npy", np.array([[1], None] * 5 + [3], object), allow_pickle=True)
    assert "pickled), which are never loaded" in message(str(folder))
    (folder / "boxes.npy").unlink()
    (folder / "boxes.npy").write_bytes(pickle.dumps(IMAGES))
    assert "is no .npy file" in message(str(folder))
    np.savez(tmp_path / "all.npz", images=IMAGES)
    assert "is an archive" in message({"image": str(tmp_path / "all.npz")})


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"labels": LABELS[:10]}, "image has 11 rows and label has 10"),
        ({"labels": LABELS.astype(float)}, "label is float64 [11], expected integers"),
        ({"labels": LABELS[:, None]}, "label is uint8 [11, 1], expected integers"),
        ({"labels": LABELS > 1}, "label is bool"),
        ({"labels": LABELS.astype(int) - 1}, "label -1 in row 0"),
        ({"labels": LABELS.astype(int) << 40}, "in row 1, expected 0 to"),
        ({"names": np.array(["a"] * 11)}, "names.npy holds <U1, expected numbers"),
        ({"age": np.arange(11, dtype=np.uint64)}, "age.npy holds uint64"),
        ({"age": np.float32(3)}, "age.npy holds one number"),
        ({"depth": np.asfortranarray(DEPTH)}, "depth.npy is in Fortran order"),
        ({"images": IMAGES / 255}, "images are float64 [11, 6, 5, 3], expected uint8"),
        ({"images": IMAGES.transpose(0, 3, 1, 2).copy()}, "put the channels last"),
        ({"images": IMAGES[..., 0].copy()}, "give them an axis of channels"),
        ({"images": IMAGES[:0], "labels": LABELS[:0], "depth": DEPTH[:0], "age": AGES[:0]},
         "the arrays are empty"),
    ],
)  # fmt: skip
def test_arrays_that_cannot_be_used(folder, arrays, said):
    assert said in message(str(write(folder, **arrays)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shapes": {"image": [6, 5, 4]}}, "has 990 bytes, expected 0 and a multiple of 120"),
        ({"shapes": {"image": [6, 5, 3]}, "offsets": {"image": 7}}, "expected 7 and a multiple"),
        ({"shapes": {"image": [6, 5, 3]}, "dtypes": {"image": "rgb"}}, "type 'rgb'; expected"),
        ({"shapes": {"image": [6, 5, 3]}, "dtypes": {"image": "O"}}, "type 'O'; expected"),
        ({"shapes": {"image": [6, 0, 3]}}, "expected lengths above 0"),
        ({"shapes": {"image": [6, 5, 3]}, "offsets": {"image": -1}}, "an offset of 0 or more"),
    ],
)
def test_raw_files_that_do_not_fit(tmp_path, options, said):
    IMAGES.tofile(tmp_path / "a.raw")
    assert said in message({"image": str(tmp_path / "a.raw")}, **options)
