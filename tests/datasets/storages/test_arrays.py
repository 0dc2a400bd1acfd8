"""Shards of arrays and tensors: the contract, every layout, and damaged or hostile files."""

import functools
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
import torch

from penstock.core.sample import BadRecord
from penstock.datasets.records.splits import StorageRecipe, open_split
from penstock.datasets.storages.npy_shards import open_npy_shards
from penstock.datasets.storages.pt_shards import open_pt_shards
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import check_storage, summary

rng = np.random.default_rng(0)
N, CUTS = 23, (0, 7, 8, 8, 20, 23)  # one shard of one row, one of none
IMAGES = rng.integers(0, 256, (N, 6, 5, 3), np.uint8)
LABELS = rng.integers(0, 4, N)
LABELS[0] = 3
DEPTH = rng.normal(size=(N, 6)).astype(np.float32)
NAMES = [f"name {i}" for i in range(N)]
ARRAYS = {"images": IMAGES, "labels": LABELS, "depth": DEPTH}


def parts(arrays=ARRAYS):
    for shard, (start, stop) in enumerate(itertools.pairwise(CUTS)):
        yield shard, {name: array[start:stop] for name, array in arrays.items()}


def npy(folder, layout="{field}_{shard:03d}"):
    for shard, part in parts():
        for field, array in part.items():
            path = folder / f"{layout.format(field=field, shard=shard)}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, array)
    return open_npy_shards


def npz(folder, save=np.savez):
    folder.mkdir(parents=True, exist_ok=True)
    for shard, part in parts():
        save(folder / f"{shard}.npz", **part)
    return open_npy_shards


def dicts(folder):
    for shard, part in parts({**ARRAYS, "name": NAMES}):
        name = part.pop("name")
        save(folder / f"{shard}.pt", {k: torch.tensor(v) for k, v in part.items()} | {"name": name})
    return open_pt_shards


def tensors(folder):
    for shard, part in parts():
        for field in ("images", "labels"):
            save(folder / f"{field}_{shard}.pt", torch.tensor(part[field]))
        rows = [torch.tensor(row) for row in part["depth"]]
        save(folder / f"depth_{shard}.pt", rows or torch.tensor(part["depth"]))
    return open_pt_shards


def samples(folder):
    for shard, part in parts({**ARRAYS, "name": NAMES}):
        if part["name"]:
            save(folder / f"{shard}.pt", [
                {"image": torch.tensor(i), "label": int(n), "depth": torch.tensor(d), "name": name}
                for i, n, d, name in zip(*part.values(), strict=True)
            ])  # fmt: skip
    return open_pt_shards


def save(path, value, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path, **options)
    return path


def expected(*, names=False):
    return [
        (str(i), {"image": IMAGES[i], "label": int(LABELS[i]), "depth": DEPTH[i]}
         | ({"name": NAMES[i]} if names else {}))
        for i in range(N)
    ]  # fmt: skip


