"""Annotations in the records themselves, named by a file beside them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.datasets.annotations.coco import CocoAnnotations
from penstock.datasets.annotations.in_records import InRecords
from penstock.datasets.records.splits import StorageRecipe, open_split
from penstock.datasets.storages.parquet import ParquetStorage
from penstock.pipeline.commands import main

KINDS = ("circle", "cross", "ring", "square", "star", "triangle")


@pytest.fixture(scope="module")
def packed(data_dir, tmp_path_factory):
    """The demo set with its boxes and keypoints, packed."""
    root = tmp_path_factory.mktemp("boxes") / "packed"
    typed = ["to=parquet", "task=detection", f"data_dir={data_dir}", f"pack.path={root}"]
    assert main(["pack", *typed]) == 0
    return root


def opened(root, annotations=None, *, split="train"):
    recipe = StorageRecipe(ParquetStorage, {"path": str(root)})
    return open_split(recipe, split=split, val_fraction=0, annotations=annotations)


def test_packed_annotations_are_a_storage_with_their_columns_and_classes(packed, data_dir):
    with build_loader(compose(["task=detection", f"data_dir={data_dir}"])) as loader:
        expected = loader.dataset.index
        assert loader.classes_of("box_labels") == KINDS
    for split in ("train", "val"):
        index = opened(packed, InRecords(), split=split).index
        assert index.field_classes["box_labels"] == KINDS
    index, keys = opened(packed, InRecords()).index, expected.keys(np.arange(len(expected)))
    order = [keys.index(key) for key in index.keys(range(9))]
    for column in ("boxes", "rarest_box_label", "keypoints"):
        assert (index.column(column)[:9] == expected.column(column)[order]).all()
    with pytest.raises(ValueError, match="dataset/annotations=in_records"):
        opened(packed, CocoAnnotations())


def test_names_that_are_given(packed, tmp_path):
    given = InRecords(classes={"box_labels": list("abcdef"), "keypoints": 5})
    classes = {"box_labels": tuple("abcdef"), "keypoints": tuple("01234")}
    assert opened(packed, given).index.field_classes == classes
    shutil.copytree(packed / "train", tmp_path / "alone", ignore=lambda *_: [".packed.npz"])
    assert opened(tmp_path / "alone", given).index.field_classes == classes
    with pytest.raises(ValueError, match=r"dataset\.annotations\.classes\.mask"):
        opened(tmp_path / "alone", InRecords())
