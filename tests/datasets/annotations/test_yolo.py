"""YOLO's text files: what becomes of their lines."""

from __future__ import annotations

import logging
import re

import cv2
import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.datasets.annotations.yolo import YoloAnnotations
from tests.contracts.storage import check_storage
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images

TEXTS = {
    "a": "1 0.5 0.5 0.5 0.25\n\n0 0.1 0.1 0.2 0.2\n",
    "b": "",
    "c": "1 0.2 0.3 0.6 0.3 0.6 0.9 0.25 0.8\n",
}
BOXES = {
    "a": ([[0.25, 0.375, 0.75, 0.625], [0, 0, 0.2, 0.2]], [1, 0]),
    "b": ([], []),
    "c": ([[0.2, 0.3, 0.6, 0.9]], [1]),
}


def write(folder, texts=TEXTS):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)


@pytest.fixture
def root(tmp_path):
    write_images(tmp_path / "set", [f"images/{name}.jpg" for name in TEXTS])
    write(tmp_path / "set/labels")
    (tmp_path / "set/data.yaml").write_text("names: {0: cat, 1: dog}\nnc: 2\n")
    return tmp_path / "set"


def test_it_is_a_storage(root):
    wanted = []
    for name, (boxes, labels) in BOXES.items():
        key = f"images/{name}.jpg"
        fields = {
            "image": b"image " + key.encode(),
            "boxes_normalized": np.array(boxes, np.float32).reshape(-1, 4),
            "box_labels": np.array(labels, np.int64),
        }
        wanted.append((key, fields))
    check_storage(lambda: open_annotated(root, YoloAnnotations()), wanted)
    index = open_annotated(root, YoloAnnotations()).index
    assert index.field_classes == {"box_labels": ("cat", "dog")}
    assert index.column("boxes").tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("name", "text", "names"),
    [
        ("classes.txt", "cat\ndog\n", ("cat", "dog")),
        ("data.yaml", "names:\n- cat\n- 7\n", ("cat", "7")),
        (None, "", ("0", "1")),
    ],
)
def test_names_of_classes_come_from_the_files_of_other_tools(root, name, text, names):
    (root / "data.yaml").unlink()
    if name:
        (root / name).write_text(text)
    index = open_annotated(root, YoloAnnotations()).index
    assert index.field_classes == {"box_labels": names}
    (root / "classes.txt").write_text("first\nsecond\n")  # changed data is read again
    if name != "data.yaml":
        index = open_annotated(root, YoloAnnotations()).index
        assert index.field_classes == {"box_labels": ("first", "second")}


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("0 0.5 0.5 0.5", r"c\.txt: line 1 has 3 numbers behind the class, expected 4"),
        ("0 0.5 0.5 0.5 0.5 0.9", "has 5 numbers"),
        ("2 0.5 0.5 0.5 0.5", "class 2, expected 0 to 1"),
        ("-1 0.5 0.5 0.5 0.5", "class -1"),
        ("0 320 240 64 48", "outside of 0 to 1, expected shares of the image"),
        ("0 nan 0.5 0.5 0.5", "outside of 0 to 1"),
        ("cat 0.5 0.5 0.5 0.5", "line 1 is 'cat 0.5 0.5 0.5 0.5', expected numbers"),
        ("0.5 0.5 0.5 0.5 0.5", "expected numbers"),
        ("é 1", "expected numbers"),
    ],
)
def test_a_broken_line_makes_its_record_bad(root, line, cause):
    (root / "labels/c.txt").write_text(line)
    found = fields_of(open_annotated(root, YoloAnnotations()))
    assert isinstance(found[0], dict) and isinstance(found[1], dict)
    assert isinstance(found[2], str) and re.search(cause, found[2])


def test_images_without_a_file_have_no_boxes_unless_they_are_most(root, caplog):
    (root / "labels/b.txt").unlink()
    with caplog.at_level(logging.WARNING):
        found = fields_of(open_annotated(root, YoloAnnotations()))
    assert len(found[1]["boxes_normalized"]) == 0 and "b.jpg" in caplog.text
    with pytest.raises(ValueError, match=r"1 of 3 records have no text file.*missing=empty"):
        open_annotated(root, YoloAnnotations(missing="error"))
    (root / "labels/a.txt").unlink()
    with pytest.raises(ValueError, match=r"2 of 3 records have no text file"):
        open_annotated(root, YoloAnnotations())
    assert len(open_annotated(root, YoloAnnotations(missing="empty"))) == 3


def test_a_missing_folder_and_names_that_are_none_are_refused(root):
    with pytest.raises(ValueError, match=r"no such folder.*set dataset\.annotations\.path"):
        open_annotated(root, YoloAnnotations("nothing"))
    (root / "data.yaml").write_text("nc: 2\n")
    with pytest.raises(ValueError, match=r"data\.yaml lacks names: of every class from 0 up"):
        open_annotated(root, YoloAnnotations())


@pytest.mark.parametrize(
    ("images", "labels", "path"),
    [
        ("images/{}", "labels/{}", "images"),
        ("{}/images", "{}/labels", "."),
    ],
)
def test_both_layouts_of_the_field_train_as_they_are(tmp_path, images, labels, path):
    for part, count in (("train", 6), ("val", 4)):
        folder = tmp_path / images.format(part)
        folder.mkdir(parents=True)
        for number in range(count):
            image = np.full((40, 80, 3), 9 * number, np.uint8)
            cv2.imwrite(str(folder / f"{part}{number}.png"), image)
        texts = {f"{part}{number}": "1 0.5 0.5 0.5 0.5\n" for number in range(count)}
        write(tmp_path / labels.format(part), texts)
    typed = ["task=detection", "dataset/annotations=yolo", "augment=as_is", "loader=inline",
             f"dataset.storage.path={tmp_path / path}", "loader.batch_size=2"]  # fmt: skip
    for part, count in (("train", 6), ("val", 4)):
        with build_loader(compose(typed), part) as loader:
            boxes = [box for batch in loader for box in batch["boxes"]]
        assert len(boxes) == count
        assert all(np.asarray(box).tolist() == [[20, 10, 60, 30]] for box in boxes)


@pytest.mark.parametrize(
    ("name", "text", "images", "remedy"),
    [
        ("data.yaml", "path: .\ntrain: images/train\n", "images/train", "images"),
        ("data.yaml", "train: ../set/train/images\nval: valid/images\n", "train/images", ""),
        ("train.txt", "./images/train/a.jpg\n", "images/train", "images"),
    ],
)
def test_a_file_that_says_where_the_images_lie_is_answered(tmp_path, name, text, images, remedy):
    root = tmp_path / "set"
    (root / images).mkdir(parents=True)
    (root / name).write_text(text)
    place = re.escape(str(root / remedy))
    said = (
        rf"expected a folder of images, got a file; set dataset\.storage\.path={place} dataset/an"
    )
    with pytest.raises(ValueError, match=said):
        open_annotated(root / name, YoloAnnotations())
