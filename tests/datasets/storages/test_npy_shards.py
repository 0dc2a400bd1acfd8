"""Shards of arrays: what the contract asks, every layout, and files that are wrong."""

import itertools
import multiprocessing
import os
import pickle
import resource
import shutil
import struct
import zipfile

import numpy as np
import pytest

from datasets.sample import BadRecord
from datasets.splits import StorageRecipe, open_split
from datasets.storages.npy_shards import open_npy_shards
from tests.contracts.storage import check_storage, summary

rng = np.random.default_rng(0)
N, CUTS = 23, (0, 7, 8, 8, 20, 23)  # one shard of one row, one of none
IMAGES = rng.integers(0, 256, (N, 6, 5, 3), np.uint8)
LABELS = rng.integers(0, 4, N)
LABELS[0] = 3
DEPTH = rng.normal(size=(N, 6)).astype(np.float32)
ARRAYS = {"images": IMAGES, "labels": LABELS, "depth": DEPTH}


def parts(arrays=ARRAYS):
    for shard, (start, stop) in enumerate(itertools.pairwise(CUTS)):
        yield shard, {name: array[start:stop] for name, array in arrays.items()}


def write(folder, layout="{field}_{shard:03d}", arrays=ARRAYS):
    for shard, part in parts(arrays):
        for field, array in part.items():
            path = folder / f"{layout.format(field=field, shard=shard)}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, array)
    return folder


def write_npz(folder, save=np.savez):
    folder.mkdir(parents=True, exist_ok=True)
    for shard, part in parts():
        save(folder / f"{shard}.npz", **part)
    return folder


def expected(keys=None):
    return [
        (keys[i] if keys else str(i),
         {"image": IMAGES[i], "label": int(LABELS[i]), "depth": DEPTH[i]})
        for i in range(N)
    ]  # fmt: skip


