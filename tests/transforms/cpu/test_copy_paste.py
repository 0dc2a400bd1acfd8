from __future__ import annotations

import numpy as np

from penstock.transforms.cpu.copy_paste import CopyPaste
from penstock.transforms.cpu.targets import BoxSettings
from tests.contracts.transform import check_transform
from tests.transforms.cpu.numbered_scenes import Alone, bounds, rng, scene, shapes_of

DRAWS = 250


def check_boxes(sample: dict, tolerance: float) -> int:
    """Every box is around the pixels of its shape, and every large shape has its box."""
    mask, shape = sample["mask"], sample["image"].shape
    assert mask.shape == shape[:2]
    for box, pixels in shapes_of(sample):
        assert (box >= 0).all() and (box <= [shape[1], shape[0], shape[1], shape[0]]).all()
        if not pixels.any():
            assert min(box[2] - box[0], box[3] - box[1]) <= tolerance, "a box around nothing"
            continue
        assert np.abs(box - bounds(pixels)).max() <= tolerance, (box, bounds(pixels))
    large = [v for v in np.unique(mask) if v and (mask == v).sum() > 9]
    assert set(large) <= set((sample["box_labels"] + 1).tolist()), "a shape without its box"
    return len(sample["boxes"])


def test_pasting_is_a_function_of_sample_and_rng():
    check_transform(Alone(CopyPaste(share=0.7), [scene(5)]), [scene(1), scene(2)])


def test_boxes_after_pasting_are_around_what_is_seen():
    paste, count = CopyPaste(share=0.8), 0
    for draw in range(DRAWS):
        sample, other = scene(2 * draw), scene(2 * draw + 1)
        made = paste(sample, rng(draw), [other])
        if made is not sample:
            count += check_boxes(made, 1.0)
    assert count > 2 * DRAWS


def test_objects_that_are_covered_are_dropped_and_their_keypoints_hidden():
    small = scene(0, mask=False)
    small |= {"boxes": np.array([[10, 10, 14, 14]], np.float32), "box_labels": np.array([0]),
              "box_areas": np.array([0.0]), "image": np.zeros((20, 20, 3), np.uint8),
              "keypoints": np.array([[12, 12, 2], [1, 1, 2]], np.float32)}  # fmt: skip
    large = {**small, "boxes": np.array([[0, 0, 19, 19]], np.float32),
             "box_labels": np.array([7]), "box_areas": np.array([3.0])}  # fmt: skip
    made = CopyPaste(share=1.0)(small, rng(0), [large])
    assert made["box_labels"].tolist() == [7] and made["box_areas"].tolist() == [3.0]
    assert made["keypoints"][0].tolist() == [12, 12, 1]


def test_a_box_that_leaves_its_image_is_pasted_without_its_outside():
    fields = {"index": 0, "key": "a", "box_labels": np.array([0])}
    small = {
        **fields,
        "image": np.zeros((50, 50, 3), np.uint8),
        "boxes": np.ones((1, 4), np.float32),
    }
    large = {**fields, "image": np.ones((50, 50, 3), np.uint8)}
    large["boxes"] = np.array([[-20, 10, 30, 60]], np.float32)
    for draw in range(5):
        made = CopyPaste(share=1.0)(small, rng(draw), [large])
        assert made["boxes"].tolist() == [bounds(made["image"][..., 0] == 1)]


def test_an_object_covered_in_part_is_kept_above_the_limit_of_visibility():
    half = {"image": np.zeros((20, 20, 3), np.uint8), "index": 0, "key": "a",
            "boxes": np.array([[0, 0, 20, 20]], np.float32),
            "box_labels": np.array([0])}  # fmt: skip
    other = {**half, "boxes": np.array([[0, 0, 12, 20]], np.float32)}
    other["box_labels"] = np.array([1])
    for least, labels in ((0.3, [0, 1]), (0.5, [1])):
        kept = CopyPaste(share=1.0, box_limits=BoxSettings(min_visibility=least))
        made = [kept(half, rng(n), [other])["box_labels"].tolist() for n in range(20)]
        assert labels in made and (least == 0.3 or [0, 1] not in made)
