"""Shards of arrays and tensors: the contract, every layout, and damaged or hostile files."""

import functools
import itertools
import multiprocessing
import os
import pickle
import resource
import shutil
import zipfile

import numpy as np
import pytest
import torch

from penstock.core.sample import BadRecord
from penstock.datasets.storages.arrays import NpyShards, PtShards
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
    return NpyShards


def npz(folder, save=np.savez):
    folder.mkdir(parents=True, exist_ok=True)
    for shard, part in parts():
        save(folder / f"{shard}.npz", **part)
    return NpyShards


def dicts(folder):
    for shard, part in parts({**ARRAYS, "name": NAMES}):
        name = part.pop("name")
        save(folder / f"{shard}.pt", {k: torch.tensor(v) for k, v in part.items()} | {"name": name})
    return PtShards


def tensors(folder):
    for shard, part in parts():
        for field in ("images", "labels"):
            save(folder / f"{field}_{shard}.pt", torch.tensor(part[field]))
        rows = [torch.tensor(row) for row in part["depth"]]
        save(folder / f"depth_{shard}.pt", rows or torch.tensor(part["depth"]))
    return PtShards


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


refusal = functools.partial(message, NpyShards)
torch_refusal = functools.partial(message, PtShards)
compressed = functools.partial(npz, save=np.savez_compressed)
WRITERS = [npy, npz, compressed, dicts, tensors]


@pytest.mark.parametrize("write", WRITERS)
def test_it_is_a_storage(tmp_path, write):
    folder = tmp_path / "shards"
    opened = write(folder)

    def copy():
        shutil.copytree(folder, tmp_path / "copy", dirs_exist_ok=True)
        return opened(str(tmp_path / "copy"))

    make = functools.partial(opened, str(folder))
    processes = ("forked", "new") if write in (npy, dicts) else ("forked",)
    wanted = expected(names=write is dicts)
    check_storage(make, wanted, make_copy=copy, processes=processes)
    assert make().index.class_names == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    "layout",
    ["{field}-{shard:05d}-of-00005", "{field}{shard}", "{field}/{shard}", "{shard}/{field}",
     "{field}.{shard:02d}"],
)  # fmt: skip
def test_layouts(tmp_path, layout):
    for i, record in enumerate(npy(tmp_path, layout)(str(tmp_path)).read(np.arange(N))):
        assert (record.key, record.fields["label"]) == (str(i), LABELS[i])
        assert np.array_equal(record.fields["image"], IMAGES[i])
        assert np.array_equal(record.fields["depth"], DEPTH[i])


@pytest.mark.parametrize("write", [npy, npz, compressed])
@pytest.mark.parametrize("indices", [[22, 0, 0, 7, 19], [3, 1, 6], [0, 7, 20], []])
def test_columns_are_what_reading_gives(tmp_path, write, indices):
    storage, indices = write(tmp_path)(str(tmp_path)), np.array(indices, np.int64)
    assert storage.column_fields == ("image", "label", "depth")
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


def test_keys_and_texts(tmp_path):
    texts = ["", "Straße", "x" * 9, "ab"]
    for shard, rows in enumerate((slice(0, 3), slice(3, 4))):
        np.save(tmp_path / f"keys_{shard}.npy", np.array([f"k{t}" for t in texts[rows]]))
        np.save(tmp_path / f"name_{shard}.npy", np.array([f"n{t}" for t in texts[rows]]))
    make = functools.partial(NpyShards, str(tmp_path))
    check_storage(make, [(f"k{t}", {"name": f"n{t}"}) for t in texts], processes=("forked",))
    assert make().column_fields == ()  # texts are read row by row
    np.save(tmp_path / "keys_1.npy", np.array(["k"]))
    assert "key 'k' stands twice" in refusal(tmp_path)


def test_many_files_do_not_exhaust_descriptors(tmp_path):
    for shard in range(400):
        np.save(tmp_path / f"x_{shard}.npy", np.full((2, 4), shard))
    storage = NpyShards(str(tmp_path))
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
    assert [storage.read(order[i : i + 8]) for i in range(0, 800, 8)]
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
    assert "holds Python objects (pickled)" in refusal(shards)
    (shards / "x_0.npy").unlink()
    np.savez(shards / "0.npz", x=objects)
    assert "x.npy holds Python objects (pickled)" in refusal(shards)
    path = save(tmp_path / "pt/x_0.pt", Hostile(trap), _use_new_zipfile_serialization=False)
    assert "x_0.pt: is damaged, or torch before 1.6 wrote it" in torch_refusal(tmp_path / "pt")
    for value in ([torch.ones(2), Hostile(trap)], torch.nn.Linear(2, 2), np.ones(3)):
        save(path, value)
        assert "holds other things than tensors" in torch_refusal(tmp_path / "pt")
    assert not trap.exists()


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ({"labels_1": LABELS[:4]}, "1: image has 23 rows and label has 4, expected the same"),
        ({}, "only one of the shards 0 and 1 has the field 'label'"),
        ({"labels_1": LABELS, "labels-1": LABELS}, "are both the field 'label' of one shard"),
        ({"index_1": LABELS}, "would be a field 'index'"),
    ],
)  # fmt: skip
def test_shards_that_do_not_fit_together(tmp_path, added, said):
    for name, array in {
        "images_0": IMAGES, "labels_0": LABELS, "images_1": IMAGES, **added
    }.items():  # fmt: skip
        np.save(tmp_path / f"{name}.npy", array)
    assert said in refusal(tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.ones(3, 3, dtype=torch.bfloat16), "it is a torch.bfloat16 tensor"),
        (torch.eye(3).to_sparse(), "it is a torch.float32 tensor"),
        ([torch.ones(2), torch.ones(3)], "it is a list"),
        ({}, "the arrays are empty"),
        ({"a": torch.ones(2), "b": 3}, "'b' is a int that cannot"),
        ({"image": torch.ones(0, 4, 4, 3)}, "the arrays are empty"),
    ],
)
def test_what_no_array_is(tmp_path, value, text):
    save(tmp_path / "x_0.pt", value)
    assert text in torch_refusal(tmp_path)


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
        assert any(said in text for said in ("damaged", "cut short", "empty file"))


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


@pytest.mark.parametrize("damaged", [(compressed, "3.npz"), (dicts, "3.pt")], ids=["npz", "pt"])
def test_flipped_bytes_are_an_error_or_bad_records(tmp_path, damaged):
    opened, path = damaged[0](tmp_path), tmp_path / damaged[1]
    wanted = summary(opened(str(tmp_path)).read(np.arange(N)))
    noticed = 0
    for _ in flipped(path, rng.integers(0, path.stat().st_size, 60), rng):
        found = unless_refused(lambda: summary(opened(str(tmp_path)).read(np.arange(N))))
        noticed += found != wanted
        if found is not None and opened is NpyShards:  # tensors lack checksums
            assert all(f == w or f[2] is None for f, w in zip(found, wanted, strict=True))
    assert noticed > 10


@pytest.mark.parametrize("field", ["keys", "labels", "names"])
def test_damaged_texts(tmp_path, field):
    texts = np.array(["a", "b"])
    texts.view(np.uint32)[1] = 0x7FFFFFFF
    np.save(tmp_path / "depth_0.npy", DEPTH[:2])
    np.save(tmp_path / f"{field}_0.npy", texts)
    storage = NpyShards(str(tmp_path))
    if field == "names":
        assert [isinstance(r, BadRecord) for r in storage.read(np.arange(2))] == [False, True]
    else:
        with pytest.raises(ValueError, match=f"{field[:-1]} has a text"):
            len(storage)
