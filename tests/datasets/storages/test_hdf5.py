"""HDF5 files that h5py wrote: every layout and filter, and files that are wrong."""

import json
import pickle
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest

from datasets.formats import hdf5_process
from datasets.formats.hdf5_filters import fletcher32
from datasets.sample import BadRecord
from datasets.splits import StorageRecipe, open_split
from datasets.storages.hdf5 import Hdf5Storage
from tests.contracts.storage import check_storage

rng = np.random.default_rng(0)
IMAGES = rng.integers(0, 256, (11, 6, 5, 3), np.uint8)
LABELS = np.array([0, 2, 1, 0, 3, 1, 0, 2, 2, 1, 0], np.uint8)
DEPTH = rng.normal(size=(11, 6, 5)).astype(">f4")
HALVES = rng.normal(size=(11, 4)).astype(np.float16)
AGES = rng.normal(size=11)
FILES = [bytes([255, 216, i]) * (1 + i * 700) for i in range(11)]  # below, at and above 4 KiB

PIECES = {
    "contiguous": {},
    "guessed": {"chunks": True},
    "rows": {"chunks": (2,)},
    "cut": {"chunks": (3, 2, 5)},
    "gzip": {"chunks": (2,), "compression": "gzip"},
    "lzf": {"chunks": (4,), "compression": "lzf"},
    "shuffled": {"chunks": (4,), "compression": "gzip", "shuffle": True},
    "checked": {"chunks": (3,), "fletcher32": True},
    "all": {"chunks": (3,), "compression": "lzf", "shuffle": True, "fletcher32": True},
}


def chunked(array, options):
    """The options of a dataset, its chunks as long as the array in the other axes."""
    if not isinstance(options.get("chunks"), tuple):
        return options
    chunks = options["chunks"]
    if len(chunks) == 1:
        chunks = (*chunks, *array.shape[1:])
    return {**options, "chunks": (*chunks, *array.shape[len(chunks) :])[: array.ndim]}


def write(path, pieces=PIECES["contiguous"], arrays=None, **file_options):
    with h5py.File(path, "w", **file_options) as file:
        for name, array in (arrays or {"images": IMAGES, "labels": LABELS, "depth": DEPTH}).items():
            if isinstance(array, np.ndarray) and array.ndim > 1:
                file.create_dataset(name, data=array, **chunked(array, pieces))
            else:
                file[name] = array
    return str(path)


def write_lists(file, name, values, dtype=np.uint8):
    lists = file.create_dataset(name, (len(values),), h5py.vlen_dtype(dtype))
    for row, value in enumerate(values):
        lists[row] = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value


def expected(rows=range(11)):
    return [
        (str(i), {"image": IMAGES[i], "label": int(LABELS[i]), "depth": DEPTH[i].astype("<f4")})
        for i in rows
    ]