def message(open_shards, path, **options):
    with pytest.raises(ValueError) as caught:
        len(open_shards(str(path), **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


refusal = functools.partial(message, open_npy_shards)
torch_refusal = functools.partial(message, open_pt_shards)
compressed = functools.partial(npz, save=np.savez_compressed)
WRITERS = [npy, npz, compressed, dicts, tensors, samples]


@pytest.mark.parametrize("write", WRITERS)
def test_it_is_a_storage(tmp_path, write):
    folder = tmp_path / "shards"
    opened = write(folder)

    def copy():
        shutil.copytree(folder, tmp_path / "copy", dirs_exist_ok=True)
        return opened(str(tmp_path / "copy"))

    make = functools.partial(opened, str(folder), checksums=write is not npy)
    processes = ("forked", "new") if write in (npy, dicts) else ("forked",)
    wanted = expected(names=write in (dicts, samples))
    check_storage(make, wanted, make_copy=copy, processes=processes)
    assert make().index.class_names == ("0", "1", "2", "3")
    if write is npy:
        assert make().index.column("height").tolist() == [6] * N
        assert make().index.column("width").tolist() == [5] * N


@pytest.mark.parametrize(
    "layout",
    ["{field}-{shard:05d}-of-00005", "{field}{shard}", "{field}/{shard}", "{shard}/{field}",
     "{field}.{shard:02d}"],
)  # fmt: skip
def test_layouts(tmp_path, layout):
    storage = npy(tmp_path, layout)(str(tmp_path))
    records = storage.read(np.arange(N))
    assert [r.key for r in records] == [str(i) for i in range(N)]
    for i, record in enumerate(records):
        assert np.array_equal(record.fields["image"], IMAGES[i])
        assert record.fields["label"] == LABELS[i]
        assert np.array_equal(record.fields["depth"], DEPTH[i])


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


def test_large_rows_are_views_and_none_can_be_written(tmp_path):
    (tmp_path / "large").mkdir()
    np.save(tmp_path / "large/volume_0.npy", rng.normal(size=(3, 16, 16, 16)))
    small = npy(tmp_path / "small")(str(tmp_path / "small"))
    large = open_npy_shards(str(tmp_path / "large"))
    for storage, name, is_view in ((large, "volume", True), (small, "image", False)):
        first, again = (storage.read(np.array([2]))[0].fields[name] for _ in range(2))
        assert np.shares_memory(first, again) == is_view and not first.flags.writeable
        assert type(first) is np.ndarray


@pytest.mark.parametrize("write", [npy, npz, compressed, dicts])
@pytest.mark.parametrize("indices", [[22, 0, 0, 7, 19], [3, 1, 6], [0, 7, 20], []])
def test_columns_are_what_reading_gives(tmp_path, write, indices):
    storage, indices = write(tmp_path)(str(tmp_path)), np.array(indices, np.int64)
    assert storage.column_fields == (() if write is dicts else ("image", "label", "depth"))
    if write is dicts:  # lists of texts are no columns
        return
    taken, records = storage.take(indices, storage.column_fields), storage.read(indices)
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
        storage.take(np.array([0, N]), storage.column_fields)


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
    assert storage.column_fields == ()
    assert [r.fields["wave"].shape for r in storage.read(np.arange(4))] == [(10,)] * 2 + [(12,)] * 2


def test_parts_and_class_names(tmp_path):
    folder = tmp_path / "shards"
    npy(folder)
    (folder / "classes.txt").write_text("ant\nbee\ncat\ndog\n")
    assert open_npy_shards(str(folder)).index.class_names == ("ant", "bee", "cat", "dog")
    recipe = StorageRecipe(open_npy_shards, {"path": str(folder)})
    split = {s: open_split(recipe, split=s, val_fraction=0.4) for s in ("train", "val")}
    keys = [key for part in split.values() for key in part.index.keys(np.arange(len(part)))]
    assert sorted(keys, key=int) == [str(i) for i in range(N)]
    npy(tmp_path / "both/train")
    npy(tmp_path / "both/val")
    recipe = StorageRecipe(open_npy_shards, {"path": str(tmp_path / "both")})
    assert len(open_split(recipe, split="val", val_fraction=0.4)) == N
    (folder / "classes.txt").write_text("ant\nbee\n")
    assert "label 3 in row 0, expected 0 to 1: there are 2 classes" in refusal(folder)


def test_keys_and_texts(tmp_path):
    texts = ["", "Straße", "x" * 9, "ab"]
    for shard, rows in enumerate((slice(0, 3), slice(3, 4))):
        np.save(tmp_path / f"keys_{shard}.npy", np.array([f"k{t}" for t in texts[rows]]))
        np.save(tmp_path / f"name_{shard}.npy", np.array([f"n{t}" for t in texts[rows]]))
    make = functools.partial(open_npy_shards, str(tmp_path))
    check_storage(make, [(f"k{t}", {"name": f"n{t}"}) for t in texts], processes=("forked",))
    assert make().column_fields == ()
    np.save(tmp_path / "keys_1.npy", np.array(["k"]))
    assert "the key 'k' stands twice" in refusal(tmp_path)


def test_tensors_that_share_one_storage_and_odd_strides(tmp_path):
    base = torch.arange(60.0).reshape(5, 3, 4)
    save(tmp_path / "0.pt", {"a": base[:, 0], "b": base.transpose(1, 2), "c": base[:, :1, ::2],
                             "same": torch.ones(1, 2).expand(5, 2), "turned": base})  # fmt: skip
    storage = open_pt_shards(str(tmp_path))
    assert storage.column_fields == ("a", "b", "c", "same", "turned")
    taken = storage.take(np.array([4, 1]), storage.column_fields)
    for i, record in zip((4, 1), storage.read(np.array([4, 1])), strict=True):
        assert np.array_equal(record.fields["b"], base[i].T.numpy())
        assert np.array_equal(record.fields["c"], base[i, :1, ::2].numpy())
        assert record.fields["same"].tolist() == [1, 1]
        assert not record.fields["turned"].flags.writeable
    assert np.array_equal(taken["b"], base[[4, 1]].transpose(1, 2).numpy())


def test_files_of_one_sample_each(tmp_path):
    wanted = []
    for name, at in (("cat", 1), ("dog", 0), ("cat", 0)):
        path = tmp_path / "npy" / name / f"{at}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        array = rng.normal(size=(2 + at, 3))
        np.save(path, array)
        wanted.append((f"{name}/{at}.npy", {"array": array, "label": int(name == "dog")}))
    np.savez_compressed(tmp_path / "npy/dog/z.npz", volume=DEPTH, age=3)
    wanted.append(("dog/z.npz", {"volume": DEPTH, "age": 3, "label": 1}))
    (tmp_path / "npy/dog/bad.npy").write_bytes(b"\x93NUMPY\x01\0")
    wanted.append(("dog/bad.npy", None))
    opened = functools.partial(open_npy_shards, str(tmp_path / "npy"), rows=False)
    check_storage(opened, sorted(wanted), processes=("forked",))
    assert "label" not in opened(labels=None).index.columns
    np.save(tmp_path / "npy/dog/bad.npy", np.array([{}], object), allow_pickle=True)
    bad = opened(labels=None).read(np.array([3]))[0]
    assert bad.key == "dog/bad.npy" and "holds Python objects (pickled)" in bad.cause

    save(tmp_path / "pt/cat/0.pt", torch.ones(2, 3))
    save(tmp_path / "pt/dog/1.pt", {"wave": torch.arange(5), "rate": 16_000, "text": "wuff"})
    (tmp_path / "pt/dog/2.pt").write_bytes(b"PK")
    wanted = [
        ("cat/0.pt", {"array": np.ones((2, 3), np.float32), "label": 0}),
        ("dog/1.pt", {"wave": np.arange(5), "rate": 16_000, "text": "wuff", "label": 1}),
        ("dog/2.pt", None),
    ]
    opened = functools.partial(open_pt_shards, str(tmp_path / "pt"), rows=False)
    check_storage(opened, wanted, processes=("forked",))


def test_labels_in_the_files(tmp_path):
    for i, label in enumerate((2, 0, torch.tensor(1))):
        save(tmp_path / f"{i}.pt", {"x": torch.full((2,), i), "label": label})
    storage = open_pt_shards(str(tmp_path), rows=False, labels="file")
    assert storage.index.column("label").tolist() == [2, 0, 1]
    assert [r.fields["label"] for r in storage.read(np.arange(3))] == [2, 0, 1]
    assert storage.index.class_names == ("0", "1", "2")
    plain = open_pt_shards(str(tmp_path), rows=False, labels=None)
    assert plain.read(np.array([0]))[0].fields.keys() == {"x"}
    for i, label in enumerate(("dog", "ant", "dog")):
        save(tmp_path / f"{i}.pt", {"x": torch.zeros(i + 2), "label": label})
    storage = open_pt_shards(str(tmp_path), rows=False, labels="file")
    assert storage.index.class_names == ("ant", "dog")
    save(tmp_path / "1.pt", {"x": torch.zeros(300)})
    assert "1.pt: its label is a NoneType" in torch_refusal(tmp_path, rows=False, labels="file")


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


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_pickles_are_refused_and_never_loaded(tmp_path):
    trap, shards = tmp_path / "trap", tmp_path / "npy"
    shards.mkdir()
    objects = np.array([Hostile(trap)], object)
    np.save(shards / "x_0.npy", objects, allow_pickle=True)
    assert "x_0.npy holds Python objects (pickled), which are never loaded" in refusal(shards)
    (shards / "x_0.npy").write_bytes(pickle.dumps(Hostile(trap)))
    assert "x_0.npy is no .npy file, or a damaged one" in refusal(shards)
    (shards / "x_0.npy").unlink()
    np.savez(shards / "0.npz", x=objects)
    assert "x.npy holds Python objects (pickled)" in refusal(shards)
    folder = tmp_path / "pt"
    path = save(folder / "x_0.pt", [torch.ones(2), Hostile(trap)])
    assert "x_0.pt holds other things than tensors" in torch_refusal(folder)
    save(path, Hostile(trap), _use_new_zipfile_serialization=False)
    assert "one of its old format, which cannot be mapped" in torch_refusal(folder)
    path.write_bytes(pickle.dumps(Hostile(trap)))
    assert "no file of torch.save" in torch_refusal(folder)
    for value in (torch.nn.Linear(2, 2), np.ones(3)):
        save(path, value)
        assert "holds other things than tensors" in torch_refusal(folder)
    with pytest.warns(DeprecationWarning):
        torch.jit.script(torch.nn.Linear(2, 2)).save(str(path))
    assert "is a program (TorchScript), which is never run" in torch_refusal(folder)
    save(path, {"x": Hostile(trap)})
    [bad] = open_pt_shards(str(folder), rows=False, labels=None).read(np.array([0]))
    assert "holds other things than tensors" in bad.cause
    assert not trap.exists()


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ({"labels_1": LABELS[:4]}, "1: image has 23 rows and label has 4, expected the same"),
        ({}, "0 has the field 'label' and 1 has not"),
        ({"labels_1": LABELS - 5}, "label -"),
        ({"labels_1": LABELS * 1.5}, "expected integers"),
        ({"labels_1": LABELS, "labels-1": LABELS}, "are both the field 'label' of one shard"),
        ({"images_1": np.asfortranarray(IMAGES)}, "is in Fortran order"),
        ({"images_1": IMAGES.transpose(0, 3, 1, 2).copy(), "labels_1": LABELS},
         "put the channels last"),
        ({"images_1": np.int8(3)}, "holds one number"),
        ({"index_1": LABELS}, "would be a field 'index'"),
    ],
)  # fmt: skip
def test_shards_that_do_not_fit_together(tmp_path, added, said):
    for name, array in {
        "images_0": IMAGES, "labels_0": LABELS, "images_1": IMAGES, **added
    }.items():  # fmt: skip
        np.save(tmp_path / f"{name}.npy", array)
    assert said in refusal(tmp_path)


