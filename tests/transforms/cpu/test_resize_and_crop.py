"""A resize and a centre crop decode less, and give the pixels that Compose gives."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from penstock.core.rng import KeyedRng, PythonRandom
from penstock.core.sample import PendingImage, Record
from penstock.transforms.cpu.albumentations_stage import import_albumentations
from penstock.transforms.cpu.crop_first import take_first_steps
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.image.jpeg_tiles import write_tiled
from penstock.transforms.decode.scaled import ScaledDecoder
from tests.photographs import photograph, scene, turned

A = import_albumentations()
DECODER = ImageDecoder()
KINDS = {
    "420": lambda h, w: photograph(h, w),
    "444": lambda h, w: photograph(h, w, sampling="444"),
    "grey": lambda h, w: photograph(h, w, sampling="grey"),
    "tiled": lambda h, w: write_tiled(scene(h, w), quality=90),
    "raw": lambda h, w: scene(h, w),
}


def compose(*transforms: object, position: int = 0) -> object:
    made = A.Compose(list(transforms))
    rng = KeyedRng().at(0, 0, position)
    made.set_random_state(rng, PythonRandom(rng))
    return made


def pending(data: object, decoder: object = DECODER) -> PendingImage:
    image = decoder.defer(Record(0, "a", {"image": data}))["image"]
    assert isinstance(image, PendingImage)
    return image


def spied(image: PendingImage) -> tuple[PendingImage, list[object]]:
    asked: list[object] = []

    def decode(box: object) -> object:
        asked.append(box)
        return image.decode(box)

    return PendingImage(image.shape, decode), asked


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_those_of_compose(kind):
    rng = np.random.default_rng(0)
    parts = 0
    for trial in range(80):
        height, width = rng.integers(20, 400, 2).tolist()
        side = int(rng.integers(10, 300))
        resizes = [
            A.SmallestMaxSize(side, interpolation=trial % 5),
            A.LongestMaxSize([side, side + 9], interpolation=1),
            A.Resize(side, side + trial % 7, interpolation=3, area_for_downscale="image"),
            A.SmallestMaxSize(side, interpolation=3),
            A.SmallestMaxSize(min(height, width), interpolation=1),
        ]
        resize = resizes[trial // 2 % 5]
        rows, columns = rng.integers(1, min(side, height, width) + 1, 2).tolist()
        crop = A.CenterCrop(rows, columns, pad_if_needed=trial // 2 % 5 == 1)
        data = KINDS[kind](height, width)
        expected = compose(resize, crop, position=trial)(image=DECODER.decode(data))["image"]
        head = take_first_steps(compose(resize, crop, position=trial))
        image, asked = spied(pending(data))
        assert head.takes(image)
        found = head(image)
        assert np.array_equal(found, expected) and found.dtype == np.uint8
        assert found.flags.c_contiguous and found.flags.writeable
        into = np.zeros_like(expected)
        head = take_first_steps(compose(resize, crop, position=trial))
        assert head(pending(data), into) is into and np.array_equal(into, expected)
        box = asked[0]
        parts += box is not None and box != (0, 0, width, height)
    assert parts > 20


def test_what_follows_and_the_draws_are_those_of_compose():
    steps = [A.SmallestMaxSize([64, 80, 96]), A.CenterCrop(60, 60), A.HorizontalFlip(), A.Blur()]
    data = photograph(120, 160)
    for position in range(20):
        expected = compose(*steps, position=position)(image=DECODER.decode(data))["image"]
        head = take_first_steps(compose(*steps, position=position))
        assert np.array_equal(head(pending(data), np.zeros((60, 60, 3), np.uint8)), expected)


def test_a_crop_that_is_too_large_raises_as_in_compose():
    steps = [A.SmallestMaxSize(64), A.CenterCrop(80, 60)]
    with pytest.raises(Exception, match="Crop size") as expected:
        compose(*steps)(image=scene(100, 140))
    with pytest.raises(type(expected.value), match="Crop size"):
        take_first_steps(compose(*steps))(pending(photograph(100, 140)))


class Subclass(A.CenterCrop):
    pass


@pytest.mark.parametrize(
    "steps",
    [
        [A.SmallestMaxSize(64)],
        [A.SmallestMaxSize(64), A.RandomCrop(32, 32)],
        [A.SmallestMaxSize(64, p=0.5), A.CenterCrop(32, 32)],
        [A.SmallestMaxSize(64), A.CenterCrop(32, 32, p=0.5)],
        [A.SmallestMaxSize(64), Subclass(32, 32)],
    ],
)
def test_other_steps_are_left_to_compose(steps):
    assert take_first_steps(compose(*steps)) is None


@pytest.mark.parametrize("overviews", [False, True])
def test_at_a_scale_the_whole_smaller_image_is_resized_in_the_same_way(overviews):
    steps = [A.SmallestMaxSize(64, interpolation=3), A.CenterCrop(56, 56)]
    for height, width in [(301, 401), (520, 700), (400, 260), (130, 900)]:
        # Grey, since JPEG halves colours once more in an overview.
        data = write_tiled(scene(height, width)[..., :1], quality=95, overviews=overviews)
        scaled = pending(data, ScaledDecoder())
        factor = scaled.factor_for((0, 0, width, height), (64, 64))
        assert factor == {130: 2, 520: 8}.get(min(height, width), 4)
        found = take_first_steps(compose(*steps))(pending(data, ScaledDecoder()))
        whole, _, _ = scaled.around(None, factor)
        rows, columns = expected_size(height, width)
        scales = columns * factor / width, rows * factor / height
        small = cv2.resize(whole, None, fx=scales[0], fy=scales[1], interpolation=3)
        expected = steps[1](image=small[:rows, :columns])["image"]
        assert np.array_equal(found, expected)
        exact = compose(*steps)(image=DECODER.decode(data))["image"]
        assert np.abs(found.astype(int) - exact).mean() < 7
    upright = turned(300, 500, 6)
    found = take_first_steps(compose(*steps))(pending(upright, ScaledDecoder()))
    exact = compose(*steps)(image=DECODER.decode(upright))["image"]
    assert np.abs(found.astype(int) - exact).mean() < 6


def expected_size(height: int, width: int) -> tuple[int, int]:
    scale = 64 / min(height, width)
    return round(height * scale), round(width * scale)
