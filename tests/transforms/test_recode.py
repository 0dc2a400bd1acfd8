"""Images that packing encodes again: sizes, pixels and refusals."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from penstock.core.sample import Record
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.image.header import read_header
from penstock.transforms.recode import Recode
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


def recoded(data: object, **options: object) -> object:
    record = Record(4, "a", {"image": data, "label": 7})
    changed = Recode(decode=DECODE, **options)(record)  # type: ignore[arg-type]
    assert (changed.index, changed.key, changed.fields["label"]) == (4, "a", 7)
    assert record.fields["image"] is data
    return changed.fields["image"]


@pytest.mark.parametrize("data", [*FILES, scene(97, 131)])
def test_unchanged_files_stay_byte_for_byte_and_raw_images_are_decoded(data):
    for options in ({}, {"max_side": 131}, {"short_side": 97}):
        assert recoded(data, **options) is data
    assert np.array_equal(recoded(data, raw=1), DECODE.decode(data))


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"max_side": 64}, (64, 47)),
        ({"short_side": 64}, (86, 64)),
        ({"short_side": 200}, (131, 97)),
    ],
)
def test_sides_are_shrunk_by_area_and_never_enlarged(options, size):
    expected = DECODE.decode(FILES[3])
    if size != (131, 97):
        expected = cv2.resize(expected, size[::-1], interpolation=cv2.INTER_AREA).reshape(*size, 3)
    assert np.array_equal(recoded(FILES[3], raw=1, **options), expected)
    encoded = recoded(FILES[3], quality=100, **options)
    header = read_header(encoded)
    assert (header.height, header.width, header.orientation) == (*size, 1)
    bgr = cv2.imencode(".jpg", expected[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 100])[1]
    assert np.array_equal(DECODE.decode(encoded), DECODE.decode(bgr.tobytes()))


@pytest.mark.parametrize("tiled", [False, True])
def test_encoded_images_are_upright_in_their_size_and_quality(tiled):
    for i, data in enumerate(FILES):
        encoded = recoded(data, tiled=tiled, quality=95)
        header, before, image = read_header(encoded), DECODE.decode(data), DECODE.decode(encoded)
        assert bool(header.tile_lengths) == tiled and header.orientation == 1
        assert image.shape == before.shape
        assert header.components == (1 if i == 1 else 3)
        # Grey loses only by its quality; colour is halved in both directions as well.
        assert np.abs(image.astype(int) - before).mean() < (2 if i == 1 else 14)


@pytest.mark.parametrize("name", ["boxes", "keypoints", "mask"])
def test_fields_with_places_forbid_another_size_or_orientation(name):
    fields = {"image": FILES[0], name: np.zeros((1, 4), np.float32)}
    for options in ({"max_side": 50}, {"short_side": 50, "raw": 1}):
        with pytest.raises(ValueError, match=f"has '{name}' in pixels of its 131x97"):
            Recode(decode=DECODE, **options)(Record(0, "a", fields))
    with pytest.raises(ValueError, match="orientation"):
        Recode(decode=DECODE, raw=1)(Record(0, "a", fields | {"image": FILES[3]}))
    assert Recode(decode=DECODE, tiled=True)(Record(0, "a", fields)).fields[name] is fields[name]
