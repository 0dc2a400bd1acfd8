"""What packing makes of an image: sizes, pixels, and what it refuses."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from penstock.core.sample import Record
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.image.files import read_header
from penstock.transforms.recode import Recode, is_raw
from tests.encoded_images import OTHERS
from tests.photographs import photograph, scene, turned

FILES = [
    photograph(97, 131),
    photograph(64, 64, sampling="grey"),
    photograph(97, 131, progressive=True),
    turned(97, 131, 6),
    OTHERS["PNG RGBA"],
]
DECODE = ImageDecoder()


def recoded(data: object, index: int = 0, **options: object) -> object:
    record = Record(index, "a", {"image": data, "label": 7})
    changed = Recode(decode=DECODE, **options)(record)  # type: ignore[arg-type]
    assert (changed.index, changed.key, changed.fields["label"]) == (index, "a", 7)
    assert record.fields["image"] is data
    return changed.fields["image"]


@pytest.mark.parametrize("data", FILES)
def test_files_that_nothing_changes_stay_byte_for_byte(data):
    assert recoded(data) is data
    assert recoded(data, max_side=131) is data
    assert recoded(data, short_side=97) is data


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"max_side": 64}, (64, 47)),
        ({"max_side": 1}, (1, 1)),
        ({"short_side": 64}, (86, 64)),
        ({"short_side": 200}, (131, 97)),
    ],
)
def test_sides_are_shrunk_by_area_and_never_enlarged(options, size):
    whole = DECODE.decode(FILES[3])
    assert whole.shape == (131, 97, 3)
    expected = whole
    if size != (131, 97):
        expected = cv2.resize(whole, size[::-1], interpolation=cv2.INTER_AREA).reshape(*size, 3)
    assert np.array_equal(recoded(FILES[3], raw=1, **options), expected)
    encoded = recoded(FILES[3], quality=100, **options)
    header = read_header(encoded)
    assert (header.height, header.width, header.orientation) == (*size, 1)
    bgr = cv2.imencode(".jpg", expected[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 100])[1]
    assert np.array_equal(DECODE.decode(encoded), DECODE.decode(bgr.tobytes()))


@pytest.mark.parametrize("data", FILES)
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_raw_pixels_are_those_of_decoding(data, mode):
    decode = ImageDecoder(mode=mode)
    record = Record(0, "a", {"image": data})
    raw = Recode(decode=decode, raw=1)(record).fields["image"]
    assert np.array_equal(raw, decode.decode(data))


@pytest.mark.parametrize(
    ("share", "count"), [(0, 0), (0.5, 500), (0.3, 300), (1, 1000), (0.1, 100)]
)
def test_raw_images_are_spread_evenly(share, count):
    chosen = [is_raw(i, share) for i in range(1000)]
    assert sum(chosen) == count
    for start in range(0, 1000, 100):
        assert sum(chosen[start : start + 100]) == count // 10


def test_tiles_are_upright_images_of_the_true_size():
    for i, data in enumerate(FILES):
        tiled = recoded(data, tiled=True)
        header, before, image = read_header(tiled), DECODE.decode(data), DECODE.decode(tiled)
        assert header.scan is not None and header.scan.tile_lengths and header.orientation == 1
        assert image.shape == before.shape
        assert header.components == (1 if i == 1 else 3)
        # Grey loses what quality takes; colour is halved in both directions as well.
        assert np.abs(image.astype(int) - before).mean() < (2 if i == 1 else 14)


@pytest.mark.parametrize("options", [{}, {"tiled": True}])
def test_quality_is_what_is_asked_for(options):
    sizes = [len(recoded(FILES[0], quality=quality, **options)) for quality in (30, 80, 100)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[2] / 2


@pytest.mark.parametrize("name", ["boxes", "keypoints", "mask"])
def test_fields_that_speak_of_pixels_forbid_another_size(name):
    fields = {"image": FILES[0], name: np.zeros((1, 4), np.float32)}
    for options in ({"max_side": 50}, {"short_side": 50, "raw": 1}):
        with pytest.raises(ValueError, match=f"has '{name}' in pixels of its 131x97"):
            Recode(decode=DECODE, **options)(Record(0, "a", fields))
    with pytest.raises(ValueError, match="orientation"):
        Recode(decode=DECODE, raw=1)(Record(0, "a", fields | {"image": FILES[3]}))
    assert Recode(decode=DECODE, tiled=True)(Record(0, "a", fields)).fields[name] is fields[name]


def test_decoded_images_are_taken_and_others_pass():
    pixels = scene(97, 131)
    assert recoded(pixels) is pixels
    assert recoded(pixels, raw=1, max_side=50).shape == (37, 50, 3)
    assert read_header(recoded(pixels, quality=90)).width == 131
    other = Record(0, "a", {"label": 3})
    recode = Recode(decode=DECODE, raw=1)
    assert recode(other) is other
    with pytest.raises(ValueError, match="JPEG"):
        recode(Record(0, "a", {"image": FILES[0][:900]}))
    recode(Record(0, "a", {"image": FILES[0]}))
    assert recode.counts == {"raw": 1}
