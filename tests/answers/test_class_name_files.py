"""Files of class names: names come without blank lines at the end and byte-order marks."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from penstock import build_loader, compose

BASE = ["augment=none", "loader=inline", "dataset.val_fraction=0", "loader.batch_size=2"]


def class_names(typed, field=None):
    with build_loader(compose([*BASE, *typed])) as loader:
        dataset = loader.dataset
        return dataset.index.field_classes[field] if field else dataset.index.class_names


@pytest.fixture
def arrays(tmp_path):
    np.save(tmp_path / "image.npy", np.zeros((2, 4, 4, 3), np.uint8))
    np.save(tmp_path / "label.npy", np.array([0, 1]))
    return tmp_path


@pytest.fixture
def yolo(tmp_path):
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
    for name in ("a", "b"):
        cv2.imwrite(str(tmp_path / "images" / f"{name}.png"), np.zeros((8, 8, 3), np.uint8))
        (tmp_path / "labels" / f"{name}.txt").write_text("\ufeff1 0.5 0.5 0.5 0.5\n", "utf-8")
    return tmp_path


ENDS = ["cat\ndog", "cat\ndog\n", "cat\ndog\n\n \n", "\ufeffcat\ndog\n", "\ufeffcat\r\ndog\r\n\r\n"]


@pytest.mark.parametrize("text", ENDS)
def test_names_beside_arrays(arrays, text):
    (arrays / "classes.txt").write_bytes(text.encode())
    typed = ["dataset=memmap", f"dataset.storage.path={arrays}"]
    assert tuple(class_names(typed)) == ("cat", "dog")


@pytest.mark.parametrize("text", ENDS)
def test_names_beside_boxes(yolo, text):
    (yolo / "classes.txt").write_bytes(text.encode())
    typed = [
        "task=detection",
        "dataset/annotations=yolo",
        f"dataset.storage.path={yolo / 'images'}",
    ]
    assert tuple(class_names(typed, "box_labels")) == ("cat", "dog")
    (yolo / "classes.txt").unlink()
    (yolo / "data.yaml").write_text("\ufeffnames: [ant, bee]\n", "utf-8")
    assert tuple(class_names(typed, "box_labels")) == ("ant", "bee")


def test_a_blank_line_between_names_is_refused_with_its_number(arrays, yolo):
    (arrays / "classes.txt").write_text("cat\n\ndog\n")
    with pytest.raises(ValueError, match=r"classes\.txt: line 2"):
        class_names(["dataset=memmap", f"dataset.storage.path={arrays}"])
    with pytest.raises(ValueError, match=r"classes\.txt: line 2"):
        class_names(["task=detection", "dataset/annotations=yolo",
                     f"dataset.storage.path={yolo / 'images'}"])  # fmt: skip


def test_a_table_of_labels_may_begin_with_a_byte_order_mark(yolo):
    for name, text in (("one.csv", "image,label\na.png,cat\nb.png,dog\n"),
                       ("several.csv", "image,labels\na.png,cat\nb.png,dog\n")):  # fmt: skip
        (yolo / name).write_text("\ufeff" + text, "utf-8")
    typed = [f"dataset.storage.path={yolo / 'images'}"]
    single = [*typed, f"dataset.storage.labels={yolo / 'one.csv'}",
              "dataset.storage.label_columns=[image,label]"]  # fmt: skip
    assert tuple(class_names(single)) == ("cat", "dog")
    several = ["task=multilabel", *typed, f"dataset.annotations.path={yolo / 'several.csv'}"]
    assert tuple(class_names(several, "labels")) == ("cat", "dog")
