"""Berkeley's keypoints of Pascal VOC: what becomes of its elements."""

from __future__ import annotations

import re

import cv2
import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.datasets.annotations.voc_keypoints import VocKeypoints
from tests.contracts.storage import check_storage
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images

NAMES = ["2007_01.jpg", "2007_02.jpg"]
BOUNDS = '<visible_bounds height="40.00" width="30.00" xmin="11" ymin="21"/>'
NOSE = '<keypoint name="Nose" visible="1" x="13.5" y="26" z="0.00" zorder="0"/>'
EYE = '<keypoint name="L_Eye" visible="0" x="15" y="22" z="1.00" zorder="0"/>'


def xml(image, points, bounds=BOUNDS, category="cat"):
    return (
        f"<annotation><image>{image}</image><voc_id>1</voc_id><category>{category}</category>"
        f"{bounds}<keypoints>{points}</keypoints></annotation>"
    )


@pytest.fixture
def root(tmp_path):
    write_images(tmp_path, NAMES)
    write(tmp_path, "2007_01_1", xml("2007_01", NOSE + EYE))
    write(tmp_path, "2007_02_1", xml("2007_02", NOSE))
    return tmp_path


def write(root, name, text):
    (root / "annotations" / "cat").mkdir(parents=True, exist_ok=True)
    (root / "annotations" / "cat" / f"{name}.xml").write_text(text)


def opened(root, **options):
    return open_annotated(root, VocKeypoints(**options))


def test_it_is_a_storage(root):
    points = {NAMES[0]: [[14, 21, 1], [12.5, 25, 2]], NAMES[1]: [[0, 0, 0], [12.5, 25, 2]]}
    wanted = [
        (key, {
            "image": b"image " + key.encode(),
            "boxes": np.array([[10, 20, 40, 60]], np.float32),
            "box_labels": np.array([0], np.int64),
            "keypoints": np.array(rows, np.float32),
        })
        for key, rows in points.items()
    ]  # fmt: skip
    assert opened(root).index.field_classes == {"box_labels": ("cat",),
                                                "keypoints": ("L_Eye", "Nose")}  # fmt: skip
    check_storage(lambda: opened(root), wanted)


def test_pixels_may_be_counted_from_0(root):
    first = fields_of(opened(root, one_based=False))[0]
    assert first["boxes"].tolist() == [[11, 21, 41, 61]]
    assert first["keypoints"][1].tolist() == [13.5, 26, 2]


def test_objects_of_an_image_stand_in_the_order_of_their_numbers(root):
    for number in (10, 2):
        place = f'<visible_bounds height="9" width="9" xmin="{number + 1}" ymin="1"/>'
        write(root, f"2007_01_{number}", xml("2007_01", NOSE, place))
    assert fields_of(opened(root))[0]["boxes"][:, 0].tolist() == [10, 2, 10]
    assert fields_of(opened(root))[0]["keypoints"].shape == (6, 3)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (xml("2007_02", NOSE.replace("26", "low")), "'Nose' has y 'low', expected a number"),
        (xml("2007_02", NOSE, bounds=""), "object 0: has no visible_bounds"),
        (xml("2007_02", NOSE, category=" "), "object 0: has no <category>"),
        (xml("2007_02", NOSE, BOUNDS.replace("30.00", "")), "visible_bounds has width ''"),
    ],
)
def test_a_broken_object_makes_its_record_bad(root, text, cause):
    write(root, "2007_02_1", text)
    found = fields_of(opened(root))
    assert isinstance(found[0], dict) and re.search(cause, found[1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<annotation/>", r"cat/2007_02_1.xml: <annotation> names no <image>; expected"),
        ("no xml", "is no XML: syntax error"),
        ("<!DOCTYPE x><annotation/>", "document type"),
        (xml("2007_03", NOSE), "1 of 2 records have no XML"),
    ],
)
def test_a_file_of_something_else_is_refused(root, text, said):
    write(root, "2007_02_1", text)
    with pytest.raises(ValueError, match=said):
        opened(root)


def test_it_is_what_the_task_of_keypoints_takes(root):
    for name in NAMES:
        cv2.imwrite(str(root / name), np.zeros((80, 90, 3), np.uint8))
    typed = ["task=keypoints", "dataset/annotations=voc_keypoints", "augment=as_is",
             "loader=inline", "loader.batch_size=2", "dataset.annotations.path=annotations/cat",
             "dataset.val_fraction=0", f"dataset.storage.path={root}",
             "dataset.storage.labels=null"]  # fmt: skip
    with build_loader(compose(typed), "train") as loader:
        batch = next(iter(loader))
        assert loader.classes_of("keypoints") == ("L_Eye", "Nose")
    assert batch["keypoints"].shape == (2, 2, 3) and "boxes" not in batch
