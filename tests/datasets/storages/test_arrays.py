"""Arrays and tensors in files: every layout, arrays that do not fit, and hostile files."""

import functools
import itertools
import os
import pickle

import numpy as np
import pytest
import torch

from penstock.core.sample import BadRecord
from penstock.datasets.storages.arrays import MemmapStorage, NpyShards, PtShards
from tests.contracts.storage import check_storage
from tests.datasets.storages.checks import check_with_copy, refusal

rng = np.random.default_rng(0)
N, CUTS = 23, (0, 7, 8, 8, 20, 23)  # one shard of one row, one of none
IMAGES = rng.integers(0, 256, (N, 6, 5, 3), np.uint8)
LABELS = np.append(3, rng.integers(0, 4, N - 1))
DEPTH = rng.normal(size=(N, 6)).astype(np.float32)
AGES = rng.normal(size=N)
NAMES = [f"name {i}" for i in range(N)]
ARRAYS = {"images": IMAGES, "labels": LABELS, "depth": DEPTH, "age": AGES}


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
        for field in ("images", "labels", "age"):
            save(folder / f"{field}_{shard}.pt", torch.tensor(part[field]))
        rows = [torch.tensor(row) for row in part["depth"]]
        save(folder / f"depth_{shard}.pt", rows or torch.tensor(part["depth"]))
    return PtShards


def memmap(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in ARRAYS.items():
        np.save(folder / f"{name}.npy", array)
    return MemmapStorage


def save(path, value, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path, **options)
    return path


def expected(*, names=False):
    return [
        (str(i), {"image": IMAGES[i], "label": int(LABELS[i]), "age": float(AGES[i]),
                  "depth": DEPTH[i]} | ({"name": NAMES[i]} if names else {}))
        for i in range(N)
    ]  # fmt: skip


compressed = functools.partial(npz, save=np.savez_compressed)


@pytest.mark.parametrize("write", [npy, npz, compressed, dicts, tensors, memmap])
def test_it_is_a_storage(tmp_path, write):
    opened = write(tmp_path)
    processes = ("forked", "new") if write in (npy, dicts, memmap) else ("forked",)
    wanted = expected(names=write is dicts)
    check_with_copy(opened, tmp_path, wanted, processes=processes)
    assert opened(str(tmp_path)).index.class_names == ("0", "1", "2", "3")


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
    assert storage.column_fields == ("image", "label", "age", "depth")
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
    refusal(make(), "key 'k' stands twice")


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
    refusal(NpyShards(str(shards)), "holds Python objects .pickled.")
    (shards / "x_0.npy").unlink()
    np.savez(shards / "0.npz", x=objects)
    refusal(NpyShards(str(shards)), "x.npy holds Python objects .pickled.")
    path = save(tmp_path / "pt/x_0.pt", Hostile(trap), _use_new_zipfile_serialization=False)
    refusal(PtShards(str(path)), "x_0.pt: is damaged, or torch before 1.6 wrote it")
    for value in ([torch.ones(2), Hostile(trap)], torch.nn.Linear(2, 2), np.ones(3)):
        save(path, value)
        refusal(PtShards(str(path)), "holds other things than tensors")
    assert not trap.exists()


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ({"labels_1": LABELS[:4]}, "1: image has 23 rows and label has 4, expected the same"),
        ({}, "only one of the shards 0 and 1 has the field 'label'"),
        ({"labels_1": LABELS, "labels-1": LABELS}, "are both the field 'label' of one shard"),
        ({"index_1": LABELS}, "would be a field 'index'"),
        ({"labels_1": LABELS, "x_0": LABELS, "x_1": LABELS / 2}, "x is .* in 0 and float64 in 1"),
    ],
)  # fmt: skip
def test_shards_that_do_not_fit_together(tmp_path, added, said):
    arrays = {"images_0": IMAGES, "labels_0": LABELS, "images_1": IMAGES, **added}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    refusal(NpyShards(str(tmp_path)), said)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"labels": LABELS[:10]}, "image has 23 rows and label has 10"),
        ({"labels": LABELS.astype(float)}, r"label is float64 \[23\], expected integers"),
        ({"labels": LABELS - 4}, r"row \d+: label -\d, expected a class id"),
        ({"labels": LABELS << 40}, "is a code, expected class ids"),
        ({"age": np.arange(N, dtype=np.uint64)}, "age.npy: it holds uint64"),
        ({"age": np.float32(3)}, r"age.npy: it holds float32 \[\]"),
        ({"depth": np.asfortranarray(DEPTH)}, r"\[23, 6\] in Fortran order"),
        ({"images": IMAGES / 255}, r"images are float64 \[23, 6, 5, 3\], expected uint8"),
        ({"images": IMAGES.transpose(0, 3, 1, 2).copy()}, "transpose them"),
        ({name: array[:0] for name, array in ARRAYS.items()}, "the arrays are empty"),
        ({"image": IMAGES}, "image.npy and images.npy are both the field 'image'"),
        ({"epoch": AGES}, "field 'epoch'"),
        ({"keys": np.array(["a"] * N)}, "key 'a' stands twice"),
        ({"keys": np.array(["a"])}, "key has 1, expected the same"),
    ],
)
def test_whole_arrays_that_cannot_be_used(tmp_path, arrays, said):
    opened = memmap(tmp_path)
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    refusal(opened(str(tmp_path)), said)


def test_large_arrays_are_views_of_the_file_and_cannot_be_written(tmp_path):
    np.save(tmp_path / "volume.npy", large := rng.normal(size=(3, 16, 16, 16)))
    storage = MemmapStorage(str(tmp_path / "volume.npy"))
    first, again = (storage.read(np.array([2]))[0].fields["volume"] for _ in range(2))
    assert np.shares_memory(first, again) and not first.flags.writeable
    assert type(first) is np.ndarray and np.array_equal(first, large[2])
    refusal(MemmapStorage(str(tmp_path / "none")), "nothing there")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.ones(3, 3, dtype=torch.bfloat16), "it is a torch.bfloat16 tensor"),
        (torch.eye(3).to_sparse(), "it is a torch.float32 tensor"),
        ([torch.ones(2), torch.ones(3)], "it is a list"),
        ([1, "a"], "it is a list"),
        (["a\0", "b"], "it is a list"),
        ({}, "the arrays are empty"),
        ({"a": torch.ones(2), "b": 3}, "'b' is a int that cannot"),
        ({"image": torch.ones(0, 4, 4, 3)}, "the arrays are empty"),
    ],
)
def test_values_that_are_no_arrays(tmp_path, value, text):
    refusal(PtShards(str(save(tmp_path / "x_0.pt", value))), text)


@pytest.mark.parametrize("change", [lambda content: content[:200], lambda content: content[::-1]])
@pytest.mark.parametrize(
    ("write", "name"), [(npy, "images_003.npy"), (npz, "3.npz"), (dicts, "3.pt")]
)
def test_a_file_changed_in_place_spoils_its_samples_alone(tmp_path, write, name, change):
    storage = write(tmp_path)(str(tmp_path))
    assert not any(isinstance(r, BadRecord) for r in storage.read(np.arange(N)))
    (tmp_path / name).write_bytes(change((tmp_path / name).read_bytes()))
    for one in (storage, pickle.loads(pickle.dumps(storage))):
        records = one.read(np.arange(N))
        bad = [i for i, record in enumerate(records) if isinstance(record, BadRecord)]
        assert bad == list(range(8, 20)) and name in records[8].cause
        if write is not dicts:
            assert one.take(np.arange(N), {"image"}) is None
            assert one.take(np.arange(7), {"image"}) is not None


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
