"""YOLO's lines of keypoints: the stated box, and the keypoints that `kpt_shape` announces."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from penstock import build_loader, compose

BASE = ["dataset/annotations=yolo", "augment=as_is", "loader=inline", "loader.batch_size=2",
        "dataset.val_fraction=0", "loader.max_error_rate=0"]  # fmt: skip
BOX = "0 0.5 0.5 0.4 0.6"
SHARES = [(0.4, 0.4), (0.5, 0.5), (0.6, 0.7)]
PLACES = [[32, 16], [40, 20], [48, 28]]  # in 80 x 40 pixels


@pytest.fixture
def root(tmp_path):
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
    for name in ("a", "b"):
        cv2.imwrite(str(tmp_path / "images" / f"{name}.png"), np.zeros((40, 80, 3), np.uint8))
    return tmp_path


def write(root, line, shape=None, names="names: [cat]\n"):
    for name in ("a", "b"):
        (root / "labels" / f"{name}.txt").write_text(f"{line}\n")
    if shape is not None:
        (root / "data.yaml").write_text(f"{names}kpt_shape: {shape}\n")


def line_of(*visibilities):
    """A box and its keypoints, with a visibility for each if there are any."""
    values = [BOX]
    for number, point in enumerate(SHARES):
        values += [*map(str, point), *map(str, visibilities[number : number + 1])]
    return " ".join(values)


def batch_of(root, *typed):
    with build_loader(compose([*BASE, f"dataset.storage.path={root / 'images'}", *typed])) as one:
        [batch] = one
    return batch


@pytest.mark.parametrize(
    ("line", "shape", "visible"),
    [
        (line_of(), "[3, 2]", [2, 2, 2]),
        (line_of(2, 1, 0), "[3, 3]", [2, 1, 0]),
    ],
)
def test_detection_has_the_stated_box(root, line, shape, visible):
    write(root, line, shape)
    batch = batch_of(root, "task=detection")
    for boxes, points in zip(batch["boxes"], batch["keypoints"], strict=True):
        assert np.allclose(np.asarray(boxes), [[24, 8, 56, 32]])
        assert np.allclose(np.asarray(points), np.column_stack([PLACES, visible]))


def test_keypoints_have_their_places_and_names(root):
    write(root, line_of(2, 1, 0), "[3, 3]\nkpt_names: {0: [nose, left_eye, right_eye]}")
    batch = batch_of(root, "task=keypoints")
    assert batch["keypoints"].shape == (2, 3, 3) and "boxes" not in batch
    assert np.allclose(batch["keypoints"][0, :, :2], PLACES)
    config = compose([*BASE, "task=keypoints", f"dataset.storage.path={root / 'images'}"])
    with build_loader(config) as loader:
        names = loader.dataset.index.field_classes["keypoints"]
    assert tuple(names) == ("nose", "left_eye", "right_eye")


def test_a_keypoint_at_the_corner_is_not_labelled(root):
    write(root, f"{BOX} 0 0 0.5 0.5", "[2, 2]")
    assert np.allclose(batch_of(root, "task=keypoints")["keypoints"][0], [[0, 0, 0], [40, 20, 2]])


@pytest.mark.parametrize(
    ("line", "shape", "said"),
    [
        (BOX, "[3, 2]", "expected 10"),
        (line_of(2, 2, 2), "[3, 2]", "expected 10"),
        (line_of(2, 2, 2), "[2, 3]", "expected 10"),
        (line_of(2, 7, 2), "[3, 3]", "visibility 7"),
        (line_of(2, 2, 2), None, "kpt_shape"),
        (line_of(), "[3]", r"\[3\]"),
        (line_of(), "[3, 4]", r"\[3, 4\]"),
        (line_of(), "three", "three"),
    ],
)
def test_lines_of_another_form_are_refused(root, line, shape, said):
    write(root, line, shape)
    with pytest.raises(ValueError, match=said):
        batch_of(root, "task=detection")


def test_what_may_be_a_polygon_or_keypoints_is_refused_until_the_file_states_it(root):
    write(root, line_of())
    with pytest.raises(ValueError, match=r"kpt_shape: \[3, 2\].*kpt_shape: null"):
        batch_of(root, "task=detection")
    write(root, line_of(), "[3, 2]")
    assert np.allclose(np.asarray(batch_of(root, "task=detection")["boxes"][0]), [[24, 8, 56, 32]])
    write(root, line_of(), "null")
    found = np.asarray(batch_of(root, "task=detection")["boxes"][0])
    assert np.allclose(found, [[0.4 * 80, 0.4 * 40, 0.6 * 80, 0.7 * 40]])


@pytest.mark.parametrize(
    "lines",
    [
        "0 0.1 0.1 0.9 0.1 0.9 0.9 0.5 0.95 0.1 0.9",  # corners outside of such a box
        "0 0.4 0.4 0.6 0.4 0.6 0.6 0.4 0.6",  # an oriented box
        f"{line_of()}\n0 0.4 0.4 0.5 0.4 0.6 0.5 0.5 0.6 0.4 0.6 0.4 0.5",  # of two lengths
    ],
)
def test_polygons_need_no_statement(root, lines):
    write(root, lines)
    points = np.array([float(word) for word in lines.split("\n")[0].split()[1:]]).reshape(-1, 2)
    box = np.concatenate([points.min(0), points.max(0)]) * (80, 40, 80, 40)
    assert np.allclose(np.asarray(batch_of(root, "task=detection")["boxes"][0])[0], box)
