"""Two folders with equal names, shapes, sizes and labels share no value of any cache."""

from __future__ import annotations

import os

import pytest

from penstock import build_loader, compose
from penstock.datasets.annotations.mask_folder import MaskFolder
from penstock.datasets.annotations.tables import CsvBoxes, CsvValues
from tests.datasets.annotations.annotated import fields_of, open_annotated

NAMES = ("a/0.jpg", "b/1.jpg")


@pytest.fixture
def folders(tmp_path):
    """Folders whose files differ in content alone, even in the same nanosecond."""
    for folder, value in (("one", 1), ("two", 2)):
        files = {f"set/{name}": bytes([value]) * 8 for name in NAMES}
        files |= {f"masks/{name[:3]}.png": bytes([value]) * 8 for name in NAMES}
        files["values.csv"] = f"image,age\n0,{value}\n1,{value}\n".encode()
        files["boxes.csv"] = (
            f"image,label,xmin,ymin,xmax,ymax\n0,x,0,0,9,{value}\n1,x,0,0,9,{value}\n".encode()
        )
        for name, content in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            os.utime(path, ns=(10**18, 10**18))
    return [tmp_path / "one/set", tmp_path / "two/set"]


def _typed(folder, *more):
    return [
        "dataset=image_folder", f"dataset.storage.path={folder}", "dataset.val_fraction=0",
        "dataset/decode=raw", "augment=as_is", "loader=inline", "loader.batch_size=2",
        "loader.drop_last=false", *more,
    ]  # fmt: skip


@pytest.mark.parametrize("cache", ["none", "ram", "disk"])
def test_caches_of_records(folders, cache, tmp_path):
    more = [f"dataset/cache={cache}"]
    if cache == "disk":
        more.append(f"dataset.cache.path={tmp_path / 'kept'}")
    for _ in range(2):
        for folder, value in zip(folders, (1, 2), strict=True):
            with build_loader(compose(_typed(folder, *more)), "train") as loader:
                found = [image for batch in loader for image in batch["image"]]
            assert [bytes(image) for image in found] == [bytes([value]) * 8] * 2


@pytest.mark.parametrize(
    ("annotations", "field", "of"),
    [
        (CsvValues("values.csv"), "values", lambda field: field[0]),
        (CsvBoxes("boxes.csv"), "boxes", lambda field: field[0, 3]),
        (MaskFolder("masks"), "mask", lambda field: field[0]),
    ],
    ids=["values", "boxes", "masks"],
)
def test_caches_of_annotations(folders, annotations, field, of):
    for folder, value in zip(folders, (1, 2), strict=True):
        storage = open_annotated(folder, annotations)
        rows = [fields[field] for fields in fields_of(storage)]
        assert [float(of(row)) for row in rows] == [value] * 2