def test_no_files(tmp_path):
    assert "nothing there" in refusal(tmp_path / "none")
    assert "no file found" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.ones(3, 3, dtype=torch.bfloat16), "is a strided tensor of bfloat16"),
        (torch.eye(3).to_sparse(), "is a sparse_coo tensor of float32"),
        (torch.ones(3, dtype=torch.complex64).conj(), "strided tensor of complex64"),
        (torch.tensor(3), "holds one number"),
        ((torch.ones(3), torch.ones(3)), "holds a tuple, expected a tensor [N, ...], a dict"),
        ({}, "holds no tensor"),
        ([], "holds a list, expected"),
        ({"images": IMAGES.tolist(), "index": [1]}, "would be a field 'index'"),
        ({"a": torch.ones(2), "b": torch.ones(3)}, "a has 2 rows and b has 3"),
        ({"a": torch.ones(2), "b": 3}, "'b' is a int, expected a tensor or a list"),
        ({"label": torch.ones(2)}, "expected integers"),
        ({"image": torch.ones(2, 3, 5, 5, dtype=torch.uint8)}, "put the channels last"),
        ({"image": torch.ones(0, 4, 4, 3)}, "the arrays are empty"),
    ],
)
def test_what_no_array_is(tmp_path, value, text):
    save(tmp_path / "x_0.pt", value)
    assert text in torch_refusal(tmp_path)


