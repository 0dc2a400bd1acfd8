"""HDF5 files that h5py wrote: every layout, type and filter."""

import os
import shutil

import h5py
import numpy as np
import pytest

from penstock.datasets.records.splits import StorageRecipe, open_split
from penstock.datasets.storages.hdf5 import Hdf5Storage
from penstock.datasets.storages.hdf5.storage import Hdf5
from tests.contracts.storage import check_storage
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

    def copy():
        shutil.copy(path, tmp_path / "copy.h5")
        return Hdf5Storage(str(tmp_path / "copy.h5"))

    check_storage(lambda: Hdf5Storage(path), expected(), make_copy=copy)
    storage = Hdf5Storage(path)
    assert storage.index.class_names == ("0", "1", "2", "3")
    assert storage.index.column("height").tolist() == [6] * 11
    assert storage.index.column("width").tolist() == [5] * 11


def test_several_files_are_one_storage(tmp_path):
    for part in range(3):
        rows = slice(part * 4, min(part * 4 + 4, 11))
        arrays = {"images": IMAGES[rows], "labels": LABELS[rows], "depth": DEPTH[rows]}
        write(tmp_path / f"part-{part}.h5", PIECES["gzip" if part else "contiguous"], arrays)
    check_storage(lambda: Hdf5Storage(str(tmp_path)), expected(), processes=("forked", "new"))
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
    for order in (np.arange(11), np.array([10, 0, 10, 5, 4, 4])):
        for i, record in zip(order, storage.read(order), strict=True):
            assert np.array_equal(record.fields["image"], IMAGES[i])
            assert np.array_equal(record.fields["depth"], DEPTH[i])
            assert record.fields["depth"].dtype == np.dtype("=f4")
            assert type(record.fields["label"]) is int
        assert storage.column_fields == ("image", "depth", "label")
        taken = storage.take(order, storage.column_fields)
        assert np.array_equal(taken["image"], IMAGES[order])
        assert np.array_equal(taken["depth"], DEPTH[order])
        assert taken["depth"].dtype == np.dtype("=f4")
        assert taken["label"].tolist() == LABELS[order].tolist()


def test_the_largest_column_goes_where_it_is_told(tmp_path):
    memory = bytearray(2 * IMAGES[0].nbytes)
    for pieces in ("contiguous", "gzip"):
        storage = Hdf5Storage(write(tmp_path / f"{pieces}.h5", PIECES[pieces]))
        memory[:] = bytes(len(memory))
        taken = storage.take(np.array([3, 1]), ("image", "label"), allocate=lambda size: memory)
        assert bytes(memory) == IMAGES[[3, 1]].tobytes() == taken["image"].tobytes()
        for outside in (11, -1):
            with pytest.raises(IndexError, match=str(outside)):
                storage.take(np.array([0, outside]), ("image",))


