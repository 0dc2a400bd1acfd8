from __future__ import annotations

import numpy as np
import pytest

from penstock.transforms.cpu.mosaic import Mosaic
from tests.contracts.transform import check_transform
from tests.transforms.cpu.numbered_scenes import Alone, bounds, rng, scene, shapes_of

DRAWS = 250


def test_mosaic_is_a_function_of_sample_and_rng():
    mosaic = Mosaic(height=48, width=64, scale=(0.5, 2.0))
    check_transform(Alone(mosaic, [scene(n) for n in (4, 5, 6)]), [scene(1), scene(2)])


def test_keypoints_of_a_mosaic_land_on_their_shapes():
    mosaic = Mosaic(height=240, width=250, scale=(1.0, 2.0))
    seen = 0
    for draw in range(100):
        samples = [scene(4 * draw + n) for n in range(4)]
        made = mosaic(samples[0], rng(draw), samples[1:])
        assert made["keypoints"].shape == (4 * 5, 3)
        for row, (x, y, visible) in enumerate(made["keypoints"].tolist()):
            inside = 0 <= x < 250 and 0 <= y < 240
            assert visible == (2 if inside else 0)
            if not inside or row % 5 == 0:  # a ring does not cover its centre
                continue
            number = 4 * draw + row // 5
            near = made["mask"][max(int(y) - 1, 0) : int(y) + 3, max(int(x) - 1, 0) : int(x) + 3]
            assert (near == 100 * number + 1).any()
            seen += 1
    assert seen > 500


def test_boxes_of_a_mosaic_are_around_the_pixels_of_their_shapes():
    # No image is made smaller here, so that no corner of a shape falls between two pixels.
    mosaic = Mosaic(height=240, width=250, center=(0.0, 1.0), scale=(1.0, 1.9))
    count = 0
    for draw in range(DRAWS):
        samples = [scene(4 * draw + n) for n in range(4)]
        made = mosaic(samples[0], rng(draw), samples[1:])
        height, width = made["image"].shape[:2]
        for box, pixels in shapes_of(made):
            if not pixels.any():  # the cut left a corner of its box
                continue
            error = box - bounds(pixels)
            # Of a shape that the edge cuts, the box's other sides may lie beyond what is seen.
            whole = (box > 0).all() and (box < [width, height, width, height]).all()
            assert np.abs(error).max() <= 1 if whole else (error <= [1, 1, np.inf, np.inf]).all()
            count += bool(whole)
        seen = {v for v in np.unique(made["mask"]).tolist() if v}
        assert seen <= set((made["box_labels"] + 1).tolist()), "a shape without its box"
    assert count > DRAWS


def test_each_image_of_a_mosaic_touches_the_point():
    mosaic = Mosaic(height=100, width=100, scale=(2.0, 2.0), center=(0.5, 0.5), fill=7)
    flat = [
        {"image": np.full((50, 50, 3), value, np.uint8), "index": value, "key": str(value)}
        for value in (10, 20, 30, 40)
    ]
    image = mosaic(flat[0], rng(0), flat[1:])["image"]
    assert [image[y, x, 0] for y, x in ((0, 0), (0, 99), (99, 0), (99, 99))] == [10, 20, 30, 40]
    assert [image[y, x, 0] for y, x in ((49, 49), (49, 50), (50, 49), (50, 50))] == [10, 20, 30, 40]
    half = Mosaic(height=100, width=100, scale=(1.0, 1.0), center=(1.0, 1.0), fill=7)
    image = half(flat[0], rng(0), flat[1:])["image"]
    assert (image[50:, 50:] == 10).all() and (image[:50] == 7).all()


def test_boxes_and_keypoints_outside_of_their_image_do_not_reach_into_its_neighbour():
    one = {
        "image": np.zeros((50, 50, 3), np.uint8),
        "boxes": np.array([[-9, -9, 70, 70]], np.float32),
        "keypoints": np.array([[-3, 5, 2], [3, 5, 2]], np.float32),
    }
    mosaic = Mosaic(height=100, width=100, scale=(1.0, 1.0), center=(0.5, 0.5))
    made = mosaic(one, rng(0), [one] * 3)
    whole = [[0, 0, 50, 50], [50, 0, 100, 50], [0, 50, 50, 100], [50, 50, 100, 100]]
    assert made["boxes"].tolist() == whole
    assert made["keypoints"][:, 2].tolist() == [0, 2] * 4


def test_samples_without_boxes_and_other_channels():
    mosaic = Mosaic(height=80, width=80)
    empty = {**scene(1), "boxes": np.empty((0, 4), np.float32), "box_labels": np.empty(0, int),
             "box_areas": np.empty(0)}  # fmt: skip
    made = mosaic(empty, rng(0), [empty] * 3)
    assert made["boxes"].shape == (0, 4) and made["box_labels"].shape == (0,)
    grey = {**scene(2), "image": scene(2)["image"][:, :, :1]}
    assert mosaic(grey, rng(0), [grey] * 3)["image"].shape == (80, 80, 1)
    bare = {k: v for k, v in scene(2).items() if k != "mask"}
    masks = {**scene(3), "box_masks": np.zeros((1, 3, 3))}
    for first, other, said in (
        (scene(1), grey, "channels must agree"),
        ({**scene(1), "mask": scene(1)["mask"].astype(np.uint16)}, scene(2), "mask of .*int64"),
        (masks, empty, "'3' has .*box_masks"),
        (scene(1), bare, "'2' has .*expected image, mask"),
    ):
        with pytest.raises(ValueError, match=said):
            mosaic(first, rng(0), [other] * 3)
    assert mosaic(empty, rng(0), []) is empty