def test_a_list_with_one_that_is_no_array_spoils_that_sample(tmp_path):
    save(tmp_path / "x_0.pt", [torch.ones(2), torch.ones(2, dtype=torch.bfloat16)])
    good, bad = open_pt_shards(str(tmp_path)).read(np.arange(2))
    assert good.fields["x"].tolist() == [1, 1]
    assert isinstance(bad, BadRecord) and "row 1 is a strided tensor of bfloat16" in bad.cause


@pytest.mark.parametrize(
    ("write", "name"), [(npy, "depth_003.npy"), (npz, "3.npz"), (tensors, "depth_3.pt")]
)
def test_files_cut_short_anywhere(tmp_path, write, name):
    opened = write(tmp_path)
    path = tmp_path / name
    content = path.read_bytes()
    sizes = {0, 1, 2, 5, 6, 8, 9, 10, 64, 127, 128, 200, len(content) // 2, len(content) - 1}
    if write is not npy:
        with zipfile.ZipFile(path) as archive:
            places = [info.header_offset for info in archive.infolist()]
        sizes |= {*places, *(p + 30 for p in places), len(content) - 22}
    for size in sorted(sizes):
        path.write_bytes(content[:size])
        text = message(opened, tmp_path)
        assert "damaged" in text or "cut short" in text


@pytest.mark.parametrize(
    ("write", "name"), [(npy, "images_003.npy"), (npz, "3.npz"), (dicts, "3.pt")]
)
def test_a_file_cut_while_it_is_open_spoils_its_samples_alone(tmp_path, write, name):
    storage = write(tmp_path)(str(tmp_path))
    assert not any(isinstance(r, BadRecord) for r in storage.read(np.arange(N)))
    os.truncate(tmp_path / name, 200)
    for one in (storage, pickle.loads(pickle.dumps(storage))):
        records = one.read(np.arange(N))
        bad = [i for i, record in enumerate(records) if isinstance(record, BadRecord)]
        assert bad == list(range(8, 20)) and name in records[8].cause
        if write is not dicts:
            assert one.take(np.arange(N), {"image"}) is None
            assert one.take(np.arange(7), {"image"}) is not None
    os.unlink(tmp_path / name)
    bad = pickle.loads(pickle.dumps(storage)).read(np.array([8]))[0]
    assert "No such file" in bad.cause


def test_a_file_that_is_written_anew_is_noticed(tmp_path):
    storage = tensors(tmp_path)(str(tmp_path))
    len(storage)
    save(tmp_path / "images_3.pt", torch.tensor(IMAGES[8:12]))
    assert "was written anew while it was in use" in storage.read(np.array([9]))[0].cause


def test_headers_that_ask_for_gigabytes(tmp_path):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (%s,), }"
    for shape in (b"99999999999", b"9" * 400, b"1 << 60", b"-4"):
        text = header % shape
        text += b" " * (-(len(text) + 11) % 64) + b"\n"
        (tmp_path / "x_0.npy").write_bytes(b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text)
        said = refusal(tmp_path)
        assert "cut short" in said or "damaged" in said
    (tmp_path / "npz").mkdir()
    np.savez_compressed(tmp_path / "npz/0.npz", x=np.zeros(10_000_000))
    content = bytearray((tmp_path / "npz/0.npz").read_bytes())
    struct.pack_into("<I", content, content.index(b"PK\x01\x02") + 24, 0xFFFF_FFF0)
    (tmp_path / "npz/0.npz").write_bytes(content)
    bad = open_npy_shards(str(tmp_path / "npz")).read(np.array([0]))[0]
    assert "should have 4,294,967,280" in bad.cause


def test_hostile_member_names(tmp_path):
    for name, text in (("../x.npy", "leads elsewhere"), ("a/x.npy", "would be a field 'a/x'"),
                       ("x;y.npy", "would be a field")):  # fmt: skip
        with zipfile.ZipFile(tmp_path / "0.npz", "w") as archive, archive.open(name, "w") as file:
            np.save(file, LABELS)
        assert text in refusal(tmp_path)


@pytest.mark.parametrize(
    ("write", "name", "least"), [(npz, "3.npz", 40), (compressed, "3.npz", 40), (dicts, "3.pt", 25)]
)
def test_flipped_bytes_are_an_error_or_bad_records(tmp_path, write, name, least):
    opened, path = write(tmp_path), tmp_path / name
    wanted = summary(opened(str(tmp_path)).read(np.arange(N)))
    noticed = 0
    for _ in flipped(path, rng.integers(0, path.stat().st_size, 60), rng):
        found = unless_refused(
            lambda: summary(opened(str(tmp_path), checksums=True).read(np.arange(N)))
        )
        noticed += found != wanted
        if found is not None:
            assert all(f == w or f[2] is None for f, w in zip(found, wanted, strict=True))
    assert noticed > least
