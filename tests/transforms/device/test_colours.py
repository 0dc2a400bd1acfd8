"""Colours: the formulas, pixel by pixel, and how often."""

import colorsys
from itertools import permutations

import numpy as np
import pytest
import torch

from penstock.transforms.colours import colour_maps
from tests.transforms.device.drawn_rows import as_floats, batch, by_tensors, step

LUMA = np.array([0.299, 0.587, 0.114])


def blended(image, kind, factor):
    """Torchvision's formulas for brightness, contrast and saturation; no value is cut."""
    grey = image @ LUMA
    other = (np.zeros(1), grey.mean(), grey[..., None])[kind]
    return factor * image + (1 - factor) * other


@pytest.mark.parametrize("order", [*permutations(range(3))])
@pytest.mark.parametrize("layout", [dict, as_floats])
@pytest.mark.parametrize("change", [lambda made: made, by_tensors])
def test_changes_are_those_of_torchvision_where_no_value_is_cut(order, layout, change):
    given, factors = batch(4), np.array([[1.1, 0.9, 0.8, 1], [0.5, 0.7, 1.2, 1], [1.3, 0, 1, 0.6]])
    given["image"] = given["image"] // 3 + 80
    made = change(step("color_jitter"))
    of_pixel, of_mean = colour_maps(np.concatenate([factors, np.zeros((1, 4))]))
    draws = {"rows": np.arange(4), "of_pixel": of_pixel, "of_mean": of_mean}
    result = made.apply(layout(given), draws)["image"]
    result = result if layout is dict else result.permute(0, 2, 3, 1) * 255
    for row, expected in enumerate(given["image"].numpy().astype(float)):
        for kind in order:
            expected = blended(expected, kind, factors[kind, row])
        assert 0 < expected.min() and expected.max() < 255
        assert np.abs(result[row].numpy() - expected).max() <= (1 if layout is dict else 1e-3)


@pytest.mark.parametrize("turns", [-0.5, -0.2, 0.0, 0.1, 1 / 3])
def test_hue_turns_about_as_in_hsv_and_keeps_greys(turns):
    [turned], [of_mean] = colour_maps(np.array([[1], [1], [1], [turns]]))
    assert (
        not of_mean.any()
        and np.allclose(turned @ np.ones(3), 1)
        and np.allclose(LUMA @ turned, LUMA)
    )
    for colour in np.random.default_rng(0).uniform(0.4, 0.6, (50, 3)):
        hue, saturation, _ = colorsys.rgb_to_hsv(*colour)
        found, *_ = colorsys.rgb_to_hsv(*(turned @ colour).tolist())
        assert saturation < 0.1 or abs((found - hue - turns + 0.5) % 1 - 0.5) < 0.07


def test_each_amount_stays_in_its_range_and_reaches_its_ends():
    grey = torch.full((4000, 3, 1, 1), 0.5)
    given = {"image": grey, "position": torch.arange(4000), "epoch": torch.zeros(4000).long()}
    made = step("color_jitter", brightness=0.4, contrast=0, saturation=0, hue=0)
    factors = made(given)["image"][:, 0, 0, 0] * 2
    assert 0.6 <= factors.min() < 0.605 and 1.395 < factors.max() <= 1.4001


def test_grey_is_as_often_as_asked_and_keeps_its_brightness():
    given = batch(1000, 4, 4)
    result = step("grayscale", p=0.3)(given)["image"]
    grey = (result == result[..., :1]).flatten(1).all(1)
    assert abs(grey.float().mean() - 0.3) < 0.08
    assert torch.equal(result[~grey], given["image"][~grey])
    expected = (given["image"].numpy() @ LUMA)[grey.numpy()]
    assert np.abs(result[grey][..., 0].numpy() - expected).max() <= 1


def test_images_without_colours_are_refused():
    grey = {**batch(), "image": batch()["image"][..., :1]}
    for name in ("color_jitter", "grayscale"):
        with pytest.raises(ValueError, match=r"augment\.device\.step: images are \[15, 13, 1\]"):
            step(name, p=1.0)(grey)
