"""Masks in folders of their own."""

from __future__ import annotations

import os

import pytest

from penstock.datasets.annotations.mask_folder import MaskFolder
from tests.contracts.storage import check_storage
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images


@pytest.fixture
def root(tmp_path):
    for part in ("train", "val"):
        write_images(tmp_path / part, ["a.png", "deep/b.png"])
        write_images(tmp_path / f"{part}annot", ["a.png", "deep/b.png"])
    return tmp_path


def test_it_is_a_storage(root):
    for split in ("train", "val"):
        wanted = [
            (key, {"image": b"image " + key.encode(), "mask": b"image " + key.encode()})
            for key in ("a.png", "deep/b.png")
        ]
        annotations = MaskFolder("{part}annot", classes=["sky", "road"])
        check_storage(lambda s=split, a=annotations: open_annotated(root, a, split=s), wanted)
    assert open_annotated(root, annotations).index.field_classes == {"mask": ("sky", "road")}


def test_other_names(root):
    os.rename(root / "trainannot/a.png", root / "trainannot/a_mask.tif")
    os.rename(root / "trainannot/deep/b.png", root / "trainannot/b_mask.tif")
    found = fields_of(open_annotated(root, MaskFolder("{part}annot", ending="tif", suffix="_mask")))
    assert [fields["mask"] for fields in found] == [b"image a.png", b"image deep/b.png"]


def test_a_mask_that_goes_makes_its_record_bad(root):
    storage = open_annotated(root, MaskFolder("{part}annot"))
    os.unlink(root / "trainannot/a.png")
    found = fields_of(storage)
    assert "its mask cannot be read" in found[0] and "trainannot/a.png" in found[0]
    assert found[1]["mask"] == b"image deep/b.png"


def test_what_is_missing(root):
    os.unlink(root / "trainannot/a.png")
    with pytest.raises(ValueError, match=r"1 of 2 records have no mask, such as 'a\.png'"):
        open_annotated(root, MaskFolder("{part}annot"))
    with pytest.raises(ValueError, match="no such folder"):
        open_annotated(root, MaskFolder("{part}masks"))


def test_classes_that_a_file_beside_the_masks_names(root):
    assert open_annotated(root, MaskFolder("{part}annot")).index.field_classes == {}
    (root / "trainannot/classes.txt").write_text("sky\nroad\n")
    for split in ("train", "val"):  # the training part settles them
        storage = open_annotated(root, MaskFolder("{part}annot"), split=split)
        assert storage.index.field_classes == {"mask": ("sky", "road")}
    given = MaskFolder("{part}annot", classes=["a", "b"])
    assert open_annotated(root, given).index.field_classes == {"mask": ("a", "b")}
