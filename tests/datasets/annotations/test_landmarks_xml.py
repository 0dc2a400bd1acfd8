"""Landmarks of dlib's imglab: what becomes of its elements."""

from __future__ import annotations

import re

import cv2
import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.datasets.annotations.landmarks_xml import LandmarksXml
from tests.contracts.storage import check_storage
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images

NAMES = ["a.jpg", "b.jpg"]
BOX = "<box top='20' left='10' width='30' height='40'><label>face</label>{}</box>"
PARTS = "<part name='10' x='12' y='25'/><part name='2' x='30.5' y='-1'/>"


def xml(*boxes):
    images = (
        f"<image file='{name}' width='90' height='80'>{box}</image>"
        for name, box in zip(NAMES, boxes, strict=True)
    )
    return (
        "<?xml version='1.0' encoding='ISO-8859-1'?>\n<?xml-stylesheet type='text/xsl' "
        f"href='image_metadata_stylesheet.xsl'?>\n<dataset><images>{''.join(images)}"
        "</images></dataset>"
    )


@pytest.fixture
def root(tmp_path):
    write_images(tmp_path, NAMES)
    return tmp_path


def opened(root, text, **options):
    (root / "faces.xml").write_text(text)
    return open_annotated(root, LandmarksXml("faces.xml", **options))


def test_it_is_a_storage(root):
    text = xml(BOX.format(PARTS), BOX.format("<part name='10' x='1' y='2'/>"))
    points = {"a.jpg": [[30.5, -1, 2], [12, 25, 2]], "b.jpg": [[0, 0, 0], [1, 2, 2]]}
    wanted = [
        (key, {
            "image": b"image " + key.encode(),
            "boxes": np.array([[10, 20, 40, 60]], np.float32),
            "box_labels": np.array([0], np.int64),
            "keypoints": np.array(rows, np.float32),
        })
        for key, rows in points.items()
    ]  # fmt: skip
    index = opened(root, text).index
    assert index.field_classes == {"box_labels": ("face",), "keypoints": ("2", "10")}
    check_storage(lambda: open_annotated(root, LandmarksXml("faces.xml")), wanted)


def test_boxes_to_be_ignored_are_left_out_unless_they_are_kept(root):
    text = xml(BOX.format(PARTS) + BOX.replace("<box", "<box ignore='1'").format(""), "")
    assert len(fields_of(opened(root, text))[0]["boxes"]) == 1
    kept = fields_of(opened(root, text, ignored="keep"))
    assert kept[0]["keypoints"].shape == (4, 3) and kept[1]["keypoints"].shape == (0, 3)


@pytest.mark.parametrize(
    ("box", "cause"),
    [
        (BOX.format("<part name='2' x='left' y='1'/>"), "part '2' has x 'left', expected a number"),
        ("<box top='1' left='2' width='3'/>", "a box has height None, expected a number"),
    ],
)
def test_a_broken_box_makes_its_record_bad(root, box, cause):
    found = fields_of(opened(root, xml(BOX.format(PARTS), box)))
    assert isinstance(found[0], dict) and re.search(cause, found[1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<dataset/>", "<dataset> has no <image>; expected"),
        ("no xml", "is no XML of imglab: syntax error"),
        ("<!DOCTYPE x><dataset/>", "document type"),
        ("<d><image file='a.jpg'/><image file='a.jpg'/></d>", "'a.jpg' stands twice"),
        ("<d><image/></d>", "image 0 names no file"),
        ("<d><image file='a.jpg'/></d>", "1 of 2 records have no entry"),
    ],
)
def test_a_file_of_something_else_is_refused(root, text, said):
    with pytest.raises(ValueError, match=said):
        opened(root, text)


def test_it_is_what_the_task_of_keypoints_takes(tmp_path):
    for name in NAMES:
        cv2.imwrite(str(tmp_path / name), np.zeros((80, 90, 3), np.uint8))
    (tmp_path / "faces.xml").write_text(xml(BOX.format(PARTS), BOX.format(PARTS)))
    typed = ["task=keypoints", "dataset/annotations=landmarks_xml", "augment=as_is",
             "loader=inline", "loader.batch_size=2", "dataset.annotations.path=faces.xml",
             "dataset.val_fraction=0", f"dataset.storage.path={tmp_path}",
             "dataset.storage.labels=null"]  # fmt: skip
    with build_loader(compose(typed), "train") as loader:
        batch = next(iter(loader))
        assert loader.classes_of("keypoints") == ("2", "10")
    assert batch["keypoints"].shape == (2, 2, 3) and "boxes" not in batch
