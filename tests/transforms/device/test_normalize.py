from __future__ import annotations

import pytest
import torch

from penstock.transforms.device.normalize import IMAGENET_MEAN, IMAGENET_STD, Normalize, to_float


def batch() -> dict:
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (4, 6, 5, 3), dtype=torch.uint8, generator=generator)
    return {"image": image, "label": torch.arange(4)}


def test_normalize_is_the_usual_formula_in_channels_last():
    given = batch()
    before = given["image"].clone()
    result = Normalize()(given)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    expected = (before.permute(0, 3, 1, 2).double() / 255 - mean) / std
    assert result["image"].dtype == torch.float32 and result["image"].shape == (4, 3, 6, 5)
    assert result["image"].is_contiguous(memory_format=torch.channels_last)
    assert (result["image"] - expected).abs().max() < 2e-6
    assert torch.equal(given["image"], before) and given["image"].dtype == torch.uint8
    assert result["label"] is given["label"]


@pytest.mark.parametrize("transform", [Normalize(), to_float])
def test_lists_of_images_stay_lists(transform):
    given = batch()
    listed = transform({"image": list(given["image"])})["image"]
    assert isinstance(listed, list)
    assert torch.equal(torch.stack(listed), transform(given)["image"])


def test_to_float_is_zero_to_one_in_channels_last():
    result = to_float(batch())["image"]
    assert torch.equal(result, batch()["image"].permute(0, 3, 1, 2).float() / 255)
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_other_images_and_arguments_are_refused():
    for shape, dtype in (((2, 4, 4, 1), torch.uint8), ((2, 4, 4, 3), torch.float32)):
        with pytest.raises(ValueError, match=r"expected uint8 \[B, H, W, 3\].*augment\.device"):
            Normalize()({"image": torch.zeros(shape, dtype=dtype)})
    planes, deep = torch.zeros(2, 3, 4, 3), torch.zeros(2, 4, 4, 3, dtype=torch.int16)
    for image, made in ((planes, to_float), (deep, to_float), (deep, Normalize())):
        with pytest.raises(ValueError, match="expected uint8"):
            made({"image": image})
    grey = Normalize(mean=[0.5], std=[0.5])({"image": torch.zeros(2, 4, 4, 1, dtype=torch.uint8)})
    assert torch.equal(grey["image"], torch.full((2, 1, 4, 4), -1.0))
    for options in ({"std": [0.1, 0.0, 0.1]}, {"mean": [0.5]}):
        with pytest.raises(ValueError, match="one per channel, std above 0"):
            Normalize(**options)
