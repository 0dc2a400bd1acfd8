"""Decoding at a scale: never fewer pixels than are needed, the same ones for every crop."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import simplejpeg

from penstock.core.sample import PendingImage, Record, RecordError, smaller_box
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.image.files import read_header
from penstock.transforms.decode.image.jpeg_tiles import write_tiled
from penstock.transforms.decode.scaled import ScaledDecoder
from tests.contracts.decoder import check_decoder
from tests.encoded_images import JPEGS, OTHERS
from tests.photographs import photograph, scene, turned
from tests.transforms.decode.test_region import boxes

pytestmark = pytest.mark.usefixtures("part_of_a_jpeg")
EXACT = ImageDecoder()
TILED = write_tiled(scene(520, 700), quality=90)


def defer(data: bytes, **options: str) -> PendingImage:
    image = ScaledDecoder(**options).defer(Record(0, "a", {"image": data}))["image"]
    assert isinstance(image, PendingImage)
    return image


def test_contract():
    files = [*JPEGS.values(), *OTHERS.values(), turned(40, 50, 6), TILED, scene(9, 7)]
    good = [Record(i, f"{i}", {"image": data, "label": 3}) for i, data in enumerate(files)]
    cut = [files[0][:-300], b"", b"text", OTHERS["PNG RGB"][:-30], np.zeros((3, 4)), {}]
    bad = [Record(0, "a", {"image": data}) for data in cut[:-1]] + [Record(0, "a", {})]
    check_decoder(ScaledDecoder(), good, bad)
    for record in good:
        same = EXACT(record)["image"]
        assert np.array_equal(ScaledDecoder()(record)["image"], same)
        deferred = ScaledDecoder().defer(record)["image"]
        if isinstance(deferred, PendingImage):
            assert deferred.shape == same.shape
            assert np.array_equal(deferred.whole(), same)


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("sampling", ["420", "422", "440", "444", "411", "grey"])
@pytest.mark.parametrize("interval", [0, 1, 5, 15])
def test_a_crop_has_the_pixels_of_the_whole_image_at_that_scale(factor, sampling, interval):
    height, width = 301, 237
    data = photograph(height, width, sampling=sampling, interval=interval)
    pending = defer(data)
    size = -(-height // factor), -(-width // factor)
    expected = simplejpeg.decode_jpeg(data, min_height=size[0], min_width=size[1])
    assert expected.shape[:2] == size
    parts = 0
    narrow = [
        (0, 0, factor + factor // 2, height),
        (width - factor, 0, width, height),
        (0, 0, width, factor),
    ]
    for box in [*narrow, *boxes(height, width, 40)]:
        least = max(1, (box[3] - box[1]) // factor), max(1, (box[2] - box[0]) // factor)
        if min((box[3] - box[1]) // least[0], (box[2] - box[0]) // least[1]) != factor:
            continue  # another scale fits
        pixels, inside = pending.crop(box, least)
        near = smaller_box(box, factor)
        part = pixels[inside[1] : inside[3], inside[0] : inside[2]]
        assert np.array_equal(part, expected[near[1] : near[3], near[0] : near[2]]), box
        assert part.shape[0] >= least[0] and part.shape[1] >= least[1]
        parts += pixels.shape != expected.shape
    assert parts or interval not in (0, 1)


def test_the_scale_is_the_smallest_with_enough_pixels():
    data = photograph(640, 800, interval=5)
    pending = defer(data)
    factors = {(640, 800): 1, (321, 400): 1, (320, 400): 2, (161, 100): 2, (160, 200): 4,
               (80, 100): 8, (10, 10): 8, (1000, 1000): 1}  # fmt: skip
    for size, factor in factors.items():
        pixels, box = pending.crop((0, 0, 800, 640), size)
        assert pixels.shape == (640 // factor, 800 // factor, 3)
        assert box == (0, 0, 800 // factor, 640 // factor)
    exact = EXACT.defer(Record(0, "a", {"image": data}))["image"]
    pixels, (x_min, y_min, x_max, y_max) = exact.crop((100, 200, 500, 600), (10, 10))
    assert np.array_equal(pixels[y_min:y_max, x_min:x_max], EXACT.decode(data)[200:600, 100:500])


def test_a_box_never_shrinks_below_what_is_needed():
    rng = np.random.default_rng(0)
    pending = PendingImage(
        (999, 1201, 3),
        lambda box: (np.zeros((999, 1201, 3), np.uint8), 0, 0),
        lambda box, f: (np.zeros((-(-999 // f), -(-1201 // f), 3), np.uint8), 0, 0),
    )
    for _ in range(2000):
        x = sorted(rng.choice(1202, 2, replace=False).tolist())
        y = sorted(rng.choice(1000, 2, replace=False).tolist())
        size = (int(rng.integers(1, 300)), int(rng.integers(1, 300)))
        pixels, box = pending.crop((x[0], y[0], x[1], y[1]), size)
        assert 0 <= box[0] < box[2] <= pixels.shape[1]
        assert 0 <= box[1] < box[3] <= pixels.shape[0]
        assert box[3] - box[1] >= min(size[0], y[1] - y[0])
        assert box[2] - box[0] >= min(size[1], x[1] - x[0])


def test_orientations_are_applied_to_the_smaller_image():
    for orientation in range(1, 9):
        data = turned(160, 240, orientation)
        pending = defer(data)
        whole = EXACT.decode(data)
        assert pending.shape == whole.shape
        pixels, _ = pending.crop((0, 0, *whole.shape[1::-1]), (40, 40))
        shrunk = cv2.resize(whole, pixels.shape[1::-1], interpolation=cv2.INTER_AREA)
        assert pixels.shape == (whole.shape[0] // 4, whole.shape[1] // 4, 3)
        assert np.abs(pixels.astype(int) - shrunk).mean() < 4
        ignored = defer(data, orientation="ignore")
        assert ignored.shape == (160, 240, 3)


def test_every_truncated_file_raises():
    for length in np.linspace(300, len(TILED) - 1, 60).astype(int).tolist():
        with pytest.raises(ValueError):
            EXACT.decode(TILED[:length])
        with pytest.raises(ValueError):
            defer(TILED[:length]).whole()
    plain = photograph(120, 130)
    start = read_header(plain).scan.data_at
    for length in np.linspace(start + 1, len(plain) - 2, 30).astype(int).tolist():
        with pytest.raises(RecordError):
            defer(plain[:length]).crop((0, 0, 130, 110), (20, 20))


def test_damage_that_the_whole_image_shows_is_damage_at_a_scale():
    rng = np.random.default_rng(1)
    found = 0
    for data in (photograph(160, 192), write_tiled(scene(160, 192), quality=90)):
        start = read_header(data).scan.data_at
        for _ in range(80):
            at = int(rng.integers(start, len(data) - 30))
            damaged = data[:at] + data[at + int(rng.integers(1, 20)) :]
            try:
                EXACT.decode(damaged)
            except ValueError:
                found += 1
                with pytest.raises(RecordError):
                    defer(damaged).crop((0, 0, 192, 160), (40, 48))
    assert found > 20
