"""HDF5 files that cannot be read as they are, each with the line that says why."""

import re
import shlex
from pathlib import Path

import h5py
import numpy as np
import pytest

from penstock import build_loader, compose
from tests.datasets.storages.hdf5_files import AGES, IMAGES, LABELS, message, write


def external(file):
    file["images"] = h5py.ExternalLink("other.h5", "/images")


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


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (external, "'images' is an external link"),
        (circle, "'again' cannot be opened"),
        (nowhere, "'images' cannot be opened"),
        (virtual, "in other files"),
        (raw, "in other files"),
    ],
)
def test_links_that_lead_nowhere_or_out_of_the_file_are_refused(tmp_path, make, said):
    write(tmp_path / "other.h5")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["labels"] = LABELS
        make(file)
    assert said in message(tmp_path / "a.h5")


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("pairs", np.zeros(11, [("a", "i4"), ("b", "f4")]), "type [('a', '<i4')"),
        ("none", h5py.Empty("f4"), "the shape None"),
        ("count", 11, "the shape ()"),
        ("index", AGES, "would be a field 'index'"),
        ("image", IMAGES, "both the field 'image'"),
        ("labels", LABELS[:, None], "label is uint8 [11, 1]"),
    ],
)
def test_types_that_are_not_read(tmp_path, name, data, said):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = IMAGES
        file.create_dataset(name, data=data)
    assert said in message(tmp_path / "a.h5")


def test_files_that_are_not_there_or_do_not_fit(tmp_path):
    assert "nothing there" in message(tmp_path / "none.h5")
    assert "nothing there" in message(tmp_path)
    (tmp_path / "a.h5").write_bytes(b"no HDF5 at all")
    assert "damaged" in message(tmp_path / "a.h5")
    write(tmp_path / "a.h5")
    assert "'x' cannot be opened; the file has: depth, images" in message(tmp_path / "a.h5/x")
    assert "expected a group" in message(tmp_path / "a.h5/images")
    write(tmp_path / "b.h5", arrays={"images": IMAGES})
    assert "only one of the shards a.h5 and b.h5 has the field" in message(tmp_path)
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_group("empty")
    assert "no data sets" in message(tmp_path / "c.h5")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("images", (11, 6, 5, 3), "u1", chunks=(1, 6, 5, 3))[:4] = IMAGES[:4]
    assert "rows of 'images' were never written" in message(tmp_path / "c.h5")


def test_the_docs_read_a_group_per_sample(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with h5py.File("data.h5", "w") as file:
        for i in range(11):
            file[f"s{i:02d}/image"], file[f"s{i:02d}/label"] = IMAGES[i], int(LABELS[i])
    assert "dataset=torch with the class in docs/moving.md" in message(tmp_path / "data.h5")
    page = (Path(__file__).parents[3] / "docs/moving.md").read_text()
    (tmp_path / "groups.py").write_text(
        re.findall(r"```python\n(# groups.py\n.*?)```", page, re.S)[0]
    )
    typed = shlex.split(re.findall(r"`('imports=\[groups.py\]'.*?)`", page)[0])
    config = compose([*typed, "loader=inline", "loader.batch_size=2", "augment=none"])
    batch = next(iter(build_loader(config)))
    assert batch["image"].shape[0] == batch["label"].shape[0] == 2
