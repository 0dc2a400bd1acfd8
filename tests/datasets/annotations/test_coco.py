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
def root(tmp_path):
    write_images(tmp_path, ["a.jpg", "deep/b.jpg"])
    (tmp_path / "coco.json").write_text(json.dumps(CONTENT))
    return tmp_path


def changed(root, change):
    content = copy.deepcopy(CONTENT)
    change(content)
    (root / "coco.json").write_text(json.dumps(content))
    return open_annotated(root, CocoAnnotations("coco.json"))


def test_it_is_a_storage(root):
    first = {
        "image": b"image a.jpg",
        "boxes": np.array([[10, 20, 40, 60], [90, 70, 100, 80]], np.float32),
        "box_labels": np.array([1, 0]),  # by category id: zebra, cat
        "box_crowd": np.array([0, 1]),
        "box_id": np.array([1, 2]),
        "keypoints": np.array([[11, 21, 2], [0, 0, 0]], np.float32),
        "stated_size": np.array([100, 80], np.int32),
    }
    second = {"image": b"image deep/b.jpg"} | {
        name: value[:0] for name, value in first.items() if name != "image"
    }
    second["stated_size"] = np.zeros(2, np.int32)  # without objects
    wanted = [("a.jpg", first), ("deep/b.jpg", second)]
    check_storage(lambda: open_annotated(root, CocoAnnotations("coco.json")), wanted)
    index = open_annotated(root, CocoAnnotations("coco.json")).index
    assert index.field_classes == {"box_labels": ("zebra", "cat")}
    assert index.column("keypoints").tolist() == [2, 0]


def test_crowds_can_be_dropped(root):
    found = fields_of(open_annotated(root, CocoAnnotations("coco.json", crowd="drop")))
    assert found[0]["boxes"].tolist() == [[10, 20, 40, 60]]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda a: a.update(bbox=[1, 2, 3]), "not enough values"),
        (lambda a: a.update(bbox=[1, 2, 3, "x"]), "could not convert"),
        (lambda a: a.update(category_id=9), "category 9 is not listed"),
        (lambda a: a.pop("bbox"), "lacks 'bbox'"),
        (lambda a: a.update(keypoints=[1, 2]), "2 values of keypoints"),
        (lambda a: a.update(keypoints=[1, float("nan"), 2]), "a keypoint is not a finite number"),
    ],
)  # fmt: skip
def test_a_broken_annotation_makes_its_record_bad(root, change, cause):
    found = fields_of(changed(root, lambda content: change(content["annotations"][0])))
    assert cause in found[0] and "\n" not in found[0]
    assert found[1]["boxes"].shape == (0, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("images"), "is no COCO file: lacks 'images'"),
        (lambda c: c.update(annotations={}), "expected an object with a list 'annotations'"),
        (lambda c: c["images"].append(c["images"][0]), "image 7, 'a.jpg', stands twice"),
        (lambda c: c["images"].pop(), "1 of 2 records have no entry, such as 'deep/b.jpg'"),
        (lambda c: c["annotations"][1].update(image_id=99), "is of image 99, which is not listed"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit(root, change, message):
    with pytest.raises(ValueError, match=message) as caught:
        changed(root, change)
    assert "\n" not in str(caught.value)


def test_an_image_of_unknown_size_has_no_box_without_end(root):
    def change(content):
        content["images"][0].pop("width")
        content["annotations"][0]["bbox"] = [1, 2, float("inf"), 3]

    assert fields_of(changed(root, change))[0]["boxes"].tolist() == [[90, 70, 120.5, 110]]


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "\xff"])
def test_what_is_no_coco(root, text):
    (root / "coco.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"coco\.json: (cannot be read as JSON|is no COCO file)"):
        open_annotated(root, CocoAnnotations("coco.json"))