def message(path, **options):
    with pytest.raises(ValueError) as caught:
        len(open_npy_shards(str(path), **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
        start_methods=("fork",),
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
    np.save(_made(tmp_path / "large") / "volume_0.npy", rng.normal(size=(3, 16, 16, 16)))
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

    check_storage(make, wanted, start_methods=("fork",))
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
        start_methods=("fork",),
    )  # fmt: skip
    storage = open_npy_shards(str(tmp_path / "files"), rows=False, labels=None)
    assert "label" not in storage.index.columns
    np.save(tmp_path / "files/dog/bad.npy", np.array([{}], object), allow_pickle=True)
    bad = storage.read(np.array([3]))[0]
    assert bad.key == "dog/bad.npy" and "holds Python objects (pickled)" in bad.cause


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_pickles_are_refused_and_never_loaded(tmp_path):
    trap = tmp_path / "trap"
    objects = np.array([Hostile(trap)], object)
    shards = tmp_path / "shards"
    shards.mkdir()
    np.save(shards / "x_0.npy", objects, allow_pickle=True)
    assert "x_0.npy holds Python objects (pickled), which are never loaded" in message(shards)
    (shards / "x_0.npy").write_bytes(pickle.dumps(Hostile(trap)))
    assert "x_0.npy is no .npy file, or a damaged one" in message(shards)
    (shards / "x_0.npy").unlink()
    np.savez(shards / "0.npz", x=objects)
    assert "x.npy holds Python objects (pickled)" in message(shards)
    assert not trap.exists()


def test_wrong_data(tmp_path):
    assert "nothing there" in message(tmp_path / "none")
    assert "no file found" in message(tmp_path)
    np.save(tmp_path / "images_0.npy", IMAGES)
    np.save(tmp_path / "labels_0.npy", LABELS[:4])
    assert "0: image has 23 rows and label has 4, expected the same number" in message(tmp_path)
    np.save(tmp_path / "labels_0.npy", LABELS)
    np.save(tmp_path / "images_1.npy", IMAGES)
    assert "0 has the field 'label' and 1 has not" in message(tmp_path)
    np.save(tmp_path / "labels_1.npy", LABELS - 5)
    assert "label -5" in message(tmp_path) or "label -" in message(tmp_path)
    np.save(tmp_path / "labels_1.npy", LABELS * 1.5)
    assert "expected integers" in message(tmp_path)
    np.save(tmp_path / "labels_1.npy", LABELS)
    np.save(tmp_path / "labels-1.npy", LABELS)
    assert "are both the field 'label' of one shard" in message(tmp_path)
    (tmp_path / "labels-1.npy").unlink()
    np.save(tmp_path / "images_1.npy", np.asfortranarray(IMAGES))
    assert "is in Fortran order" in message(tmp_path)
    np.save(tmp_path / "images_1.npy", IMAGES.transpose(0, 3, 1, 2).copy())
    assert "put the channels last" in message(tmp_path)
    np.save(tmp_path / "images_1.npy", np.int8(3))
    assert "holds one number" in message(tmp_path)
    np.save(tmp_path / "index_1.npy", LABELS)
    assert "would be a field 'index'" in message(tmp_path)


def test_files_cut_short_anywhere(tmp_path):
    folder = write(tmp_path / "shards", arrays={"x": DEPTH})
    path = folder / "x_003.npy"
    content = path.read_bytes()
    for size in (0, 1, 5, 6, 8, 9, 10, 64, 127, 128, 200, len(content) - 1):
        path.write_bytes(content[:size])
        text = message(folder)
        assert "damaged" in text or "cut short" in text
    folder = write_npz(tmp_path / "npz")
    path = folder / "3.npz"
    content = path.read_bytes()
    for size in (0, 3, 30, 100, len(content) // 2, len(content) - 22, len(content) - 1):
        path.write_bytes(content[:size])
        assert "damaged or no ZIP archive" in message(folder)


def test_a_file_cut_while_it_is_open_spoils_its_samples_alone(folder):
    storage = open_npy_shards(str(folder))
    assert storage.take(np.arange(N), {"image"}) is not None
    os.truncate(folder / "images_003.npy", 200)
    for one in (storage, pickle.loads(pickle.dumps(storage))):
        records = one.read(np.arange(N))
        bad = [i for i, record in enumerate(records) if isinstance(record, BadRecord)]
        assert bad == list(range(8, 20)) and "images_003.npy" in records[8].cause
        assert one.take(np.arange(N), {"image"}) is None
        assert one.take(np.arange(7), {"image"}) is not None
    os.unlink(folder / "images_003.npy")
    bad = pickle.loads(pickle.dumps(storage)).read(np.array([8]))[0]
    assert "No such file" in bad.cause


def test_headers_that_ask_for_gigabytes(tmp_path):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (%s,), }"
    for shape in (b"99999999999", b"9" * 400, b"1 << 60", b"-4"):
        text = header % shape
        text += b" " * (-(len(text) + 11) % 64) + b"\n"
        (tmp_path / "x_0.npy").write_bytes(b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text)
        text = message(tmp_path)
        assert "cut short" in text or "damaged" in text
    folder = tmp_path / "npz"
    np.savez_compressed(_made(folder) / "0.npz", x=np.zeros(10_000_000))
    content = bytearray((folder / "0.npz").read_bytes())
    at = content.index(b"PK\x01\x02")
    struct.pack_into("<I", content, at + 24, 0xFFFF_FFF0)
    (folder / "0.npz").write_bytes(content)
    bad = open_npy_shards(str(folder)).read(np.array([0]))[0]
    assert "cannot hold" in bad.cause


def _made(folder):
    folder.mkdir(exist_ok=True)
    return folder


def test_hostile_member_names(tmp_path):
    for name, text in (("../x.npy", "leads elsewhere"), ("a/x.npy", "would be a field 'a/x'"),
                       ("x;y.npy", "would be a field")):  # fmt: skip
        with zipfile.ZipFile(tmp_path / "0.npz", "w") as archive, archive.open(name, "w") as file:
            np.save(file, LABELS)
        assert text in message(tmp_path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_flipped_bytes_are_an_error_or_bad_records(tmp_path, save):
    folder = write_npz(tmp_path / "shards", save)
    path = folder / "3.npz"
    content = path.read_bytes()
    wanted = summary(open_npy_shards(str(folder)).read(np.arange(N)))
    noticed = 0
    for at in rng.integers(0, len(content), 60).tolist():
        flipped = bytearray(content)
        flipped[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        try:
            found = summary(open_npy_shards(str(folder), checksums=True).read(np.arange(N)))
        except (ValueError, IndexError) as error:
            assert "\n" not in str(error)
            noticed += 1
            continue
        noticed += found != wanted
        assert all(f == w or f[2] is None for f, w in zip(found, wanted, strict=True))
    assert noticed > 40


def test_many_files_do_not_exhaust_descriptors(tmp_path):
    for shard in range(400):
        np.save(tmp_path / f"x_{shard}.npy", np.full((2, 4), shard))
    storage = open_npy_shards(str(tmp_path))
    len(storage)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_read_with_few_descriptors, args=(storage,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def _read_with_few_descriptors(storage):
    most = len(os.listdir("/proc/self/fd")) + 100  # the test program has some open itself
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    order = np.random.default_rng(0).permutation(800)
    records = storage.read(order)
    assert [int(r.fields["x"][0]) for r in records] == (order // 2).tolist()
    few = [storage.read(order[i : i + 8]) for i in range(0, 800, 8)]
    assert few
    assert np.array_equal(storage.take(order, {"x"})["x"][:, 0], order // 2)
