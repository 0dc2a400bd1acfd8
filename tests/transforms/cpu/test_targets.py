"""Boxes that are too small or hidden, and keypoints of a mirrored image."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import compose
from penstock.core.rng import KeyedRng, Stream
from penstock.transforms.cpu.stack import Stack
from penstock.transforms.cpu.targets import BoxSettings, KeypointSettings
from tests.building import build_step as build

FLIP = {"_target_": "albumentations.HorizontalFlip", "p": 0.5}
CROP = {"_target_": "albumentations.Crop", "x_min": 10, "y_min": 0, "x_max": 60, "y_max": 40}


def rng(position: int):
    return KeyedRng().at(0, 0, position, Stream.AUGMENT)


def sample(**fields):
    return {"image": np.zeros((60, 80, 3), np.uint8), "key": "k", **fields}


def boxes_after(settings: BoxSettings | None) -> list[int]:
    boxes = [[12, 2, 40, 30], [0, 0, 12, 10], [30, 30, 33, 60], [20, 20, 21, 39], [62, 1, 70, 9]]
    given = sample(
        boxes=np.array(boxes, np.float32), box_labels=np.arange(5), box_id=np.arange(5) + 9
    )
    stack = Stack({"crop": CROP}, build_step=build, boxes=settings)
    result = stack(given, rng(0))
    assert (result["box_id"] == result["box_labels"] + 9).all(), "the fields keep in step"
    assert len(result["boxes"]) == len(result["box_labels"])
    return result["box_labels"].tolist()


def test_each_limit_drops_what_it_says():
    assert boxes_after(None) == [0, 1, 2, 3], "one is cut off wholly"
    assert boxes_after(BoxSettings(min_visibility=0.3)) == [0, 2, 3], "a sixth of box 1 is left"
    assert boxes_after(BoxSettings(min_visibility=0.4)) == [0, 3]
    assert boxes_after(BoxSettings(min_area=25)) == [0, 2]
    assert boxes_after(BoxSettings(min_width=2.5)) == [0, 2]
    assert boxes_after(BoxSettings(min_height=15)) == [0, 3]


def test_rounding_hides_no_part_of_a_box():
    boxes = np.random.default_rng(0).uniform(0, 30, (40, 4)).astype(np.float32)
    boxes[:, 2:] += boxes[:, :2] + 1
    nodes = {"resize": {"_target_": "transform/resize", "size": [77, 91]}}
    stack = Stack(nodes, build_step=build, boxes=BoxSettings(min_visibility=1.0))
    given = sample(boxes=boxes[(boxes[:, 3] <= 60)])
    assert len(stack(given, rng(0))["boxes"]) == len(given["boxes"]) > 20


POINTS = np.array([[40, 20, 2], [10, 5, 2], [60, 6, 1]], np.float32)


@pytest.mark.parametrize(
    ("steps", "swapped"),
    [
        (["HorizontalFlip"], True),
        (["HorizontalFlip", "VerticalFlip"], False),  # that is a turn by 180 degrees
        (["Transpose"], True),
        (["RandomRotate90"], False),
    ],
)
def test_mirrors_swap_keypoints_and_turns_do_not(steps, swapped):
    nodes = {f"s{i}": {"_target_": f"albumentations.{n}", "p": 1.0} for i, n in enumerate(steps)}
    stack = Stack(nodes, build_step=build, keypoints=KeypointSettings(swaps=[[1, 2]]))
    plain = Stack(nodes, build_step=build)
    for position in range(8):
        moved = plain(sample(keypoints=POINTS), rng(position))["keypoints"]
        points = stack(sample(keypoints=POINTS), rng(position))["keypoints"]
        assert (points == (moved[[0, 2, 1]] if swapped else moved)).all()


def test_several_objects_swap_each_their_own():
    settings = KeypointSettings(swaps=[[0, 2]], per_object=3)
    flip = {"flip": {**FLIP, "p": 1.0}}
    two = np.concatenate([POINTS, POINTS + np.array([1, 1, 0])]).astype(np.float32)
    stack, plain = Stack(flip, build_step=build, keypoints=settings), Stack(flip, build_step=build)
    points, moved = (each(sample(keypoints=two), rng(0))["keypoints"] for each in (stack, plain))
    assert (points == moved[[2, 1, 0, 5, 4, 3]]).all()
    assert stack(sample(keypoints=two[:0]), rng(0))["keypoints"].shape == (0, 3)
    with pytest.raises(ValueError, match=r"has 4 keypoints, 3 for each object"):
        stack(sample(keypoints=two[:4]), rng(0))


FACE = ("nose", "left_eye", "right_eye", "L_Ear", "R_Ear", "upright")


@pytest.mark.parametrize(
    ("swaps", "names", "settled"),
    [
        (None, FACE, [[1, 2], [3, 4]]),
        (None, ("centre", "top", "right", "bottom", "left"), [[2, 4]]),
        (None, ("LeftHip", "RightHip", "kneeL", "knee-r", "knee-l"), [[0, 1], [3, 4]]),
        (None, ("00", "01"), None),
        (None, None, None),
        ([["R_Ear", "nose"], [1, "right_eye"]], FACE, [[4, 0], [1, 2]]),
        ([[0, 5]], FACE, [[0, 5]]),
        ([], FACE, []),
    ],
)
def test_pairs_follow_from_names(swaps, names, settled):
    found = KeypointSettings(swaps=swaps).settled(names)
    assert found.swaps == settled and found.per_object == (len(names) if names else None)
    assert found.settled(names) == found


def test_a_mirror_of_unnamed_keypoints_is_refused():
    given = sample(keypoints=POINTS)
    flip = {"flip": {**FLIP, "p": 1.0}}
    stack = Stack(flip, build_step=build, keypoints=KeypointSettings())
    with pytest.raises(ValueError, match=r"mirrored .* set augment\.keypoints\.swaps=\[\[0,1\]\]"):
        stack(given, rng(0))
    stack.name_keypoints(("nose", "left", "right"))
    plain = Stack(flip, build_step=build)(given, rng(0))["keypoints"]
    assert (stack(given, rng(0))["keypoints"] == plain[[0, 2, 1]]).all()
    none = Stack(flip, build_step=build, keypoints=KeypointSettings(swaps=[]))
    assert (none(given, rng(0))["keypoints"] == plain).all()


@pytest.mark.parametrize("name", ["imagenet", "keypoints", "light", "mosaic"])
def test_the_task_swaps_keypoints_with_any_augmentation(name):
    settings = compose(["task=keypoints", f"augment={name}"])["augment"]["keypoints"]
    assert settings == {"_target_": "settings/keypoints", "swaps": None, "per_object": None}


@pytest.mark.parametrize("swaps", [[[1]], [[1, 1]], [[0, -1]], [[0, 1], [1, 2]]])
def test_invalid_pairs_are_refused(swaps):
    with pytest.raises(ValueError, match=r"augment\.keypoints\.swaps"):
        KeypointSettings(swaps=swaps, per_object=5)


def test_a_point_that_is_cut_off_is_not_seen_again():
    """Its place is in the image again behind a border; what was there is not."""
    pad = {"_target_": "albumentations.Pad", "padding": 20, "p": 1.0}
    points = np.array([[5, 20, 2], [15, 20, 1], [30, 20, 0], [-3, 20, 2], [62, 0, 2]], np.float32)
    stack = Stack({"crop": CROP, "pad": pad}, build_step=build)
    moved = stack(sample(keypoints=points), rng(0))["keypoints"]
    assert moved[:, 2].tolist() == [0, 1, 0, 0, 0]
    assert (moved[:, :2] == points[:, :2] + [10, 20]).all()


def test_invalid_boxes_are_dropped_with_their_fields():
    """From a storage that does not look at them, as label files' are."""
    nan = float("nan")
    boxes = [
        [10, 5, 10, 9], [30, 20, 20, 30], [nan, 5, 20, 9], [20, 5, nan, 9], [200, 5, 230, 9],
        [-9, -9, -2, -3], [-4, -4, 3, 2], [70, 50, 90, 70], [20, 20, 21, 21],
    ]  # fmt: skip
    given = sample(boxes=np.array(boxes, np.float32), box_labels=np.arange(9))
    for name in ("HorizontalFlip", "Affine", "NoOp"):
        step = {"_target_": f"albumentations.{name}", "p": 1.0}
        result = Stack({"step": step}, build_step=build)(given, rng(0))
        assert result["box_labels"].tolist() == [6, 7, 8], name
        assert len(result["boxes"]) == len(result["box_labels"])
        assert np.isfinite(result["boxes"]).all()
        assert (result["boxes"] >= 0).all() and (result["boxes"] <= [80, 60, 80, 60]).all()
