"""What lies in the records themselves, and is named beside them."""

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
from tests.contracts.storage import check_storage

KINDS = ("circle", "cross", "ring", "square", "star", "triangle")


@pytest.fixture(scope="module")
def packed(data_dir, tmp_path_factory):
    """The demo set with its boxes and keypoints, packed."""
    root = tmp_path_factory.mktemp("boxes") / "packed"
    assert (
        main(["pack", "to=parquet", "task=detection", f"data_dir={data_dir}", f"pack.path={root}"])
        == 0
    )
    return root


def opened(root, annotations=None, *, split="train"):
    recipe = StorageRecipe(ParquetStorage, {"path": str(root)})
    return open_split(recipe, split=split, val_fraction=0, annotations=annotations)


def test_it_is_a_storage_that_knows_what_was_packed(packed, data_dir):
    config = compose(["task=detection", f"data_dir={data_dir}"])
    with build_loader(config) as loader:
        expected = loader.dataset.index
        names = loader.classes_of("box_labels")
    for split in ("train", "val"):
        storage = opened(packed, InRecords(), split=split)
        assert storage.index.field_classes["box_labels"] == names == KINDS
    storage = opened(packed, InRecords())
    order = [expected.keys(np.arange(len(expected))).index(k) for k in storage.index.keys(range(9))]
    for column in ("boxes", "rarest_box_label", "keypoints"):
        assert (storage.index.column(column)[:9] == expected.column(column)[order]).all()
    wanted = [(record.key, dict(record.fields)) for record in opened(packed).read(np.arange(3000))]
    check_storage(lambda: opened(packed, InRecords()), wanted)


def test_names_that_are_given(packed, tmp_path):
    given = InRecords(classes={"box_labels": list("abcdef"), "keypoints": 5})
    classes = opened(packed, given).index.field_classes
    assert classes["box_labels"] == tuple("abcdef") and classes["keypoints"] == tuple("01234")
    shutil.copytree(packed / "train", tmp_path / "alone", ignore=lambda *_: [".packed.npz"])
    with pytest.raises(ValueError, match=r"kept no names of classes .*; give them by the field"):
        opened(tmp_path / "alone", InRecords())
    classes = opened(tmp_path / "alone", given).index.field_classes
    assert classes == {"box_labels": tuple("abcdef"), "keypoints": tuple("01234")}


def test_what_is_typed_for_them(tmp_path, data_dir, packed):
    words = [f"dataset.storage.path={packed}", "dataset=parquet", "task=detection"]
    named = ["dataset/annotations=in_records", "dataset.annotations.classes.box_labels=[a,b]"]
    config = compose([*words, *named])
    assert config["dataset"]["annotations"]["classes"] == {"box_labels": ["a", "b"]}


def test_other_records_than_were_packed(packed, tmp_path):
    shutil.copytree(packed, tmp_path / "mixed")
    shutil.copy(packed / "val/.packed.npz", tmp_path / "mixed/train")
    with pytest.raises(ValueError, match=r"has other records \(3,000\) than were packed \(600\)"):
        opened(tmp_path / "mixed", InRecords())


def test_parts_that_were_packed_with_other_classes(packed, tmp_path, data_dir):
    words = ["task=segmentation", f"data_dir={data_dir}", "dataset.annotations.classes=[a,b]"]
    others = ["dataset.annotations.classes=[b,a]", *words[:2]]
    assert main(["pack", "to=parquet", *words, f"pack.path={tmp_path / 'one'}"]) == 0
    assert main(["pack", "to=parquet", *others, f"pack.path={tmp_path / 'two'}"]) == 0
    path, val_path = str(tmp_path / "one/train"), str(tmp_path / "two/val")
    recipe = StorageRecipe(ParquetStorage, {"path": path}, val_path=val_path)
    with pytest.raises(ValueError, match="classes of mask are b, a, expected a, b; pack all parts"):
        open_split(recipe, split="val", val_fraction=0, annotations=InRecords())


def test_label_files_that_packing_put_into_the_records(packed):
    with pytest.raises(ValueError, match="into the records: type dataset/annotations=in_records"):
        opened(packed, CocoAnnotations())
