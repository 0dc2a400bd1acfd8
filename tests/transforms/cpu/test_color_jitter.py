from __future__ import annotations

import numpy as np
import pytest

from penstock.core.rng import KeyedRng
from penstock.transforms.colours import colour_maps, recoloured
from penstock.transforms.cpu.color_jitter import ColorJitter
from tests.contracts.transform import check_transform
from tests.photographs import scene

NEUTRAL = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0, "p": 1.0}
IMAGE = scene(60, 80)


def changed(image: np.ndarray, position: int = 0, **options) -> np.ndarray:
    step = ColorJitter(**{**NEUTRAL, **options})
    return step({"image": image}, KeyedRng().at(0, 0, position))["image"]


@pytest.mark.parametrize("number", range(4))
def test_each_amount_is_drawn_for_its_change(number):
    name = ("brightness", "contrast", "saturation", "hue")[number]
    for position in range(3):
        draw = KeyedRng().at(0, 0, position).random(5)[1 + number]
        factors = np.array([1.0, 1.0, 1.0, 0.0])
        factors[number] += 0.4 * (2 * draw - 1)
        maps = colour_maps(factors[:, None])
        expected = recoloured(IMAGE, *(each[0] for each in maps))
        assert np.array_equal(changed(IMAGE, position, **{name: 0.4}), expected)


def test_contract_and_share():
    sample = {"image": IMAGE, "label": 1, "key": "a", "index": 0}
    check_transform(ColorJitter(p=1.0), [sample])
    kept = [ColorJitter(p=0.3)(sample, KeyedRng().at(0, 0, n)) is sample for n in range(200)]
    assert 110 < sum(kept) < 170


def test_grey_alpha_and_other_images():
    grey = IMAGE[..., :1]
    assert changed(grey, saturation=0.9, hue=0.5).tobytes() == grey.tobytes()
    bright = changed(np.concatenate([IMAGE, grey], 2), brightness=0.5)
    assert np.array_equal(bright[..., 3:], grey)
    assert np.array_equal(bright[..., :3], changed(IMAGE, brightness=0.5))
    for image in (IMAGE[..., :2], IMAGE.astype(np.float32), IMAGE[..., 0]):
        with pytest.raises(ValueError, match="uint8"):
            changed(image)
