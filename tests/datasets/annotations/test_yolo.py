"""YOLO's text files: what becomes of their lines."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from penstock.datasets.annotations.yolo import YoloAnnotations
from tests.contracts.storage import check_storage
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images

FILES = {
    "a": ("1 0.5 0.5 0.5 0.25\n\n0 0.1 0.1 0.2 0.2\n",
          [[0.25, 0.375, 0.75, 0.625], [0, 0, 0.2, 0.2]], [1, 0]),
    "b": ("", [], []),
    "c": ("1 0.2 0.3 0.6 0.3 0.6 0.9 0.25 0.8\n", [[0.2, 0.3, 0.6, 0.9]], [1]),
}  # fmt: skip


@pytest.fixture
def root(tmp_path):
    write_images(tmp_path / "set", [f"images/{name}.jpg" for name in FILES])
    (tmp_path / "set/labels").mkdir()
    for name, (text, *_) in FILES.items():
        (tmp_path / f"set/labels/{name}.txt").write_text(text)
    (tmp_path / "set/data.yaml").write_text("names: {0: cat, 1: dog}\nnc: 2\n")
    return tmp_path / "set"


def test_annotated_images_are_a_storage(root):
    wanted = [
        (key := f"images/{name}.jpg", {
            "image": b"image " + key.encode(),
            "boxes_normalized": np.array(boxes, np.float32).reshape(-1, 4),
            "box_labels": np.array(labels, np.int64),
        })
        for name, (_, boxes, labels) in FILES.items()
    ]  # fmt: skip
    check_storage(lambda: open_annotated(root, YoloAnnotations()), wanted)
    index = open_annotated(root, YoloAnnotations()).index
    assert index.field_classes == {"box_labels": ("cat", "dog")}
    assert index.column("boxes").tolist() == [2, 0, 1]


def test_names_of_classes_are_read_again_if_they_change(root):
    def classes():
        return open_annotated(root, YoloAnnotations()).index.field_classes["box_labels"]

    (root / "data.yaml").write_text("names:\n- cat\n- 7\n")
    assert classes() == ("cat", "7")
    (root / "data.yaml").unlink()
    assert classes() == ("0", "1")
    (root / "classes.txt").write_text("first\nsecond\n")
    assert classes() == ("first", "second")
    (root / "data.yaml").write_text("names: {1: dog}\n")
    with pytest.raises(ValueError, match=r"data\.yaml lacks names: of every class from 0 up"):
        classes()


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("0 0.5 0.5 0.5", "c.txt: line 1 has 3 numbers behind the class, expected 4"),
        ("2 0.5 0.5 0.5 0.5", "class 2, expected 0 to 1"),
        ("0 320 240 64 48", "outside of 0 to 1, expected shares of the image"),
        ("é 1", "expected numbers"),
    ],
)
def test_a_broken_line_makes_its_record_bad(root, line, cause):
    (root / "labels/c.txt").write_text(line)
    found = fields_of(open_annotated(root, YoloAnnotations()))
    assert isinstance(found[0], dict) and isinstance(found[1], dict) and cause in found[2]


def test_images_without_a_file_have_no_boxes_unless_they_are_most(root, caplog):
    (root / "labels/b.txt").unlink()
    with caplog.at_level(logging.WARNING):
        found = fields_of(open_annotated(root, YoloAnnotations()))
    assert len(found[1]["boxes_normalized"]) == 0 and "b.jpg" in caplog.text
    (root / "labels/a.txt").unlink()
    with pytest.raises(ValueError, match=r"2 of 3 records .* text file"):
        open_annotated(root, YoloAnnotations())
    assert len(open_annotated(root, YoloAnnotations(missing="empty"))) == 3
