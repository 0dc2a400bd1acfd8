"""HDF5 files that h5py wrote: every layout, type and filter."""

import h5py
import numpy as np
import pytest

from penstock.datasets.records.splits import StorageRecipe, open_split
from penstock.datasets.storages.hdf5 import Hdf5Storage
from tests.contracts.storage import check_storage
from tests.datasets.storages.checks import check_with_copy
from tests.datasets.storages.hdf5_files import (
    AGES,
    DEPTH,
    FILES,
    HALVES,
    IMAGES,
    LABELS,
    PIECES,
    fields,
    message,
    write,
    write_lists,
)


def expected(rows=range(11)):
    return [
        (str(i), {"image": IMAGES[i], "label": int(LABELS[i]), "depth": DEPTH[i].astype("<f4")})
        for i in rows
    ]


def test_it_is_a_storage(tmp_path):
    path = write(tmp_path / "a.h5", PIECES["shuffled"])
    check_with_copy(Hdf5Storage, path, expected())
    assert Hdf5Storage(path).index.class_names == ("0", "1", "2", "3")


def test_several_files_are_one_storage(tmp_path):
    for part in range(3):
        rows = slice(part * 4, min(part * 4 + 4, 11))
        arrays = {"images": IMAGES[rows], "labels": LABELS[rows], "depth": DEPTH[rows]}
        write(tmp_path / f"part-{part}.h5", PIECES["gzip" if part else "contiguous"], arrays)
    check_storage(lambda: Hdf5Storage(str(tmp_path)), expected())
    pattern = Hdf5Storage(str(tmp_path / "part-[01].h5"))
    assert len(pattern) == 8
    indices = np.array([7, 0, 3, 4, 7])
    assert pattern.take(indices, ("image",))["image"].tolist() == IMAGES[indices].tolist()


@pytest.mark.parametrize(
    ("pieces", "file_options"),
    [
        *((pieces, {}) for pieces in PIECES),
        ("cut", {"libver": "latest"}),
        ("checked", {"libver": "latest"}),
        ("contiguous", {"userblock_size": 512}),
        ("gzip", {"userblock_size": 512}),
    ],
)
def test_arrays_in_any_pieces_are_what_was_written(tmp_path, pieces, file_options):
    path = write(tmp_path / "a.h5", PIECES[pieces], **file_options)
    storage = Hdf5Storage(path)
    assert storage.column_fields == ("image", "label", "depth")
    for order in (np.arange(11), np.array([10, 0, 10, 5, 4, 4])):
        found = [{"key": r.key, **r.fields} for r in storage.read(order)]
        assert [r["key"] for r in found] == [str(i) for i in order]
        assert np.array_equal([r["image"] for r in found], IMAGES[order])
        assert np.array_equal([r["depth"] for r in found], DEPTH[order])
        taken = storage.take(order, storage.column_fields)
        assert np.array_equal(taken["image"], IMAGES[order])
        assert np.array_equal(taken["depth"], DEPTH[order])
        assert taken["depth"].dtype == np.dtype("=f4")
        assert taken["label"].tolist() == LABELS[order].tolist()


