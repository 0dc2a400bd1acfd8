"""HDF5 files that cannot be read as they are, each with the line that says why."""

import pickle
import re
import shlex
from pathlib import Path

import h5py
import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.datasets.storages.hdf5 import Hdf5Storage
from tests.datasets.storages.hdf5_files import (
    AGES,
    IMAGES,
    LABELS,
    fields,
    message,
    write,
)


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
        file["elsewhere"] = h5py.ExternalLink("other.h5", "/")
        file["images"] = h5py.SoftLink("/elsewhere/images")

    def circle(file):
        file["images"], file["again"] = h5py.SoftLink("again"), h5py.SoftLink("/images")

    def nowhere(file):
        file["images"] = h5py.SoftLink("/gone")

    def virtual(file):
        layout = h5py.VirtualLayout((11, 6, 5, 3), np.uint8)
        layout[:] = h5py.VirtualSource("other.h5", "images", (11, 6, 5, 3))
        file.create_virtual_dataset("images", layout)

    def raw(file):
        file.create_dataset("images", (11, 6, 5, 3), "u1", external=[(b"/etc/passwd", 0, 990)])

    assert "'images' is an external link" in said(external)
    assert "external link" in said(external, fields={"image": "images"})
    assert "external link" in said(soft, fields={"image": "images"})
    assert "'again' cannot be opened" in said(circle)
    assert "'images' cannot be opened" in said(nowhere)
    assert "in other files" in said(virtual)
    assert "in other files" in said(raw)


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
    assert "'pairs' has elements of the type [('a', '<i4')" in said(pairs=data(pairs))

    def references(file, name):
        file.create_dataset(name, data=[file["images"].ref] * 11, dtype=h5py.ref_dtype)

    assert "'points' has elements of the type object" in said(points=references)
    assert "'times' has elements of the type datetime64" in said(
        times=data(np.zeros(11, "M8[s]").astype(h5py.opaque_dtype("M8[s]")))
    )
    assert "'none' is empty" in said(none=data(h5py.Empty("f4")))
    assert "'count': 0" in said(count=data(11))
    assert "'key' would be" not in said(index=data(AGES)), "keys are known"
    assert "index would be a field 'index'" in said(index=data(AGES))


def test_a_filter_without_its_plugin_is_named(tmp_path, monkeypatch):
    hdf5plugin = pytest.importorskip("hdf5plugin")
    path = write(tmp_path / "a.h5", {"chunks": (3,), **hdf5plugin.Blosc()})
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: code < 32000)
    assert "the filter 'blosc' (32001)" in message(path)


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
        ({"labels": LABELS[:10]}, "'image': 11, 'label': 10"),
        ({"labels": LABELS.astype(float)}, "label is float64 [11]"),
        ({"labels": LABELS.astype(int) - 1}, "label -1 in record 0"),
        ({"labels": LABELS.astype(int) << 40}, "is not a class id"),
        ({"labels": LABELS[:, None]}, "label is uint8 [11, 1]"),
        ({"images": IMAGES / 255}, "images are float64 [11, 6, 5, 3], expected uint8"),
        ({"images": IMAGES.transpose(0, 3, 1, 2)}, "put the channels last"),
        ({"images": IMAGES[..., 0]}, "give them an axis of channels"),
        ({"image": IMAGES}, "would be one field"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "data sets are empty"),
        ({"keys": ["a"] * 11}, "key 'a' stands twice, in the records 0 and 1"),
        ({"keys": ["a"] * 3}, "'keys': 3"),
        ({"keys": AGES}, "its keys are"),
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
    assert "damaged" in message(tmp_path / "a.h5")
    write(tmp_path / "a.h5")
    assert "'x' cannot be opened; available: depth, images" in message(tmp_path / "a.h5/x")
    assert "expected a group" in message(tmp_path / "a.h5/images")
    write(tmp_path / "b.h5", arrays={"images": IMAGES})
    assert "b.h5: has image, and a.h5 has image, depth, label" in message(tmp_path)
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_group("empty")
    assert "no data sets" in message(tmp_path / "c.h5")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("images", (11, 6, 5, 3), "u1", chunks=(1, 6, 5, 3))[:4] = IMAGES[:4]
    assert "7 of 11 chunks of 'images' were never written" in message(tmp_path / "c.h5")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("images", (1 << 50, 6, 5, 3), "u1", chunks=(1, 6, 5, 3))
    assert "of 1,125,899,906,842,624 chunks of 'images' were never written" in message(
        tmp_path / "c.h5"
    )


def test_texts_in_attributes_are_no_instructions(tmp_path):
    path = write(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file["images"].attrs["penstock"] = np.bytes_("nonsense")
    assert len(fields(path)) == 11
    with h5py.File(path, "r+") as file:
        file["depth"].attrs["penstock"] = "{"
    assert "pack it again" in message(path)


def test_the_dataset_that_the_line_names_reads_a_group_per_sample(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with h5py.File("data.h5", "w") as file:
        for i in range(11):
            file[f"s{i:02d}/image"], file[f"s{i:02d}/label"] = IMAGES[i], int(LABELS[i])
    page = (Path(__file__).parents[3] / "docs/moving.md").read_text()
    (tmp_path / "groups.py").write_text(
        re.findall(r"```python\n(# groups.py\n.*?)```", page, re.S)[0]
    )
    typed = shlex.split(message(tmp_path / "data.h5").partition(" type ")[2])
    assert "dataset=torch" in typed
    config = compose([*typed, "loader=inline", "loader.batch_size=2", "augment=none"])
    batch = next(iter(build_loader(config)))
    assert batch["image"].shape[0] == batch["label"].shape[0] == 2
