from __future__ import annotations

import cv2
import numpy as np
import pytest

from datasets.demo import draw_scene
from pipeline.rng import KeyedRng
from tests.contracts.transform import check_transform
from transforms.cpu.copy_paste import CopyPaste
from transforms.cpu.mosaic import Mosaic
from transforms.target_settings import BoxSettings

DRAWS = 250


def scene(number: int, *, split: int = 0, mask: bool = True) -> dict:
    """A demo image whose mask numbers its shapes, so that each of them can be told apart."""
    drawn = draw_scene(split, number)
    ids = np.zeros(drawn.mask.shape, np.int64)
    for row, (box, label) in enumerate(zip(drawn.boxes, drawn.box_labels, strict=True)):
        # The boxes of two shapes may meet; the shapes do not.
        _, parts = cv2.connectedComponents((drawn.mask == label + 1).astype(np.uint8))
        own = [p for p in range(1, parts.max() + 1) if bounds(parts == p) == box]
        assert len(own) == 1
        ids[parts == own[0]] = 100 * number + row + 1
    sample = {
        "image": drawn.image,
        "boxes": np.array(drawn.boxes, np.float32).reshape(-1, 4),
        "box_labels": 100 * number + np.arange(len(drawn.boxes)),
        "box_areas": np.arange(len(drawn.boxes)) + 0.5 * number,
        "keypoints": np.array(drawn.keypoints, np.float32).reshape(-1, 3),
        "label": drawn.label,
        "key": str(number),
        "index": number,
    }
    return {**sample, "mask": ids} if mask else sample


def rng(position: int):
    return KeyedRng().at(3, 0, position)


class Alone:
    """A transform of samples alone, with the others that it is tested with."""

    def __init__(self, transform, partners: list[dict]) -> None:
        self.transform, self.partners = transform, partners

    def __call__(self, sample, draws):
        return self.transform(sample, draws, self.partners)


def bounds(pixels: np.ndarray) -> list[int]:
    rows, columns = np.flatnonzero(pixels.any(1)), np.flatnonzero(pixels.any(0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


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


def test_mosaic_is_a_function_of_sample_and_rng():
    mosaic = Mosaic(height=48, width=64, scale=(0.5, 2.0))
    check_transform(Alone(mosaic, [scene(n) for n in (4, 5, 6)]), [scene(1), scene(2)])


def test_boxes_of_a_mosaic_are_around_the_pixels_of_their_shapes():
    # No image is made smaller here, so that no corner of a shape falls between two pixels.
    mosaic = Mosaic(height=240, width=250, center=(0.0, 1.0), scale=(1.0, 1.9))
    count = 0
    for draw in range(DRAWS):
        samples = [scene(4 * draw + n) for n in range(4)]
        made = mosaic(samples[0], rng(draw), samples[1:])
        height, width = made["image"].shape[:2]
        assert len(made["boxes"]) == len(made["box_labels"]) == len(made["box_areas"])
        for box, label, area in zip(
            made["boxes"], made["box_labels"], made["box_areas"], strict=True
        ):
            number, row = divmod(int(label), 100)
            assert area == row + 0.5 * number, "a row of another field is out of step"
            pixels = made["mask"] == label + 1
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
            if not inside or row % 5 == 0:  # the centre of a ring is no part of it
                continue
            number = 4 * draw + row // 5
            near = made["mask"][max(int(y) - 1, 0) : int(y) + 3, max(int(x) - 1, 0) : int(x) + 3]
            assert (near == 100 * number + 1).any()
            seen += 1
    assert seen > 500


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


def test_small_boxes_of_a_mosaic_are_dropped_as_the_limits_say():
    limits = BoxSettings(min_area=200.0, min_visibility=0.5, min_width=5)
    kept = Mosaic(height=80, width=80, box_limits=limits)
    loose = Mosaic(height=80, width=80)
    fewer = 0
    for draw in range(50):
        samples = [scene(4 * draw + n) for n in range(4)]
        made, all_boxes = (m(samples[0], rng(draw), samples[1:]) for m in (kept, loose))
        assert np.array_equal(made["image"], all_boxes["image"])
        sides = made["boxes"][:, 2:] - made["boxes"][:, :2]
        assert (sides.prod(1) >= 200).all() and (sides[:, 0] >= 5).all()
        assert set(made["box_labels"]) <= set(all_boxes["box_labels"])
        fewer += len(all_boxes["boxes"]) - len(made["boxes"])
    assert fewer > 50


def test_samples_without_boxes_and_other_channels():
    mosaic = Mosaic(height=80, width=80)
    empty = {**scene(1), "boxes": np.empty((0, 4), np.float32), "box_labels": np.empty(0, int),
             "box_areas": np.empty(0)}  # fmt: skip
    made = mosaic(empty, rng(0), [empty] * 3)
    assert made["boxes"].shape == (0, 4) and made["box_labels"].shape == (0,)
    grey = {**scene(2), "image": scene(2)["image"][:, :, :1]}
    assert mosaic(grey, rng(0), [grey] * 3)["image"].shape == (80, 80, 1)
    with pytest.raises(ValueError, match="channels must agree"):
        mosaic(scene(1), rng(0), [grey] * 3)
    bare = {k: v for k, v in scene(2).items() if k != "mask"}
    with pytest.raises(ValueError, match=r"'2' has no mask"):
        mosaic(scene(1), rng(0), [bare] * 3)


def test_without_partners_nothing_changes():
    sample = scene(3)
    assert Mosaic(height=10, width=10)(sample, rng(0), []) is sample
    assert CopyPaste()(sample, rng(0), []) is sample
    assert {Mosaic(height=9, width=9, p=0.5).partners(rng(n)) for n in range(99)} == {0, 3}
    assert {CopyPaste(p=0.5).partners(rng(n)) for n in range(99)} == {0, 1}


def test_ranges_the_wrong_way_round_are_refused():
    with pytest.raises(ValueError, match="give the lower one first"):
        Mosaic(height=9, width=9, scale=(2.0, 1.0))


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
    with pytest.raises(ValueError, match="'a' has no boxes"):
        CopyPaste()(bare, rng(0), [bare])
