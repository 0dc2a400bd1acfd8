from __future__ import annotations

import numpy as np
import pytest

from penstock.transforms.cpu.copy_paste import CopyPaste
from penstock.transforms.cpu.targets import BoxSettings
from tests.contracts.transform import check_transform
from tests.transforms.cpu.numbered_scenes import Alone, bounds, rng, scene

DRAWS = 250


def check_boxes(sample: dict, tolerance: float) -> int:
    """Every box is around the pixels of its shape, and every large shape has its box."""
    mask, shape = sample["mask"], sample["image"].shape
    assert mask.shape == shape[:2]
    assert len(sample["boxes"]) == len(sample["box_labels"]) == len(sample["box_areas"])
    assert (sample["boxes"] >= 0).all()
    assert (sample["boxes"] <= [shape[1], shape[0], shape[1], shape[0]]).all()
    for box, label, area in zip(
        sample["boxes"], sample["box_labels"], sample["box_areas"], strict=True
    ):
        number, row = divmod(int(label), 100)
        assert area == row + 0.5 * number, "a row of another field is out of step"
        pixels = mask == label + 1
        if not pixels.any():
            assert min(box[2] - box[0], box[3] - box[1]) <= tolerance, "a box around nothing"
            continue
        assert np.abs(box - bounds(pixels)).max() <= tolerance, (box, bounds(pixels))
    large = [v for v in np.unique(mask) if v and (mask == v).sum() > 9]
    assert set(large) <= set((sample["box_labels"] + 1).tolist()), "a shape without its box"
    return len(sample["boxes"])


def test_pasting_is_a_function_of_sample_and_rng():
    check_transform(Alone(CopyPaste(share=0.7), [scene(5)]), [scene(1), scene(2)])


@pytest.mark.parametrize("masks", [True, False])
def test_boxes_after_pasting_are_around_what_is_seen(masks):
    """Of both images; the witness is a mask that numbers the shapes."""
    paste = CopyPaste(share=0.8)
    count = 0
    for draw in range(DRAWS):
        sample, other = scene(2 * draw), scene(2 * draw + 1)
        if not masks:  # then all pixels of a box are the object's
            sample, other = _filled(sample), _filled(other)
            for one in (sample, other):
                one["witness"] = one.pop("mask")
        made = paste(sample, rng(draw), [other])
        if not masks:
            assert "mask" not in made
            made = {**made, "mask": _pasted_witness(paste, sample, other, draw)}
        if made is not sample:
            count += check_boxes(made, 1.0)
    assert count > 2 * DRAWS


def _filled(sample: dict) -> dict:
    """The sample with rectangles in its mask; shapes whose boxes meet are left out."""
    ids, rows = np.zeros_like(sample["mask"]), []
    for row, box in enumerate(sample["boxes"].astype(int)):
        part = ids[box[1] : box[3], box[0] : box[2]]
        if not part.any():
            part[:] = sample["box_labels"][row] + 1
            rows.append(row)
    return {**sample, "mask": ids, **{k: sample[k][rows] for k in ("boxes", "box_labels",
            "box_areas")}}  # fmt: skip


def _pasted_witness(paste, sample: dict, other: dict, draw: int) -> np.ndarray:
    """The mask that the same draws would give, as three equal channels of an image."""
    given = [
        {**one, "image": np.repeat(one["witness"][:, :, None], 3, 2)} for one in (sample, other)
    ]
    return paste(given[0], rng(draw), given[1:])["image"][:, :, 0]


def test_pasted_pixels_are_those_of_the_other_image_and_no_others_change():
    paste = CopyPaste(share=1.0)
    for draw in range(50):
        sample, other = scene(2 * draw), scene(2 * draw + 1)
        made = paste(sample, rng(draw), [other])
        changed = (made["mask"] != sample["mask"]) | (made["mask"] >= 100 * (2 * draw + 1))
        assert np.array_equal(made["image"][~changed], sample["image"][~changed])
        colours = set(map(tuple, other["image"].reshape(-1, 3).tolist()))
        assert set(map(tuple, made["image"][changed].tolist())) <= colours


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


def test_pasting_needs_boxes():
    bare = {"image": np.zeros((9, 9, 3), np.uint8), "key": "a"}
    with pytest.raises(ValueError, match=r"boxes .*'a'"):
        CopyPaste()(bare, rng(0), [bare])


def test_without_a_partner_nothing_is_pasted():
    sample = scene(3)
    assert CopyPaste()(sample, rng(0), []) is sample
    assert {CopyPaste(p=0.5).partners(rng(n)) for n in range(99)} == {0, 1}
