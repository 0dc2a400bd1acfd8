"""A stack that draws its crop before decoding gives every pixel of Compose on the whole image."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

from penstock.core.rng import KeyedRng
from penstock.core.sample import PendingImage, Record, RecordError, Sample
from penstock.transforms.cpu.stack import Stack, build_stack
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.image.jpeg_tiles import write_tiled
from tests.building import build_step
from tests.contracts.equality import assert_same, untouched_global_states
from tests.photographs import photograph, scene

RESIZED = {"_target_": "albumentations.RandomResizedCrop", "size": [40, 56]}
FLIP = {"_target_": "albumentations.HorizontalFlip", "p": 0.5}
COLOR = {"_target_": "albumentations.ColorJitter", "p": 0.8}
HOLE = {"_target_": "albumentations.CoarseDropout", "p": 0.5}
CROPS = {
    "resized": RESIZED,
    "resized small": {**RESIZED, "scale": [0.01, 0.1]},
    "resized ratio out of reach": {**RESIZED, "scale": [1, 1], "ratio": [4, 5]},
    "resized p": {**RESIZED, "p": 0.5},
    **{f"resized by {by}": {**RESIZED, "interpolation": by} for by in (0, 2, 3, 4)},
    "resized area": {**RESIZED, "area_for_downscale": "image"},
    "sized": {
        "_target_": "albumentations.RandomSizedCrop",
        "min_max_height": [20, 60],
        "size": [32, 32],
    },
    "random": {"_target_": "albumentations.RandomCrop", "height": 30, "width": 33},
    "random full width": {
        "_target_": "albumentations.RandomCrop",
        "height": 30,
        "width": 130,
        "pad_if_needed": True,
    },
    "random padded": {
        "_target_": "albumentations.RandomCrop",
        "height": 150,
        "width": 90,
        "pad_if_needed": True,
        "pad_position": "random",
    },
    "center": {"_target_": "albumentations.CenterCrop", "height": 64, "width": 48},
    "center padded": {
        "_target_": "albumentations.CenterCrop",
        "height": 400,
        "width": 400,
        "pad_if_needed": True,
    },
    "fixed": {
        "_target_": "albumentations.Crop",
        "x_min": 5,
        "y_min": 7,
        "x_max": 60,
        "y_max": 64,
    },
    "borders": {"_target_": "albumentations.RandomCropFromBorders"},
}
FILES = {
    "420": photograph(97, 131),
    "422": photograph(160, 100, sampling="422"),
    "444": photograph(90, 130, sampling="444"),
    "grey": photograph(120, 131, sampling="grey"),
    "restarts": photograph(128, 160, interval=5),
    "tiled": write_tiled(scene(200, 300), quality=95),
    "progressive": photograph(97, 131, progressive=True),
}


def stack(*steps: dict[str, Any]) -> Stack:
    return build_stack({f"step {i}": s for i, s in enumerate(steps)}, build_step=build_step)


def record(data: bytes, **fields: object) -> Record:
    return Record(3, "a.jpg", {"image": data, "label": 1, **fields})


def both(steps: Stack, given: Record, position: int, **options: Any) -> tuple[Sample, Sample]:
    """The sample of a deferred and of a whole decoding; the draws that follow agree too."""
    decoder, samples = ImageDecoder(**options), []
    for decode in (decoder.defer, decoder):
        rng = KeyedRng().at(1, 2, position)
        samples.append(steps(decode(given), rng))
        samples[-1]["next draw"] = rng.random()
    return samples[0], samples[1]


@pytest.mark.parametrize("name", CROPS)
def test_every_pixel_and_draw_is_that_of_compose(name):
    transform = stack(CROPS[name], FLIP)
    assert transform.whole_because() is None
    for data in FILES.values():
        for position in range(12):
            first, whole = both(transform, record(data), position)
            assert_same(first, whole)
            assert first["image"].flags.c_contiguous and first["image"].flags.writeable


@pytest.mark.parametrize("mode", ["L", "RGBA"])
def test_other_modes_too(mode):
    transform = stack(RESIZED, FLIP)
    for position, data in enumerate(FILES.values()):
        assert_same(*both(transform, record(data), position, mode=mode))


def test_whatever_follows_the_crop_and_whatever_else_a_sample_has():
    strong = stack(RESIZED, FLIP, COLOR, HOLE)
    for position in range(20):
        assert_same(*both(strong, record(FILES["tiled"]), position))
    boxes = np.array([[3, 4, 50, 60]], np.float32)
    fields: dict[str, Any] = {
        "boxes": boxes,
        "keypoints": np.array([[20, 30, 2]], np.float32),
        "mask": (scene(200, 300)[..., 0] > 99).astype(np.uint8),
    }
    for name, value in fields.items():
        for position in range(4):
            first, whole = both(strong, record(FILES["tiled"], **{name: value}), position)
            assert_same(first, whole)


def test_any_mix_of_sizes_samplings_and_crops():
    rng = np.random.default_rng(11)
    for trial in range(60):
        height, width = rng.integers(20, 260, 2).tolist()
        sampling = ["420", "422", "440", "444", "411", "grey"][trial % 6]
        data = photograph(height, width, sampling=sampling, interval=int(rng.integers(0, 4)))
        if trial % 4 == 0:
            data = write_tiled(scene(height, width), quality=int(rng.integers(40, 100)))
        low = float(rng.uniform(0.02, 0.9))
        crop = {**RESIZED, "size": rng.integers(4, 90, 2).tolist(), "scale": [low, 1.0]}
        assert_same(*both(stack(crop, FLIP), record(data), trial))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((), "does not begin with a crop"),
        ((FLIP, RESIZED), "begins with 'step 0' (HorizontalFlip)"),
        (({"_target_": "albumentations.SmallestMaxSize", "max_size": 64},), "SmallestMaxSize"),
        (({"_target_": "albumentations.BBoxSafeRandomCrop"},), "BBoxSafeRandomCrop"),
    ],
)
def test_other_stacks_say_why_they_need_the_whole_image(steps, reason):
    transform = stack(*steps)
    assert reason in (transform.whole_because() or "")
    if "BBox" not in reason:
        assert_same(*both(transform, record(FILES["420"]), 0))


def test_threads_pickles_and_global_states():
    transform, decoder = stack(RESIZED, FLIP), ImageDecoder()

    def work(transform: Stack, position: int) -> Sample:
        data = list(FILES.values())[position % len(FILES)]
        return transform(decoder.defer(record(data)), KeyedRng().at(0, 0, position))

    with untouched_global_states():
        expected = [work(transform, position) for position in range(40)]
    again = pickle.loads(pickle.dumps(transform))
    assert_same([work(again, position) for position in range(40)], expected)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert_same(list(pool.map(partial(work, transform), range(40))), expected)


def test_only_what_the_crop_needs_is_asked_for():
    asked: list[Any] = []
    pixels = scene(200, 300)

    def decode(box):
        asked.append(box)
        return pixels.copy(), 0, 0

    transform = stack(CROPS["center"])
    transform({"image": PendingImage((200, 300, 3), decode)}, KeyedRng().at(0, 0, 0))
    transform = stack(CROPS["center padded"])
    transform({"image": PendingImage((200, 300, 3), decode)}, KeyedRng().at(0, 0, 0))
    assert asked == [(126, 68, 174, 132), None]


def test_damage_arrives_as_damage_and_a_mistake_with_its_step():
    rng = KeyedRng().at(0, 0, 0)
    damaged = FILES["420"][:2000]
    with pytest.raises(RecordError, match="JPEG"):
        stack(RESIZED)(ImageDecoder().defer(record(damaged)), rng)
    too_large = {"_target_": "albumentations.CenterCrop", "height": 999, "width": 9}
    with pytest.raises(Exception, match="exceeds") as raised:
        stack(too_large)(ImageDecoder().defer(record(FILES["420"])), rng)
    notes = ["in augmentation step 'step 0' (albumentations.CenterCrop)"]
    assert raised.value.__notes__ == notes


def test_a_sample_without_an_image_is_told_what_to_choose():
    with pytest.raises(ValueError, match=r"no image to augment, fields: label, row; .*as_is"):
        stack(RESIZED, COLOR)({"label": 1, "row": 2}, KeyedRng().at(0, 0, 0))


def test_a_file_in_the_place_of_pixels_is_told_what_decodes_it():
    for steps in ((RESIZED, COLOR), (COLOR,)):
        with pytest.raises(ValueError, match=r"a file's [\d,]+ bytes.*dataset/decode=image$"):
            stack(*steps)({"image": FILES["420"]}, KeyedRng().at(0, 0, 0))
