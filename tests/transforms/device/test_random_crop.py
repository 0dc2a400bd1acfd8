"""Crops of a batch: where they lie, alike on every path, and none in evaluation."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from penstock.transforms.device import random_crop
from penstock.transforms.device.random_crop import RandomCrop
from tests.transforms.device.drawn_rows import by_tensors


def batch(count=64, height=12, width=10, channels=3, *, epoch=2, start=100):
    generator = torch.Generator().manual_seed(count)
    shape = (count, height, width, channels)
    return {
        "image": torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator),
        "mask": torch.randint(0, 9, shape[:3], generator=generator),
        "position": torch.arange(start, start + count),
        "epoch": torch.full((count,), epoch),
    }


def crop(split="train", step="crop", seed=7, **options):
    return RandomCrop(seed=seed, split=split, step=step, **options)


def padded(image, padding, mode):
    widths = [(0, 0), (padding, padding), (padding, padding)] + [(0, 0)] * (image.ndim - 3)
    return np.pad(image.numpy(), widths, mode={"zeros": "constant", "reflect": "reflect"}[mode])


def places(cropped, whole):
    """Top and left of each crop in its padded image."""
    height, width = cropped.shape[1:3]
    return [
        next(
            (y, x)
            for y in range(image.shape[0] - height + 1)
            for x in range(image.shape[1] - width + 1)
            if np.array_equal(image[y : y + height, x : x + width], one)
        )
        for one, image in zip(cropped.numpy(), whole, strict=True)
    ]


OPTIONS = [
    {"padding": 4},
    {"padding": 4, "padding_mode": "reflect"},
    {"size": 7},
    {"size": [5, 10], "padding": 2},
    {"size": [12, 3], "padding_mode": "reflect"},
    {"size": 16, "padding": 5, "padding_mode": "reflect"},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_both_paths_cut_windows_of_the_padded_image(options, channels):
    given = batch(channels=channels)
    before = given["image"].clone()
    fast, plain = crop(**options)(given), by_tensors(crop(**options))(given)
    assert torch.equal(fast["image"], plain["image"]) and fast["image"].dtype == torch.uint8
    assert torch.equal(given["image"], before)
    padding, mode = options.get("padding", 0), options.get("padding_mode", "zeros")
    found = places(fast["image"], padded(given["image"], padding, mode))
    mask = padded(given["mask"], padding, mode)
    height, width = fast["image"].shape[1:3]
    for row, (y, x) in enumerate(found):
        assert np.array_equal(fast["mask"][row], mask[row, y : y + height, x : x + width])
    assert list(fast) == list(given)


def test_every_place_is_as_likely():
    found = places(crop(size=9)(batch(1600))["image"], batch(1600)["image"].numpy())
    counts = {place: found.count(place) for place in set(found)}
    assert len(counts) == 4 * 2
    assert all(abs(count - 200) < 5 * np.sqrt(200) for count in counts.values())


def test_batches_may_be_cut_and_mixed_anyhow():
    whole = batch()
    step = crop(padding=3)
    expected = step(whole)["image"]
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    for rows in (slice(0, 1), slice(5, 40), order):
        part = {name: value[rows] for name, value in whole.items()}
        assert torch.equal(step(part)["image"], expected[rows])
    as_list = step({**whole, "image": list(whole["image"]), "mask": list(whole["mask"])})
    assert all(torch.equal(a, b) for a, b in zip(as_list["image"], expected, strict=True))


def test_epoch_seed_and_name_decide():
    image = crop(padding=3)(batch())["image"]
    again = pickle.loads(pickle.dumps(crop(padding=3)))(batch())["image"]
    assert torch.equal(again, image)
    for other in (
        crop(padding=3)(batch(epoch=3)),
        crop(padding=3, seed=8)(batch()),
        crop(padding=3, step="crop2")(batch()),
        crop(padding=3)(batch(start=101)),
    ):
        assert not torch.equal(other["image"], image)


def test_images_that_were_normalised_are_cropped_the_same():
    given = batch()
    floats = given["image"].permute(0, 3, 1, 2).float()
    result = crop(padding=2)({**given, "image": floats})["image"]
    expected = crop(padding=2)(given)["image"]
    assert torch.equal(result, expected.permute(0, 3, 1, 2).float())


def test_what_is_kept_between_batches_does_not_show():
    step = crop(padding=4)
    first = step(batch())["image"]
    kept = first.clone()
    fewer = batch(20)
    assert torch.equal(step(fewer)["image"], crop(padding=4)(fewer)["image"])
    larger = batch(20, height=20)
    assert torch.equal(step(larger)["image"], crop(padding=4)(larger)["image"])
    assert torch.equal(step(batch())["image"], kept) and torch.equal(first, kept)
    smaller_first = crop(padding=4)
    smaller_first(fewer)
    assert torch.equal(smaller_first(batch())["image"], kept)


@pytest.mark.parametrize("unpickled", [False, True])
def test_threads_that_share_a_step_share_no_memory(monkeypatch, unpickled):
    step, windows, both_padded = crop(padding=4), random_crop._windows, threading.Barrier(2)
    if unpickled:
        step = pickle.loads(pickle.dumps(step))

    def cut_when_both_have_padded(*given):
        both_padded.wait(120)
        return windows(*given)

    batches = [batch(start=start) for start in (0, 1000)]
    batches[1]["image"] = 255 - batches[1]["image"]
    expected = [crop(padding=4)(each)["image"] for each in batches]
    monkeypatch.setattr(random_crop, "_windows", cut_when_both_have_padded)
    with ThreadPoolExecutor(2) as pool:
        for image, alone in zip(pool.map(step, batches), expected, strict=True):
            assert torch.equal(image["image"], alone)


def test_evaluation_takes_the_centre():
    given = batch()
    assert crop("val", padding=4)(given) is given
    centre = crop("val", size=[6, 7], padding=4)(given)
    assert torch.equal(centre["image"], given["image"][:, 3:9, 1:8])
    assert torch.equal(centre["mask"], given["mask"][:, 3:9, 1:8])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 13}, "images are 12 x 10 pixels and the crop is 13 x 13"),
        ({"padding": 10, "padding_mode": "reflect"}, "cannot be mirrored over 10"),
    ],
)
def test_images_that_are_too_small(options, said):
    with pytest.raises(ValueError, match=said):
        crop(**options)(batch())


def test_what_cannot_be_cropped_is_said():
    with pytest.raises(ValueError, match=r"augment\.device\.crop: the batch has boxes"):
        crop(padding=2)({**batch(), "boxes": []})
    with pytest.raises(ValueError, match="the batch lacks the field 'epoch'"):
        crop(padding=2)({name: value for name, value in batch().items() if name != "epoch"})
    with pytest.raises(ValueError, match=r"size is \[3\], expected one side or"):
        crop(size=[3])
