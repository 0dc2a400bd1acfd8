"""Shards of tensors: what the contract asks, every layout, and files that are wrong."""

import functools
import itertools
import os
import pickle
import shutil
import zipfile

import numpy as np
import pytest
import torch

from penstock.core.sample import BadRecord
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


def rows():
    return [slice(start, stop) for start, stop in itertools.pairwise(CUTS)]


def dicts(folder):
    for shard, at in enumerate(rows()):
        save(folder / f"{shard}.pt", {"images": torch.tensor(IMAGES[at]),
                                      "labels": torch.tensor(LABELS[at]),
                                      "depth": torch.tensor(DEPTH[at]),
                                      "name": NAMES[at]})  # fmt: skip
    return folder


def tensors(folder):
    for shard, at in enumerate(rows()):
        save(folder / f"images_{shard}.pt", torch.tensor(IMAGES[at]))
        save(folder / f"labels_{shard}.pt", torch.tensor(LABELS[at]))
        save(folder / f"depth_{shard}.pt", [torch.tensor(row) for row in DEPTH[at]] or
             torch.tensor(DEPTH[at]))  # fmt: skip
    return folder


def samples(folder):
    for shard, at in enumerate(at for at in rows() if at.stop > at.start):
        save(folder / f"{shard}.pt", [
            {"image": torch.tensor(IMAGES[i]), "label": int(LABELS[i]),
             "depth": torch.tensor(DEPTH[i]), "name": NAMES[i]}
            for i in range(at.start, at.stop)
        ])  # fmt: skip
    return folder


def save(path, value, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path, **options)
    return path


def expected(*, names):
    return [
        (str(i), {"image": IMAGES[i], "label": int(LABELS[i]), "depth": DEPTH[i]}
         | ({"name": NAMES[i]} if names else {}))
        for i in range(N)
    ]  # fmt: skip


def message(path, **options):
    with pytest.raises(ValueError) as caught:
        len(open_pt_shards(str(path), **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("layout", [dicts, tensors, samples])
def test_it_is_a_storage(tmp_path, layout):
    folder = layout(tmp_path / "shards")

    def copy():
        shutil.copytree(folder, tmp_path / "copy", dirs_exist_ok=True)
        return open_pt_shards(str(tmp_path / "copy"))

    processes = ("forked", "new") if layout is dicts else ("forked",)
    check_storage(
        lambda: open_pt_shards(str(folder)),
        expected(names=layout is not tensors),
        make_copy=copy,
        processes=processes,
    )
    assert open_pt_shards(str(folder)).index.class_names == ("0", "1", "2", "3")


def test_columns_are_what_reading_gives(tmp_path):
    for shard, at in enumerate(rows()):
        save(tmp_path / f"{shard}.pt",
             {"image": torch.tensor(IMAGES[at]), "label": LABELS[at].tolist() or
              torch.tensor(LABELS[at])})  # fmt: skip
    storage = open_pt_shards(str(tmp_path), checksums=True)
    assert storage.fields == ("image", "label")
    for indices in ([22, 0, 0, 7, 19], [3, 1, 6], [0, 7, 20], []):
        indices = np.array(indices, np.int64)
        taken, records = storage.take(indices, storage.fields), storage.read(indices)
        for name, column in taken.items():
            assert column.tolist() == [np.asarray(r.fields[name]).tolist() for r in records]
    assert open_pt_shards(str(dicts(tmp_path / "named"))).fields == ()


def test_tensors_that_share_one_storage_and_odd_strides(tmp_path):
    base = torch.arange(60.0).reshape(5, 3, 4)
    save(tmp_path / "0.pt", {"a": base[:, 0], "b": base.transpose(1, 2), "c": base[:, :1, ::2],
                             "same": torch.ones(1, 2).expand(5, 2), "turned": base})  # fmt: skip
    storage = open_pt_shards(str(tmp_path))
    assert storage.fields == ("a", "b", "c", "same", "turned")
    taken = storage.take(np.array([4, 1]), storage.fields)
    for i, record in zip((4, 1), storage.read(np.array([4, 1])), strict=True):
        assert np.array_equal(record.fields["b"], base[i].T.numpy())
        assert np.array_equal(record.fields["c"], base[i, :1, ::2].numpy())
        assert record.fields["same"].tolist() == [1, 1]
        assert not record.fields["turned"].flags.writeable
    assert np.array_equal(taken["b"], base[[4, 1]].transpose(1, 2).numpy())


def test_files_of_one_sample_each(tmp_path):
    wanted = []
    for at, (name, value) in enumerate((("cat", torch.ones(2, 3)), ("dog", torch.zeros(4)))):
        save(tmp_path / f"files/{name}/0.pt", value)
        wanted.append((f"{name}/0.pt", {"array": value.numpy(), "label": at}))
    save(tmp_path / "files/dog/1.pt", {"wave": torch.arange(5), "rate": 16_000, "text": "wuff"})
    wanted.append(("dog/1.pt", {"wave": np.arange(5), "rate": 16_000, "text": "wuff", "label": 1}))
    (tmp_path / "files/dog/2.pt").write_bytes(b"PK")
    wanted.append(("dog/2.pt", None))
    make = functools.partial(open_pt_shards, str(tmp_path / "files"), rows=False)
    check_storage(make, wanted, processes=("forked",))


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
    assert "1.pt: its label is a NoneType" in message(tmp_path, rows=False, labels="file")


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_what_takes_running_code_is_refused_and_never_run(tmp_path):
    trap = tmp_path / "trap"
    folder = tmp_path / "shards"
    path = save(folder / "x_0.pt", [torch.ones(2), Hostile(trap)])
    assert "x_0.pt holds other things than tensors" in message(folder)
    save(path, Hostile(trap), _use_new_zipfile_serialization=False)
    assert "one of its old format, which cannot be mapped" in message(folder)
    path.write_bytes(pickle.dumps(Hostile(trap)))
    assert "no file of torch.save" in message(folder)
    save(path, torch.nn.Linear(2, 2))
    assert "holds other things than tensors" in message(folder)
    save(path, np.ones(3))
    assert "holds other things than tensors" in message(folder)
    with pytest.warns(DeprecationWarning):
        torch.jit.script(torch.nn.Linear(2, 2)).save(str(path))
    assert "is a program (TorchScript), which is never run" in message(folder)
    save(folder / "x_0.pt", {"x": Hostile(trap)})
    [bad] = open_pt_shards(str(folder), rows=False, labels=None).read(np.array([0]))
    assert "holds other things than tensors" in bad.cause
    assert not trap.exists()


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
        ({"image": torch.ones(0, 4, 4, 3)}, "the arrays have no rows"),
    ],
)
def test_what_no_array_is(tmp_path, value, text):
    save(tmp_path / "x_0.pt", value)
    assert text in message(tmp_path)


