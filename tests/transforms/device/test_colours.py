"""Colours: the formulas, pixel by pixel, and how often."""

import colorsys

import numpy as np
import pytest
import torch

from penstock.transforms.device import colours as changes
from tests.transforms.device.drawn_rows import as_floats, batch, step

LUMA = np.array([0.299, 0.587, 0.114])
CORNERS = np.array([[r, g, b] for r in (0, 0.5, 1) for g in (0, 0.5, 1) for b in (0, 0.5, 1)])


def pixels(count=400):
    """Random colours, all corners and greys, float32 [n, 3]."""
    random = np.random.default_rng(0).random((count, 3))
    return np.concatenate([random, CORNERS]).astype(np.float32)


def on_array(name, colours, value, white):
    image = (colours * np.float32(white))[None]
    return getattr(changes, name)(image, value, white)[0] / white


def on_tensor(name, colours, value, white):
    name = {"brighten": "brightened", "turn": "turned", "contrast": "contrasted"}.get(
        name, "saturated"
    )
    planes = torch.from_numpy((colours.T * np.float32(white))[None, :, None].copy())
    factor = torch.full((1, 1, 1, 1), value)
    return getattr(changes, name)(planes, factor, white)[0, :, 0].T.numpy() / white


PATHS = pytest.mark.parametrize("path", [on_array, on_tensor])
WHITES = pytest.mark.parametrize("white", [1.0, 255.0])


@PATHS
@WHITES
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0, 1.7])
def test_factors_blend_with_black_with_the_mean_grey_and_with_greys(path, white, value):
    colours = pixels()
    greys = colours @ LUMA
    for name, other in (
        ("brighten", np.zeros((1, 1))),
        ("contrast", np.full((1, 1), greys.mean())),
        ("saturate", greys[:, None]),
    ):
        expected = np.clip(value * colours + (1 - value) * other, 0, 1)
        assert np.allclose(path(name, colours, value, white), expected, atol=1e-5), name


@PATHS
@WHITES
@pytest.mark.parametrize("turns", [-0.5, -0.21, 0.0, 0.1, 0.34, 0.5])
def test_hue_turns_as_in_hsv(path, white, turns):
    colours = pixels()
    expected = [
        colorsys.hsv_to_rgb((h + turns) % 1, s, v)
        for h, s, v in (colorsys.rgb_to_hsv(*map(float, colour)) for colour in colours)
    ]
    assert np.allclose(path("turn", colours, turns, white), expected, atol=1e-5)


def test_each_amount_stays_in_its_range_and_reaches_its_ends():
    grey = torch.full((4000, 3, 1, 1), 0.5)
    given = {"image": grey, "position": torch.arange(4000), "epoch": torch.zeros(4000).long()}
    made = step("color_jitter", brightness=0.4, contrast=0, saturation=0, hue=0)
    factors = made(given)["image"][:, 0, 0, 0] * 2
    assert 0.6 <= factors.min() < 0.605 and 1.395 < factors.max() <= 1.4001
    made = step("color_jitter", brightness=[0.5, 0.7], contrast=0, saturation=0, hue=0)
    factors = made(given)["image"][:, 0, 0, 0] * 2
    assert 0.4999 <= factors.min() < 0.505 and 0.695 < factors.max() <= 0.7001


def test_nothing_asked_for_changes_nothing():
    given = batch()
    none = step("color_jitter", brightness=0, contrast=0, saturation=0, hue=0)
    assert torch.equal(none(given)["image"], given["image"])
    assert torch.equal(step("color_jitter", p=0)(given)["image"], given["image"])
    assert torch.equal(step("grayscale", p=0)(given)["image"], given["image"])


def test_orders_differ_from_row_to_row():
    one = batch(1)["image"].expand(200, -1, -1, -1)
    given = {**batch(200), "image": one}
    twofold = {"brightness": [1.5, 1.5], "contrast": [1.7, 1.7], "saturation": [1.6, 1.6], "hue": 0}
    images = step("color_jitter", random_order=True, **twofold)(given)["image"]
    assert len({image.numpy().tobytes() for image in images}) == 6
    images = step("color_jitter", **twofold)(given)["image"]
    assert len({image.numpy().tobytes() for image in images}) == 1


def test_grey_is_as_often_as_asked_and_keeps_its_brightness():
    given = batch(1000, 4, 4)
    result = step("grayscale", p=0.3)(given)["image"]
    grey = (result == result[..., :1]).flatten(1).all(1)
    assert abs(grey.float().mean() - 0.3) < 0.08
    assert torch.equal(result[~grey], given["image"][~grey])
    expected = (given["image"].numpy() @ LUMA)[grey.numpy()]
    assert np.abs(result[grey][..., 0].numpy() - expected).max() <= 0.501


def test_what_has_no_colours_is_said():
    grey = {**batch(), "image": batch()["image"][..., :1]}
    with pytest.raises(ValueError, match=r"augment\.device\.step: images are \[15, 13, 1\], exp"):
        step("color_jitter")(grey)
    with pytest.raises(ValueError, match="expected 3 channels"):
        step("grayscale")({**grey, "image": as_floats(batch())["image"][:, :2]})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hue": 0.7}, r"hue is 0\.7, expected 0 \.\. 0\.5"),
        ({"brightness": -1}, "brightness is -1, expected 0 or more"),
        ({"contrast": [2.0, 1.0]}, r"contrast is \[2\.0, 1\.0\], expected 0 or more"),
        ({"saturation": [1.0]}, r"saturation is \[1\.0\]"),
    ],
)
def test_amounts_that_cannot_be(options, said):
    with pytest.raises(ValueError, match=said):
        step("color_jitter", **options)