def message(path, **options):
    with pytest.raises(ValueError) as caught:
        len(Hdf5Storage(str(path), **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def fields(path, **options):
    storage = Hdf5Storage(str(path), **options)
    return [record.fields for record in storage.read(np.arange(len(storage)))]


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
    check_storage(
        lambda: Hdf5Storage(str(tmp_path)), expected(), start_methods=("fork", "forkserver")
    )
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
        assert storage.fields == ("image", "label", "depth")
        taken = storage.take(order, storage.fields)
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
    assert storage.fields == (), "lists have no shape, so there are no columns"
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
        start_methods=("spawn",),
    )


def write_groups(path, **options):
    with h5py.File(path, "w", **options) as file:
        for i in range(11):
            group = file.create_group(f"s{i:02d}")
            group["images"] = IMAGES[i, : i % 4 + 2]
            group["label"] = int(LABELS[i])
            depth = DEPTH[i]
            group.create_dataset("depth", data=depth, chunks=(4, 3), compression="gzip")
            group["boxes"] = np.full((i % 3, 4), i, np.float32)
            group["jpeg"] = np.void(FILES[i])
            group["text"], group["words"] = f"t{i} ü", [f"w{i}", ""]
            if i % 2:
                group["age"] = AGES[i]
    return str(path)


def test_a_group_per_sample(tmp_path):
    path = write_groups(tmp_path / "a.h5")
    wanted = []
    for i in range(11):
        found = {
            "image": IMAGES[i, : i % 4 + 2],
            "label": int(LABELS[i]),
            "boxes": np.full((i % 3, 4), i, np.float32),
            "depth": DEPTH[i].astype("<f4"),
            "jpeg": FILES[i],
            "text": f"t{i} ü",
            "words": [f"w{i}", ""],
        }
        wanted.append((f"s{i:02d}", found | ({"age": AGES[i]} if i % 2 else {})))
    check_storage(lambda: Hdf5Storage(path), wanted, start_methods=("fork", "spawn"))
    storage = Hdf5Storage(path)
    assert storage.fields == ()
    assert storage.index.column("height").tolist() == [i % 4 + 2 for i in range(11)]


def test_labels_of_groups_may_be_attributes(tmp_path):
    for value in (lambda i: int(LABELS[i]), lambda i: "abcd"[LABELS[i]]):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            for i in range(11):
                file.create_group(f"data/{i:02d}").attrs["label"] = value(i)
                file[f"data/{i:02d}/image"] = IMAGES[i]
        storage = Hdf5Storage(str(tmp_path / "a.h5/data"))
        assert storage.index.column("label").tolist() == LABELS.tolist()
    assert storage.index.class_names == ("a", "b", "c", "d")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        del file["data/04"].attrs["label"]
    assert "label of '04' is None" in message(tmp_path / "a.h5/data")


def test_fields_may_be_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["camera/rgb"], file["target"], file["other"] = IMAGES, LABELS, AGES[:3]
        file["keys"] = [f"k{i}" for i in range(11)]
    names = {"image": "camera/rgb", "label": "/target"}
    storage = Hdf5Storage(str(tmp_path / "a.h5"), fields=names)
    assert storage.fields == ("image", "label")
    assert storage.index.keys(np.array([3])) == ["k3"]
    assert np.array_equal(storage.read(np.array([3]))[0].fields["image"], IMAGES[3])
    assert "other has 3" in message(tmp_path / "a.h5")
    wrong = {"image": "camera/rgb", "label": "label"}
    assert "nothing is called 'label' there" in message(tmp_path / "a.h5", fields=wrong)
    write_groups(tmp_path / "g.h5")
    assert [set(f) for f in fields(tmp_path / "g.h5", fields={"image": "images"})] == [
        {"image"}
    ] * 11


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
        for name, count in (("train", 11), ("val", 3)):
            file[f"{name}/images"], file[f"{name}/labels"] = IMAGES[:count], LABELS[:count]
    for path in (tmp_path, tmp_path / "both.hdf5"):
        recipe = StorageRecipe(Hdf5Storage, {"path": str(path)})
        parts = [open_split(recipe, split=s, val_fraction=0.2) for s in ("train", "val")]
        assert [len(part) for part in parts] == [11, 3]
        assert parts[0].index.class_names == parts[1].index.class_names
    assert "train and val, which are parts" in message(tmp_path / "both.hdf5")


def test_a_file_that_is_written_anew_is_indexed_anew(tmp_path):
    path = write(tmp_path / "a.h5")
    assert len(Hdf5Storage(path)) == 11
    write(tmp_path / "a.h5", arrays={"images": IMAGES[:4], "labels": LABELS[:4]})
    storage = Hdf5Storage(path)
    assert len(storage) == 4 and storage.fields == ("image", "label")


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


def test_reading_needs_no_library(tmp_path):
    storage = Hdf5Storage(write(tmp_path / "a.h5", PIECES["shuffled"]))
    code = (
        "import pickle, sys, numpy as np; s = pickle.load(sys.stdin.buffer);"
        "s.read(np.arange(11)); print('h5py' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(storage), capture_output=True, check=True
    )
    assert done.stdout.strip() == b"False"


def test_damage_in_a_chunk_is_a_bad_record(tmp_path):
    for pieces, said in (
        ("gzip", "decompressed"), ("checked", "checksum"), ("all", "checksum")
    ):  # fmt: skip
        path = write(tmp_path / f"{pieces}.h5", PIECES[pieces])
        with h5py.File(path) as file:
            place = file["images"].id.get_chunk_info(1)
        content = bytearray((tmp_path / f"{pieces}.h5").read_bytes())
        content[place.byte_offset + 8 : place.byte_offset + 12] = b"\xff\0\xff\0"
        (tmp_path / f"{pieces}.h5").write_bytes(content)
        storage = Hdf5Storage(path)
        height = PIECES[pieces]["chunks"][0]
        for i, record in enumerate(storage.read(np.arange(11))):
            if height <= i < 2 * height:
                assert isinstance(record, BadRecord) and said in record.cause
                assert f"rows {height} to {2 * height - 1}" in record.cause
            else:
                assert np.array_equal(record.fields["image"], IMAGES[i])
        assert storage.take(np.arange(11), ("image",)) is None
        assert np.array_equal(storage.take(np.array([0, 10]), ("image",))["image"], IMAGES[[0, 10]])


def test_damage_in_the_heap_is_a_bad_record(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        write_lists(file, "image", FILES)
    content = (tmp_path / "a.h5").read_bytes()
    at = content.index(b"GCOL")
    for place in (at, at + 4, at + 16):
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        (tmp_path / "a.h5").write_bytes(damaged)
        storage = Hdf5Storage(str(tmp_path / "a.h5"))
        records = storage.read(np.arange(11))
        assert any(isinstance(record, BadRecord) for record in records)
        for i, record in enumerate(records):
            assert isinstance(record, BadRecord) or record.fields["image"] == FILES[i]


def test_a_file_cut_short(tmp_path):
    path = write(tmp_path / "a.h5", PIECES["gzip"])
    whole = (tmp_path / "a.h5").read_bytes()
    for length in (0, 7, 96, 500, len(whole) // 2, len(whole) - 1):
        (tmp_path / "a.h5").write_bytes(whole[:length])
        said = message(path)
        assert "damaged or no HDF5 file" in said or "written" in said, said
    (tmp_path / "a.h5").write_bytes(whole)
    storage = Hdf5Storage(path)
    len(storage)
    (tmp_path / "a.h5").write_bytes(whole[: len(whole) // 3])
    assert any(isinstance(record, BadRecord) for record in storage.read(np.arange(11)))


@pytest.mark.parametrize("kind", ["gzip", "contiguous", "lists", "groups"])
def test_flipped_bytes_end_in_a_line_or_a_bad_record(tmp_path, kind):
    path = tmp_path / "a.h5"
    if kind == "groups":
        write_groups(path)
    elif kind == "lists":
        with h5py.File(path, "w") as file:
            write_lists(file, "image", [f[:40] for f in FILES])
    else:
        write(path, PIECES[kind])
    whole = path.read_bytes()
    random = np.random.default_rng(3)
    for place in random.integers(0, len(whole), 4).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        try:
            storage = Hdf5Storage(str(path))
            records = storage.read(np.arange(len(storage)))
        except ValueError as error:
            assert "\n" not in str(error)
        else:
            assert len(records) <= 11 * 1000


def test_a_library_that_is_lost_is_ended(tmp_path, monkeypatch):
    path = write(tmp_path / "a.h5")
    lost = "import sys, time; sys.stdin.buffer.readline(); import signal; signal.alarm(1); "
    monkeypatch.setattr(hdf5_process, "_CODE", lost + "time.sleep(30)")
    monkeypatch.setattr(hdf5_process, "DEADLINE_S", 1)
    assert "the library was lost in it for 1 s" in message(path)
    monkeypatch.setattr(hdf5_process, "_CODE", "import os; os.kill(os.getpid(), 11)")
    assert "did not survive it (SIGSEGV)" in message(path)


def test_the_alarm_is_set_while_the_library_works(tmp_path):
    import signal

    from datasets.formats import hdf5_scan

    scan = hdf5_scan._Scan(open(tmp_path / "answers", "wb"), 100)
    try:
        scan.answer({"look": True, "path": write(tmp_path / "a.h5"), "group": "", "fields": None})
        assert 90 <= signal.alarm(0) <= 100
    finally:
        signal.alarm(0)


@pytest.mark.parametrize("mode", [{}, {"libver": "latest"}])
def test_a_file_that_is_being_written(tmp_path, mode):
    with h5py.File(tmp_path / "a.h5", "w", **mode) as file:
        file["images"] = IMAGES
        if mode:
            file.swmr_mode = True
        file.flush()
        assert "being written" in message(tmp_path / "a.h5")
    assert len(Hdf5Storage(str(tmp_path / "a.h5"))) == 11


def test_what_leads_out_of_the_file_is_refused(tmp_path):
    write(tmp_path / "other.h5")
    path = tmp_path / "a.h5"

    def said(make, **options):
        with h5py.File(path, "w") as file:
            file["labels"] = LABELS
            make(file)
        return message(path, **options)

    def external(file):
        file["images"] = h5py.ExternalLink("other.h5", "/images")

    def soft(file):
        file["images"] = h5py.SoftLink("/labels")

    def virtual(file):
        layout = h5py.VirtualLayout((11, 6, 5, 3), np.uint8)
        layout[:] = h5py.VirtualSource("other.h5", "images", (11, 6, 5, 3))
        file.create_virtual_dataset("images", layout)

    def raw(file):
        file.create_dataset("images", (11, 6, 5, 3), "u1", external=[(b"/etc/passwd", 0, 990)])

    def groups(file):
        del file["labels"]
        file["s0/image"] = IMAGES[0]
        file["s1/image"] = h5py.ExternalLink("other.h5", "/images")

    assert "'images' is an external link, which leads out of the file" in said(external)
    assert "external link" in said(external, fields={"image": "images"})
    assert "'images' is a soft link; name what it leads to" in said(soft)
    assert "lies outside the file (virtual" in said(virtual)
    assert "lies outside the file (external)" in said(raw)
    assert "'s1/image' is an external link" in said(groups)


def test_types_that_are_not_read(tmp_path):
    path = tmp_path / "a.h5"

    def said(**arrays):
        with h5py.File(path, "w") as file:
            file["images"] = IMAGES
            for name, make in arrays.items():
                make(file, name)
        return message(path)

    def data(value, **options):
        return lambda file, name: file.create_dataset(name, data=value, **options)

    pairs = np.zeros(11, [("a", "i4"), ("b", "f4")])
    assert "'pairs' holds elements of the type compound" in said(pairs=data(pairs))

    def references(file, name):
        file.create_dataset(name, data=[file["images"].ref] * 11, dtype=h5py.ref_dtype)

    assert "type reference" in said(points=references)
    assert "'times' holds elements of the type opaque" in said(
        times=data(np.zeros(11, "M8[s]").astype(h5py.opaque_dtype("M8[s]")))
    )
    assert "'none' is empty" in said(none=data(h5py.Empty("f4")))
    assert "one value" in said(count=data(11))
    assert "'key' would be" not in said(index=data(AGES)), "keys are known"
    assert "index would be a field 'index'" in said(index=data(AGES))
    assert "scaleoffset" in said(
        small=data(LABELS.astype("i4")[:, None], scaleoffset=4, chunks=(4, 1))
    )


def test_a_pickle_in_a_text_is_a_text(tmp_path):
    text = pickle.dumps(print, 0).decode()
    path = write(tmp_path / "a.h5", arrays={"data": [text] * 2, "labels": [0, 1]})
    with h5py.File(path, "r+") as file:
        file.attrs["class_names"] = [text, "b"]
    assert [each["data"] for each in fields(path)] == [text, text]
    assert Hdf5Storage(path).index.class_names == (text, "b")


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"labels": LABELS[:10]}, "image has 11 rows and label has 10"),
        ({"labels": LABELS.astype(float)}, "label is number float64 [11], expected integers"),
        ({"labels": LABELS.astype(int) - 1}, "label -1 in record 0"),
        ({"labels": LABELS.astype(int) << 40}, "is no class id"),
        ({"labels": LABELS[:, None]}, "label is number uint8 [11, 1]"),
        ({"images": IMAGES / 255}, "images are float64 [11, 6, 5, 3], expected uint8"),
        ({"images": IMAGES.transpose(0, 3, 1, 2)}, "put the channels last"),
        ({"images": IMAGES[..., 0]}, "give them an axis of channels"),
        ({"image": IMAGES}, "two datasets would be one field"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "have no rows"),
        ({"keys": ["a"] * 11}, "key 'a' stands twice, in records 0 and 1"),
        ({"keys": ["a"] * 3}, "keys has 3 rows and the fields have 11"),
        ({"keys": AGES}, "'keys' holds no keys"),
        ({"class_names": ["a", "b"]}, "label 3, but the data names 2 classes"),
        ({"a-b": AGES}, "a-b would be a field 'a-b'"),
    ],
)
def test_arrays_that_cannot_be_used(tmp_path, arrays, said):
    path = write(tmp_path / "a.h5", arrays={"images": IMAGES, "labels": LABELS} | arrays)
    assert said in message(path)


def test_files_that_are_not_there_or_do_not_fit(tmp_path):
    assert "nothing there" in message(tmp_path / "none.h5")
    assert "no file found" in message(tmp_path)
    (tmp_path / "a.h5").write_bytes(b"no HDF5 at all")
    assert "damaged or no HDF5 file" in message(tmp_path / "a.h5")
    write(tmp_path / "a.h5")
    assert "nothing is called 'x' there; there are: depth, images, labels" in message(
        tmp_path / "a.h5/x"
    )
    assert "expected a group" in message(tmp_path / "a.h5/images")
    write(tmp_path / "b.h5", arrays={"images": IMAGES})
    assert "b.h5: has the fields image, and a.h5 has image, label, depth" in message(tmp_path)
    write_groups(tmp_path / "b.h5")
    assert "some files hold arrays and others groups" in message(tmp_path)
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_group("empty")
    assert "no dataset in the groups" in message(tmp_path / "c.h5")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("images", (11, 6, 5, 3), "u1", chunks=(1, 6, 5, 3))[:4] = IMAGES[:4]
    assert "7 of 11 chunks of 'images' were never written" in message(tmp_path / "c.h5")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("images", (1 << 50, 6, 5, 3), "u1", chunks=(1, 6, 5, 3))
    assert "chunks, in a smaller file" in message(tmp_path / "c.h5")


def test_addresses_of_another_size_are_refused(tmp_path):
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_sizes(4, 4)
    path = tmp_path / "a.h5"
    with h5py.File(h5py.h5f.create(str(path).encode(), fcpl=creation)) as file:
        file["images"] = IMAGES
    assert "addresses have not 8 bytes" in message(path)


def test_the_checksum_is_that_of_the_library(tmp_path):
    for count in (1, 2, 359, 720, 721, 1 << 18, (1 << 18) + 3):
        for data in (rng.integers(0, 256, count, np.uint8), np.full(count, 255, np.uint8)):
            with h5py.File(tmp_path / "a.h5", "w") as file:
                chunk = file.create_dataset("a", data=data, chunks=(count,), fletcher32=True)
                _, stored = chunk.id.read_direct_chunk((0,))
            assert fletcher32(stored[:-4]) == int.from_bytes(stored[-4:], "little")


def test_without_the_library_the_message_says_what_to_install(tmp_path, monkeypatch):
    path = write(tmp_path / "a.h5")
    monkeypatch.setattr(hdf5_process.importlib.util, "find_spec", lambda name: None)
    assert "the package h5py is missing; run: pip install h5py" in message(path)


def test_texts_in_attributes_are_no_instructions(tmp_path):
    path = write(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file["images"].attrs["penstock"] = json.dumps({"holds": "nonsense"})
        file["depth"].attrs["penstock"] = "{"
    assert len(fields(path)) == 11