def test_a_list_with_one_that_is_no_array_spoils_that_sample(tmp_path):
    save(tmp_path / "x_0.pt", [torch.ones(2), torch.ones(2, dtype=torch.bfloat16)])
    good, bad = open_pt_shards(str(tmp_path)).read(np.arange(2))
    assert good.fields["x"].tolist() == [1, 1]
    assert isinstance(bad, BadRecord) and "row 1 is a strided tensor of bfloat16" in bad.cause


def test_files_cut_short_anywhere(tmp_path):
    path = save(tmp_path / "x_0.pt", torch.tensor(DEPTH))
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        places = [info.header_offset for info in archive.infolist()]
    ends = [len(content) - 1, len(content) - 22, content.index(b"PK\x01\x02")]
    for size in sorted({0, 1, 2, 4, *places, *(p + 30 for p in places), *ends}):
        path.write_bytes(content[:size])
        assert "damaged" in message(tmp_path)


def test_a_file_cut_or_gone_while_it_is_open(tmp_path):
    folder = dicts(tmp_path / "shards")
    storage = open_pt_shards(str(folder))
    assert not any(isinstance(r, BadRecord) for r in storage.read(np.arange(N)))
    os.truncate(folder / "3.pt", 700)
    for one in (storage, pickle.loads(pickle.dumps(storage))):
        bad = [i for i, r in enumerate(one.read(np.arange(N))) if isinstance(r, BadRecord)]
        assert bad == list(range(8, 20))
    os.unlink(folder / "3.pt")
    assert "No such file" in pickle.loads(pickle.dumps(storage)).read(np.array([8]))[0].cause
    tensors(tmp_path / "others")
    save(tmp_path / "others/images_3.pt", torch.tensor(IMAGES[8:20]).to(torch.uint8))
    opened = open_pt_shards(str(tmp_path / "others"))
    len(opened)
    save(tmp_path / "others/images_3.pt", torch.tensor(IMAGES[8:12]))
    assert "was written anew while it was in use" in opened.read(np.array([9]))[0].cause


def test_flipped_bytes_are_an_error_or_bad_records(tmp_path):
    folder = dicts(tmp_path / "shards")
    path = folder / "3.pt"
    wanted = summary(open_pt_shards(str(folder)).read(np.arange(N)))
    noticed = 0
    for _ in flipped(path, rng.integers(0, path.stat().st_size, 60), rng):
        found = unless_refused(
            lambda: summary(open_pt_shards(str(folder), checksums=True).read(np.arange(N)))
        )
        noticed += found != wanted
        if found is not None:
            assert all(f == w or f[2] is None for f, w in zip(found, wanted, strict=True))
    assert noticed > 25
