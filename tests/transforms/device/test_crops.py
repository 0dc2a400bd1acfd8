"""Crops, flips and erased rectangles of a batch: their places, and how often they occur."""

import cv2
import numpy as np
import pytest
import torch

from penstock import compose
from penstock.transforms.device.draws import WINDOW_DRAWS, drawn_windows, uniforms
from penstock.transforms.device.steps import apply_steps, host_draws
from tests.transforms.device.drawn_rows import batch, by_tensors, masked, step


def crop(split="train", **options):
    return step("random_crop", split, **{"size": None, "padding": 0, **options})


def test_images_of_half_precision_are_cropped_as_exactly_as_others():
    given, made = batch(8, 300, 500), step("random_resized_crop", size=64)
    given["image"] = given["image"].permute(0, 3, 1, 2) / 255
    half = made({**given, "image": given["image"].bfloat16()})["image"]
    assert half.dtype == torch.bfloat16 and (half - made(given)["image"]).abs().max() < 0.005


@pytest.mark.parametrize("change", [lambda made: made, by_tensors])
def test_crops_in_evaluation_keep_the_way_back_to_the_file(change):
    given = {**batch(2, 40, 60), "to_image": torch.eye(2, 3).double().expand(2, 2, 3)}
    given["image"][:, 10:30, 20:40] = torch.tensor([255, 0, 0], dtype=torch.uint8)
    steps = [change(step("random_crop", "val", size=[30, 40], padding=3, called="a")),
             change(step("random_resized_crop", "val", size=[60, 60], called="b"))]  # fmt: skip
    result = apply_steps(steps, given, host_draws(steps, given))
    assert result["image"].shape[1:3] == (60, 60)
    assert torch.equal(
        result["to_image"], torch.tensor([[[2, 0, -30], [0, 2, -10.0]]] * 2).double()
    )
    assert (result["image"][:, 12:48, 12:48, 0] == 255).all()


@pytest.mark.parametrize("options", [{"padding": 4}, {"size": 7}, {"size": [5, 13], "padding": 2}])
@pytest.mark.parametrize("channels", [1, 3])
def test_both_paths_cut_windows_of_the_padded_image(options, channels):
    given = masked(batch())
    given["image"] = given["image"][..., :channels]
    fast, plain = crop(**options)(given), by_tensors(crop(**options))(given)
    assert torch.equal(fast["image"], plain["image"]) and fast["image"].dtype == torch.uint8
    border = [options.get("padding", 0)] * 4
    whole = torch.nn.functional.pad(given["image"], [0, 0, *border])
    height, width = fast["image"].shape[1:3]
    for row, (top, left) in enumerate(host_draws([crop(**options)], given)[0]["places"]):
        window = whole[row, top : top + height, left : left + width]
        assert torch.equal(fast["image"][row], window)
    assert torch.equal(fast["mask"], fast["image"][..., 0].long())


def test_every_place_is_as_likely():
    [draws] = host_draws([crop(size=9)], batch(1600, 12, 10))
    counts = np.unique(draws["places"], axis=0, return_counts=True)[1]
    assert len(counts) == 4 * 2 and (abs(counts - 200) < 5 * np.sqrt(200)).all()


def test_evaluation_takes_the_centre():
    given = masked(batch())
    assert crop("val", padding=4)(given) is given
    centre = crop("val", size=[6, 7], padding=4)(given)
    assert torch.equal(centre["image"], given["image"][:, 4:10, 3:10])
    assert torch.equal(centre["mask"], given["mask"][:, 4:10, 3:10])
    with pytest.raises(ValueError, match="images are 15 x 13 pixels and the crop is 14 x 14"):
        crop(size=14)(batch())
    halved = step("random_resized_crop", "val", size=[5, 5])(batch(3, 10, 15))["image"]
    window = batch(3, 10, 15)["image"][0, :, 2:12].numpy()
    assert np.array_equal(halved[0].numpy(), cv2.resize(window, (5, 5)))


@pytest.mark.parametrize("channels", [1, 3, 600])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_both_paths_flip_the_same_rows(p, channels):
    count = 50 if channels > 9 else 2000
    given = masked(batch(count, 3, 5))
    given["image"] = given["image"][..., :1].expand(-1, -1, -1, channels).contiguous()
    made = [step("random_flip", p=p), by_tensors(step("random_flip", p=p))]
    fast, plain = (each(given) for each in made)
    assert torch.equal(fast["image"], plain["image"])
    mirrored = given["image"].flip(2)
    rows = (fast["image"] == mirrored).flatten(1).all(1)
    expected = torch.where(rows[:, None, None, None], mirrored, given["image"])
    assert torch.equal(fast["image"], expected)
    assert abs(rows.float().mean() - p) <= 5 * (p * (1 - p) / count) ** 0.5
    assert torch.equal(fast["mask"], fast["image"][..., 0].long())


def windows(count, height, width, scale, ratio):
    rows = {"epoch": np.zeros(count, int), "position": np.arange(count)}
    draws = uniforms(rows, 3, WINDOW_DRAWS)
    return drawn_windows(draws, (height, width), scale=scale, ratio=ratio)


def test_windows_have_the_areas_and_shapes_asked_for_and_any_place():
    places = windows(5000, 200, 300, (0.1, 0.4), (0.5, 2.0))
    top, left, height, width = places.T
    share, shape = height * width / 60_000, np.log(width / height)
    assert share.min() > 0.098 and share.max() < 0.402 and abs(share.mean() - 0.25) < 0.01
    assert abs(np.abs(shape).max() - np.log(2)) < 0.03 and abs(shape.mean()) < 0.03
    assert top.min() == 0 == left.min()
    assert (top + height).max() == 200 and (left + width).max() == 300
    assert not windows(50, 10, 1000, (0.9, 1.0), (0.9, 1.1))[:, 2:].any()


def test_a_resized_crop_is_the_window_resized():
    given, made = batch(16, 40, 60), step("random_resized_crop", size=[20, 20], scale=[0.1, 0.5])
    result, [draws] = made(given)["image"], host_draws([made], given)
    for row, (top, left, height, width) in enumerate(draws["windows"].tolist()):
        window = given["image"][row, top : top + height, left : left + width].numpy()
        assert np.array_equal(result[row].numpy(), cv2.resize(window, (20, 20)))


def test_a_rectangle_is_erased_and_nothing_else():
    given = batch(600, 24, 24)
    given["image"].clamp_(min=1)
    result = step("random_erasing", p=0.6, value=0, scale=[0.1, 0.3])(given)["image"]
    erased = (result == 0).all(3)
    assert torch.equal(result[~erased], given["image"][~erased])
    rows = erased.flatten(1).any(1)
    assert abs(rows.float().mean() - 0.6) < 0.1
    for area in erased[rows]:
        ys, xs = area.nonzero().unbind(1)
        assert (ys.max() - ys.min() + 1) * (xs.max() - xs.min() + 1) == area.sum()
        assert 0.08 * 576 <= area.sum() <= 0.32 * 576


def test_values_out_of_range_are_errors_of_the_config():
    for name, value in (("random_resized_crop.size", "[3]"), ("color_jitter.hue", "0.7")):
        key = f"augment.device.{name}"
        with pytest.raises(ValueError, match=key):
            compose([f"batch_transform={name.partition('.')[0]}", f"{key}={value}"])
    with pytest.raises(ValueError, match=r"step: scale is \[0\.5, 0\.1\]; give the lower one"):
        step("random_resized_crop", scale=[0.5, 0.1])