def test_every_type_that_can_be_read(tmp_path):
    boxes = [np.full((i % 3) * 4, i, np.float32) for i in range(11)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["half"], file["age"], file["good"] = HALVES, AGES, LABELS > 1
        file["big"] = np.arange(11, dtype=">i8") - (1 << 40)
        file["wave"] = AGES + 1j
        file["name"] = [f"n{i} ü" for i in range(11)]
        file["short"] = np.array([b"ab\0c"] * 11, "S6")
        file["raw"] = np.array([b"\0ab\0"] * 11, "V4")
        file["grid"] = np.zeros(11, np.dtype(("<i2", (2, 3)))) + 7
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
        assert found["grid"].tolist() == [[7, 7, 7], [7, 7, 7]]
        assert found["boxes"].dtype == np.dtype("=f4") and np.array_equal(found["boxes"], boxes[i])
    storage = Hdf5Storage(str(tmp_path / "a.h5"))
    assert storage.column_fields == (), "lists have no shape, so there are no columns"
    lengths = storage.index.column("size_bytes")
    lists = [len(FILES[i]) + boxes[i].nbytes + len(f"n{i} ü".encode()) for i in range(11)]
    assert len(set((lengths - lists).tolist())) == 1


def test_lists_are_a_storage(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=1024) as file:
        write_lists(file, "image", FILES)
        file["label"] = [f"class {i % 3}" for i in range(11)]
        file["keys"] = [f"k{i}" for i in range(11)]
    check_storage(
        lambda: Hdf5Storage(str(tmp_path / "a.h5")),
        [(f"k{i}", {"image": FILES[i], "label": i % 3}) for i in range(11)],
        processes=("new",),
    )


def test_fields_may_be_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["camera/rgb"], file["target"], file["other"] = IMAGES, LABELS, AGES[:3]
        file["keys"] = [f"k{i}" for i in range(11)]
    names = {"image": "camera/rgb", "label": "/target"}
    storage = Hdf5Storage(str(tmp_path / "a.h5"), fields=names)
    assert storage.column_fields == ("image", "label")
    assert storage.index.keys(np.array([3])) == ["k3"]
    assert np.array_equal(storage.read(np.array([3]))[0].fields["image"], IMAGES[3])
    assert "'other': 3" in message(tmp_path / "a.h5")
    wrong = {"image": "camera/rgb", "label": "label"}
    assert "'label' cannot be opened" in message(tmp_path / "a.h5", fields=wrong)


def test_class_names_lie_in_attributes_datasets_or_beside(tmp_path):
    names = ["ant", "bee", "cat", "dog"]
    path = tmp_path / "a.h5"
    for place in ("attribute of the file", "attribute of the labels", "dataset", "beside"):
        write(path)
        with h5py.File(path, "r+") as file:
            if place == "attribute of the file":
                file.attrs["class_names"] = names
            elif place == "attribute of the labels":
                file["labels"].attrs["classes"] = np.array(names, "S")
            elif place == "dataset":
                file["label_names"] = names
            else:
                (tmp_path / "classes.txt").write_text("\n".join(names) + "\n")
        storage = Hdf5Storage(str(path))
        assert storage.index.class_names == tuple(names), place
        assert storage.index.column("label").tolist() == LABELS.tolist()
    turned = Hdf5Storage(str(path), classes=names[::-1])
    assert turned.index.column("label").tolist() == (3 - LABELS).tolist()


def test_train_and_val_are_files_or_groups(tmp_path):
    write(tmp_path / "train.h5")
    write(tmp_path / "val.h5", arrays={"images": IMAGES[:3], "labels": LABELS[:3]})
    with h5py.File(tmp_path / "both.hdf5", "w") as file:
        file.attrs["class_names"] = ["a", "b", "c", "d"]
        for name, count in (("train", 11), ("val", 3), ("test", 2)):
            file[f"{name}/images"], file[f"{name}/labels"] = IMAGES[:count], LABELS[:count]
    for path in (tmp_path, tmp_path / "both.hdf5"):
        recipe = StorageRecipe(Hdf5Storage, {"path": str(path)})
        parts = [open_split(recipe, split=s, val_fraction=0.2) for s in ("train", "val")]
        assert [len(part) for part in parts] == [11, 3]
        assert parts[0].index.class_names == parts[1].index.class_names
    assert len(open_split(recipe, split="test", val_fraction=0.2)) == 2
    typed = f"dataset.storage.path={tmp_path}/both.hdf5/train"
    assert message(tmp_path / "both.hdf5").endswith(typed)


def test_only_a_new_file_is_scanned(tmp_path, monkeypatch):
    (tmp_path / "set").mkdir()
    write(tmp_path / "set/a.h5")
    write(tmp_path / "set/b.h5", arrays={"images": IMAGES[:3], "labels": LABELS[:3]})
    named = {"image": "images", "label": "labels"}
    assert len(Hdf5Storage(str(tmp_path / "set"), fields=named)) == 14
    write(tmp_path / "set/c.h5", arrays={"images": IMAGES[:4], "labels": LABELS[:4]})
    scanned, scan = [], Hdf5.scan

    def counted(form, file, *more):
        scanned.append(os.path.basename(file.path))
        return scan(form, file, *more)

    monkeypatch.setattr(Hdf5, "scan", counted)
    storage = Hdf5Storage(str(tmp_path / "set"), fields=named)
    assert len(storage) == 18 and storage.column_fields == ("image", "label")
    assert scanned == ["c.h5"]
    assert storage.index.column("label").tolist() == [*LABELS, *LABELS[:3], *LABELS[:4]]


def test_a_file_that_is_written_anew_is_indexed_anew(tmp_path):
    path = write(tmp_path / "a.h5")
    assert len(Hdf5Storage(path)) == 11
    write(tmp_path / "a.h5", arrays={"images": IMAGES[:4], "labels": LABELS[:4]})
    storage = Hdf5Storage(path)
    assert len(storage) == 4 and storage.column_fields == ("image", "label")


def test_a_read_only_folder_is_left_as_it_is(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    path = write(folder / "a.h5")
    folder.chmod(0o555)
    try:
        before = (folder / "a.h5").read_bytes()
        assert len(fields(path)) == 11
        assert (folder / "a.h5").read_bytes() == before
        assert [entry.name for entry in folder.iterdir()] == ["a.h5"]
    finally:
        folder.chmod(0o755)


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


def test_compact_and_short_addresses_and_lists_in_chunks_are_read(tmp_path):
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_sizes(4, 4)
    path = tmp_path / "a.h5"
    with h5py.File(h5py.h5f.create(str(path).encode(), fcpl=creation)) as file:
        file["depth"] = DEPTH
        for name, options in {
            "plain": {"chunks": (4,), "maxshape": (None,)},
            "packed": {"chunks": (4,), "compression": "gzip"},
        }.items():
            lists = file.create_dataset(name, (11,), h5py.vlen_dtype(np.uint8), **options)
            for row, value in enumerate(FILES):
                lists[row] = np.frombuffer(value, np.uint8)
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        space, kind = h5py.h5s.create_simple((11,)), h5py.h5t.py_create(AGES.dtype)
        h5py.h5d.create(file.id, b"ages", kind, space, compact).write(
            h5py.h5s.ALL, h5py.h5s.ALL, AGES
        )
    for i, found in enumerate(fields(path)):
        assert found["plain"].tobytes() == found["packed"].tobytes() == FILES[i]
        assert found["ages"] == AGES[i] and np.array_equal(found["depth"], DEPTH[i])
    storage = Hdf5Storage(str(path), fields={"plain": "plain"})
    assert storage.index.column("size_bytes").tolist() == [len(file) for file in FILES]
