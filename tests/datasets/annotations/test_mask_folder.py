"""Masks in folders of their own."""

from __future__ import annotations

import os

import pytest

from penstock.datasets.annotations.mask_folder import MaskFolder
from tests.contracts.storage import check_storage
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images

KEYS = ("a.png", "deep/b.png")


@pytest.fixture
def root(tmp_path):
    for part in ("train", "val", "trainannot", "valannot"):
        write_images(tmp_path / part, KEYS)
    return tmp_path


@pytest.mark.parametrize("split", ["train", "val"])
def test_annotated_images_are_a_storage_with_the_classes_of_a_file_or_the_config(root, split):
    wanted = [(k, dict.fromkeys(("image", "mask"), b"image " + k.encode())) for k in KEYS]
    check_storage(lambda: open_annotated(root, MaskFolder("{part}annot"), split=split), wanted)
    (root / "trainannot/classes.txt").write_text("sky\nroad\n")
    for given, classes in ((None, ("sky", "road")), (["a", "b"], ("a", "b"))):
        storage = open_annotated(root, MaskFolder("{part}annot", classes=given), split=split)
        assert storage.index.field_classes == {"mask": classes}


def test_other_names(root):
    os.rename(root / "trainannot/a.png", root / "trainannot/a_mask.tif")
    os.rename(root / "trainannot/deep/b.png", root / "trainannot/b_mask.tif")
    found = fields_of(open_annotated(root, MaskFolder("{part}annot", ending="_mask.tif")))
    assert [fields["mask"] for fields in found] == [b"image a.png", b"image deep/b.png"]


def test_missing_masks(root):
    storage = open_annotated(root, MaskFolder("{part}annot"))
    os.unlink(root / "trainannot/a.png")
    found = fields_of(storage)
    assert "its mask cannot be read" in found[0] and "trainannot/a.png" in found[0]
    assert found[1]["mask"] == b"image deep/b.png"
    with pytest.raises(ValueError, match=r"1 of 2 records .* mask, such as 'a\.png'"):
        open_annotated(root, MaskFolder("{part}annot"))
    with pytest.raises(ValueError, match="no such folder"):
        open_annotated(root, MaskFolder("{part}masks"))
