from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.core.rng import KeyedRng
from penstock.transforms.cpu.color_jitter import ColorJitter
from penstock.transforms.device import colours
from tests.contracts.transform import check_transform
from tests.photographs import scene

NEUTRAL = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0, "p": 1.0}
IMAGE = scene(60, 80)


def changed(image: np.ndarray, position: int = 0, **options) -> np.ndarray:
    return ColorJitter(**{**NEUTRAL, **options})({"image": image}, KeyedRng().at(0, 0, position))[
        "image"
    ]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("amount", [-0.3, 0.0, 0.4])
def test_each_change_is_that_of_the_device(number, amount):
    name = ("brightness", "contrast", "saturation", "hue")[number]
    value = amount if name == "hue" else 1 + amount
    found = changed(IMAGE, **{name: [value, value]})
    planes = torch.tensor(IMAGE).permute(2, 0, 1)[None] / 255
    change = (colours.brightened, colours.contrasted, colours.saturated, colours.turned)[number]
    expected = change(planes, torch.full((1, 1, 1, 1), value), 1.0) * 255
    difference = np.abs(found.astype(float) - expected[0].permute(1, 2, 0).numpy())
    assert difference.mean() < (1.5 if name == "hue" else 0.6)
    assert amount or difference.max() <= (6 if name == "hue" else 1)


def test_contract_and_order():
    options = {"brightness": [0.5, 0.5], "contrast": [2, 2]}
    assert len({changed(IMAGE, position, **options).tobytes() for position in range(20)}) == 2
    sample = {"image": IMAGE, "label": 1, "key": "a", "index": 0}
    check_transform(ColorJitter(p=1.0), [sample])
    kept = [ColorJitter(p=0.3)(sample, KeyedRng().at(0, 0, n)) is sample for n in range(200)]
    assert 110 < sum(kept) < 170


def test_grey_and_alpha():
    grey = IMAGE[..., :1]
    assert changed(grey, saturation=0.9, hue=0.5).tobytes() == grey.tobytes()
    assert changed(grey, brightness=[0.5, 0.5]).shape == grey.shape
    alpha = np.concatenate([IMAGE, grey], 2)
    bright = changed(alpha, brightness=[0.5, 0.5])
    assert np.array_equal(bright[..., 3:], grey)
    assert np.array_equal(bright[..., :3], changed(IMAGE, brightness=[0.5, 0.5]))


@pytest.mark.parametrize("image", [IMAGE[..., :2], IMAGE.astype(np.float32), IMAGE[..., 0]])
def test_other_images_are_refused(image):
    with pytest.raises(ValueError, match="uint8"):
        changed(image)
