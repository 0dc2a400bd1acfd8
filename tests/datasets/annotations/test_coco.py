"""COCO: what becomes of its JSON."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from penstock.datasets.annotations.coco import CocoAnnotations
from tests.contracts.storage import check_storage
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images

CONTENT = {
    "images": [
        {"id": 7, "file_name": "a.jpg", "width": 100, "height": 80},
        {"id": 3, "file_name": "deep/b.jpg", "width": 50, "height": 50},
    ],
    "categories": [{"id": 5, "name": "cat"}, {"id": 2, "name": "zebra"}],
    "annotations": [
        {"id": 1, "image_id": 7, "category_id": 5, "bbox": [10, 20, 30, 40], "iscrowd": 0,
         "keypoints": [11, 21, 2, 0, 0, 0]},
        {"id": 2, "image_id": 7, "category_id": 2, "bbox": [90, 70, 30.5, 40], "iscrowd": 1},
    ],
}  # fmt: skip


@pytest.fixture
def opened(tmp_path):
    write_images(tmp_path, ["a.jpg", "deep/b.jpg"])

    def opened(change=lambda content: None, **options):
        change(content := copy.deepcopy(CONTENT))
        (tmp_path / "coco.json").write_text(json.dumps(content))
        return open_annotated(tmp_path, CocoAnnotations("coco.json", **options))

    return opened


def test_annotated_images_are_a_storage(opened):
    first = {
        "boxes": np.array([[10, 20, 40, 60], [90, 70, 100, 80]], np.float32),
        "box_labels": np.array([1, 0]),  # by category id: zebra, cat
        "box_crowd": np.array([0, 1]),
        "keypoints": np.array([[11, 21, 2], [0, 0, 0]], np.float32),
        "stated_size": np.array([100, 80], np.int32),
    }
    second = {name: value[:0] for name, value in first.items()}
    second |= {"stated_size": np.zeros(2, np.int32), "image": b"image deep/b.jpg"}
    first["image"] = b"image a.jpg"
    check_storage(opened, [("a.jpg", first), ("deep/b.jpg", second)])
    index = opened().index
    assert index.field_classes == {"box_labels": ("zebra", "cat")}
    assert index.column("keypoints").tolist() == [2, 0]
    assert fields_of(opened(crowd="drop"))[0]["boxes"].tolist() == [[10, 20, 40, 60]]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"bbox": [1, 2, 3, "x"]}, "could not convert"),
        ({"bbox": None}, "annotation 0 of coco.json: "),
        ({"category_id": 9}, "category 9 is not listed"),
        ({"keypoints": [1, float("nan"), 2]}, "expected finite x, y, v"),
    ],
)
def test_a_broken_annotation_makes_its_record_bad(opened, change, cause):
    found = fields_of(opened(lambda content: content["annotations"][0].update(change)))
    assert cause in found[0] and "\n" not in found[0]
    assert found[1]["boxes"].shape == (0, 4)


def test_annotations_without_an_image_are_left_out_with_a_warning(opened, caplog):
    opened(lambda c: c["annotations"].append({"image_id": "7", "category_id": 5}))
    assert "1 annotations have an image_id of no image, such as '7'" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("images"), "is no COCO file: lacks 'images'"),
        (lambda c: c.update(annotations=[7]), "is no COCO file"),
        (lambda c: c["images"].append(c["images"][0]), "the same id or file_name"),
        (lambda c: c["images"].pop(), r"1 of 2 records .* entry, such as 'deep/b.jpg'"),
    ],
)
def test_files_that_do_not_fit(opened, change, message):
    with pytest.raises(ValueError, match=message) as caught:
        opened(change)
    assert "\n" not in str(caught.value)
