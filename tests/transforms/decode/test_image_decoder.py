from __future__ import annotations

import io

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from penstock.core.sample import Record
from penstock.transforms.decode.image import ImageDecoder
from tests.contracts.decoder import check_decoder
from tests.encoded_images import JPEGS, OTHERS, RGB, encode, pillow

FILES = {**JPEGS, **OTHERS}


def decode(data: bytes, **options: object) -> np.ndarray:
    return ImageDecoder(**options).decode(data)


def largest_difference(a: np.ndarray, b: np.ndarray) -> int:
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b.astype(int)).max())


@pytest.mark.parametrize("name", FILES)
def test_pixels_are_pillows(name):
    data, tolerance = FILES[name], int("cmyk" in name)
    assert largest_difference(decode(data), pillow(data)) <= tolerance
    rgba, reference = decode(data, mode="RGBA"), pillow(data, "RGBA")
    assert largest_difference(rgba, reference) <= 3
    assert largest_difference(rgba[..., 3:], reference[..., 3:]) == 0
    reference = pillow(data, "L")
    if name in ("420", "422", "444", "411", "progressive", "optimized"):
        # A JPEG stores its grey in a plane of its own; Pillow uses the plane only on request.
        with Image.open(io.BytesIO(data)) as image:
            image.draft("L", image.size)
            reference = np.array(image)[..., None]
    assert largest_difference(decode(data, mode="L"), reference) <= 2


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "CMYK", "L"])
def test_orientation_is_obeyed_by_every_path(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = RGB.convert(kind) if kind in ("CMYK", "L") else RGB
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(image, "JPEG" if kind in ("CMYK", "L") else kind, exif=exif, **options)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert largest_difference(decode(data), np.array(upright)) <= 1
    assert decode(data).flags.c_contiguous
    if kind == "TIFF" and orientation > 1:
        with pytest.raises(ValueError, match="a rotated TIFF"):
            decode(data, orientation="ignore")
        return
    stored = np.array(image.convert("RGB"))
    ignored = decode(data, orientation="ignore").astype(int)
    assert ignored.shape == stored.shape and np.abs(ignored - stored).mean() < 8


@pytest.mark.filterwarnings("ignore:.*EXIF:UserWarning", "ignore:T.*:UserWarning")
@pytest.mark.parametrize("name", FILES)
def test_no_truncated_file_passes(name):
    data = FILES[name]
    # Behind its pixels a TIFF may have its directory, a WebP a byte of padding, a GIF two to end.
    last = len(data) - (3 if name.startswith("GIF") else 2)
    for length in {*np.linspace(1, last, 60).astype(int).tolist()}:
        with pytest.raises(ValueError) as raised:
            decode(data[:length])
        assert "\n" not in str(raised.value)


def test_some_bytes_before_the_end_marker_are_forgiven():
    data = JPEGS["420"]
    padded = data[:-2] + b"\x12\x34" * 10 + data[-2:]
    assert largest_difference(decode(padded), decode(data)) == 0


def test_a_flipped_bit_anywhere_in_a_png_is_found():
    data = OTHERS["PNG RGB"]
    for trial, at in enumerate(np.linspace(0, len(data) - 1, 400).astype(int).tolist()):
        flipped = bytearray(data)
        flipped[at] ^= 1 << trial % 8
        with pytest.raises(ValueError):
            decode(bytes(flipped))


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"these are not the pixels you are looking for\n" * 9, "these are not"),
        (b"", "0 bytes"),
        (cv2.imencode(".tiff", np.ones((4, 4), np.float32))[1].tobytes(), "mode F"),
    ],
)
def test_a_file_that_is_no_image_is_named(data, name):
    with pytest.raises(ValueError, match=name):
        decode(data)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF", "JPEG2000"])
def test_an_image_above_the_limit_is_refused_from_its_header(kind, monkeypatch):
    data = encode(RGB, kind)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow's limit is another one
    with pytest.raises(ValueError, match=r"120x90 is 10,800 pixels, expected 1 to 10,799"):
        decode(data, max_pixels=10_799)
    assert decode(data, max_pixels=10_800).shape == (90, 120, 3)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("region", ["exact", "whole"])
def test_image_decoder_keeps_the_contract(mode, region):
    boxes = np.ones((2, 4), np.float32)
    images = [JPEGS["420"], JPEGS["grey"], OTHERS["PNG RGBA"]]
    good = [
        Record(i, f"{i}.jpg", {"image": data, "label": i, "boxes": boxes})
        for i, data in enumerate(images)
    ]
    bad = [{"image": data} for data in (b"", JPEGS["420"][:900], b"GIF89a", np.zeros((3, 4)))]
    bad += [{"image": "a/b.jpg"}, {"jpg": b"", "label": 1}]
    damaged = [Record(9, "9.jpg", fields) for fields in bad]
    check_decoder(ImageDecoder(mode=mode, region=region), good, damaged)