def test_every_type_that_can_be_read(tmp_path):
    boxes = [np.full((i % 3) * 4, i, np.float32) for i in range(11)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["half"], file["age"], file["good"] = HALVES, AGES, LABELS > 1
        file["big"] = np.arange(11, dtype=">i8") - (1 << 40)
        file["wave"] = AGES + 1j
        file["name"] = [f"n{i} ü" for i in range(11)]
        file["short"] = np.array([b"ab\0c"] * 11, "S6")
        file["raw"] = np.array([b"\0ab\0"] * 11, "V4")
        enum = h5py.enum_dtype({"A": 0, "B": 3}, np.int16)
        file.create_dataset("kind", data=LABELS.astype(np.int16), dtype=enum)
        write_lists(file, "images", FILES)
        write_lists(file, "boxes", boxes, ">f4")
    for i, found in enumerate(fields(tmp_path / "a.h5")):
        assert found["image"] == FILES[i]
        assert found["half"].dtype == np.float16 and np.array_equal(found["half"], HALVES[i])
        assert found["age"] == AGES[i] and found["good"] is bool(LABELS[i] > 1)
        assert found["big"] == i - (1 << 40) and found["wave"] == AGES[i] + 1j
        assert found["name"] == f"n{i} ü" and found["short"] == "ab\0c"
        assert found["raw"] == b"\0ab\0" and found["kind"] == LABELS[i]
        assert found["boxes"].dtype == np.dtype("=f4") and np.array_equal(found["boxes"], boxes[i])
    storage = Hdf5Storage(str(tmp_path / "a.h5"))
    assert storage.column_fields == (), "the lengths of lists differ"
    lengths = storage.index.column("size_bytes")
    lists = [len(FILES[i]) + boxes[i].nbytes + len(f"n{i} ü".encode()) for i in range(11)]
    assert len(set((lengths - lists).tolist())) == 1


def test_fields_may_be_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["camera/rgb"], file["target"], file["other"] = IMAGES, LABELS, AGES[:3]
        file["keys"] = [f"k{i}" for i in range(11)]
    names = {"image": "camera/rgb", "label": "/target"}
    storage = Hdf5Storage(str(tmp_path / "a.h5"), fields=names)
    assert storage.column_fields == ("image", "label")
    assert storage.index.keys(np.array([3])) == ["k3"]
    assert np.array_equal(storage.read(np.array([3]))[0].fields["image"], IMAGES[3])
    assert "other has 3, expected the same" in message(tmp_path / "a.h5")
    wrong = {"image": "camera/rgb", "label": "label"}
    assert "'label' cannot be opened" in message(tmp_path / "a.h5", fields=wrong)


def test_class_names_lie_beside(tmp_path):
    names = ("ant", "bee", "cat", "dog")
    path = write(tmp_path / "a.h5")
    (tmp_path / "classes.txt").write_text("\n".join(names) + "\n")
    assert Hdf5Storage(path).index.class_names == names
    assert "classes.txt has the classes ant, bee, cat, dog" in message(path, classes=[*names[::-1]])


def test_train_and_val_are_files_or_groups(tmp_path):
    write(tmp_path / "train.h5")
    write(tmp_path / "val.h5", arrays={"images": IMAGES[:3], "labels": LABELS[:3]})
    with h5py.File(tmp_path / "both.hdf5", "w") as file:
        for name, count in (("train", 11), ("val", 3)):
            file[f"{name}/images"], file[f"{name}/labels"] = IMAGES[:count], LABELS[:count]
    both = tmp_path / "both.hdf5"
    files = StorageRecipe(Hdf5Storage, {"path": str(tmp_path)})
    groups = StorageRecipe(Hdf5Storage, {"path": f"{both}/train"}, val_path=f"{both}/val")
    found = StorageRecipe(Hdf5Storage, {"path": str(both)})
    for recipe in (files, groups, found):
        parts = [open_split(recipe, split=s, val_fraction=0.2) for s in ("train", "val")]
        assert [len(part) for part in parts] == [11, 3]
        assert parts[0].index.class_names == parts[1].index.class_names
    assert "no data sets in /, but groups ['train', 'val']" in message(both)


def test_soft_links_and_fill_values_are_read(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data/images"] = IMAGES
        file["images"] = h5py.SoftLink("/data/./images")
        file["labels"] = LABELS
        sparse = {"shape": (11, 2), "dtype": "i4", "chunks": (2, 2), "fillvalue": 7}
        file.create_dataset("sparse", **sparse)[4:6] = 1
        file.create_dataset("empty", (11,), "i4", fillvalue=5)
    found = fields(tmp_path / "a.h5")
    assert np.array_equal([each["image"] for each in found], IMAGES)
    assert [each["sparse"].tolist()[0] for each in found] == [7] * 4 + [1] * 2 + [7] * 5
    assert [each["empty"] for each in found] == [5] * 11


@pytest.mark.parametrize("options", [{"maxshape": (None,)}, {"compression": "gzip"}])
def test_lists_in_chunks_and_short_addresses_are_read(tmp_path, options):
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_sizes(4, 4)
    path = tmp_path / "a.h5"
    with h5py.File(h5py.h5f.create(str(path).encode(), fcpl=creation)) as file:
        write_lists(file, "x", FILES, chunks=(4,), **options)
    assert [found["x"].tobytes() for found in fields(path)] == FILES
    storage = Hdf5Storage(str(path))
    assert storage.index.column("size_bytes").tolist() == [len(file) for file in FILES]
