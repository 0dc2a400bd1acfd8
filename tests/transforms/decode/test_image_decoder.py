from __future__ import annotations

import io
import struct
import tracemalloc
import zlib

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageFile, ImageOps

from penstock.core.sample import Record
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.raw import make_raw_decoder
from tests.contracts.decoder import check_decoder
from tests.encoded_images import JPEGS, OTHERS, RGB, encode, picture, pillow


def decode(data: bytes, **options: object) -> np.ndarray:
    return ImageDecoder(**options).decode(data)


def largest_difference(a: np.ndarray, b: np.ndarray) -> int:
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b.astype(int)).max())


@pytest.mark.parametrize("name", JPEGS)
def test_jpeg_pixels_are_pillows(name):
    tolerance = 1 if "cmyk" in name else 0
    assert largest_difference(decode(JPEGS[name]), pillow(JPEGS[name])) <= tolerance


@pytest.mark.parametrize("name", OTHERS)
def test_pixels_of_other_formats_are_pillows(name):
    data = OTHERS[name]
    assert largest_difference(decode(data), pillow(data)) == 0


@pytest.mark.parametrize("name", [*JPEGS, *OTHERS])
def test_grey_is_pillows(name):
    data = {**JPEGS, **OTHERS}[name]
    grey, reference = decode(data, mode="L"), pillow(data, "L")
    if name in ("420", "422", "444", "411", "progressive", "optimized"):
        # A JPEG has its grey as a plane of its own; Pillow takes that only when asked to.
        with Image.open(io.BytesIO(data)) as image:
            image.draft("L", image.size)
            reference = np.array(image)[..., None]
    assert largest_difference(grey, reference) <= 2


@pytest.mark.parametrize("name", [*JPEGS, *OTHERS])
def test_alpha_is_pillows_where_there_is_one_and_opaque_elsewhere(name):
    data = {**JPEGS, **OTHERS}[name]
    assert largest_difference(decode(data, mode="RGBA"), pillow(data, "RGBA")) <= 3
    assert (
        largest_difference(decode(data, mode="RGBA")[..., 3:], pillow(data, "RGBA")[..., 3:]) == 0
    )


def test_sixteen_bits_keep_their_upper_eight():
    deep = picture().astype(np.uint16) * 257 + 13
    deep = np.minimum(deep, 65_000).astype(np.uint16)
    for kind in (".png", ".tiff"):
        data = cv2.imencode(kind, deep)[1].tobytes()
        assert largest_difference(decode(data), (deep >> 8).astype(np.uint8)[..., ::-1]) == 0
        grey = cv2.imencode(kind, deep[..., 0])[1].tobytes()
        assert largest_difference(decode(grey)[..., 1], (deep[..., 0] >> 8).astype(np.uint8)) == 0


def test_float_pixels_are_refused():
    for pixels, cause in (
        (picture(), "unusual TIFF: unknown pixel mode"),
        (picture()[..., 0], "float32 pixels; expected 8 or 16 bits"),
    ):
        data = cv2.imencode(".tiff", pixels.astype(np.float32))[1].tobytes()
        with pytest.raises(ValueError, match=cause):
            decode(data)


def png_of(rows: bytes, depth: int, transparent: int, side: int = 16) -> bytes:
    """A grey PNG, of which one value is transparent."""
    header = struct.pack(">IIBBBBB", side, side, depth, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in (
            (b"IHDR", header),
            (b"tRNS", struct.pack(">H", transparent)),
            (b"IDAT", zlib.compress(rows)),
            (b"IEND", b""),
        )
    )


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_a_transparent_grey_is_found_at_every_depth(depth):
    values = np.arange(256).reshape(16, 16) % (1 << depth)
    bits = np.unpackbits(values.astype(">u2").view(np.uint8).reshape(16, 16, 2), axis=2)
    rows = np.packbits(bits[..., 16 - depth :].reshape(16, -1), axis=1)
    data = png_of(b"".join(b"\0" + row.tobytes() for row in rows), depth, 1)
    image = decode(data, mode="RGBA")
    assert np.array_equal(image[..., 3] == 0, values == 1)
    expected = values >> 8 if depth == 16 else values * (255 // ((1 << depth) - 1))
    assert np.array_equal(image[..., 1], expected)
    assert np.array_equal(decode(data, mode="L")[..., 0], expected)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "CMYK", "L"])
def test_orientation_is_obeyed_by_every_path(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = RGB.convert("CMYK") if kind == "CMYK" else RGB.convert("L") if kind == "L" else RGB
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(image, "JPEG" if kind in ("CMYK", "L") else kind, exif=exif, **options)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert largest_difference(decode(data), np.array(upright)) <= 1
    # Pillow itself turns TIFFs while it loads them, so the stored pixels are the reference.
    stored = np.array(image.convert("RGB"))
    ignored = decode(data, orientation="ignore").astype(int)
    assert ignored.shape == stored.shape
    assert np.abs(ignored - stored).mean() < 8
    assert decode(data).flags.c_contiguous


def test_orientation_is_obeyed_by_the_fallback(monkeypatch):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(RGB, "JPEG", exif=exif)
    expected = decode(data)

    def refuse(*args: object, **kwargs: object) -> None:
        raise ValueError("Unsupported color conversion request")

    monkeypatch.setattr(simplejpeg, "decode_jpeg", refuse)
    assert largest_difference(decode(data), expected) == 0
    assert decode(data, orientation="ignore").shape == (90, 120, 3)


def odd_subsampling() -> bytes:
    """A JPEG with sampling factors that simplejpeg refuses.

    Made of one whose three components share their tables: 3 blocks for each of 5 units of 8x8
    become 5 blocks for each of 3 units of 16x16.
    """
    data = bytearray(encode(RGB.crop((20, 20, 60, 28)), "JPEG", keep_rgb=True, subsampling=0))
    frame = data.find(b"\xff\xc0")
    struct.pack_into(">HH", data, frame + 5, 16, 48)
    for component, factors in enumerate((0x21, 0x12, 0x11)):
        data[frame + 11 + 3 * component] = factors
    return bytes(data)


def test_what_simplejpeg_refuses_is_decoded_by_another_library():
    data = odd_subsampling()
    with pytest.raises(ValueError, match="subsampling"):
        simplejpeg.decode_jpeg(data)
    assert largest_difference(decode(data), pillow(data)) <= 1


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_damage_does_not_pass_in_the_fallback_either(share):
    data = odd_subsampling()
    scan = data.find(b"\xff\xda") + 14
    kept = data[: scan + int((len(data) - 2 - scan) * share)]
    with pytest.raises(ValueError, match="JPEG"):
        decode(kept)
    with pytest.raises(ValueError, match="its pixels end before the image does"):
        decode(kept + b"\xff\xd9")


@pytest.mark.parametrize("name", [*JPEGS, *OTHERS])
def test_no_truncated_file_passes(name):
    data = {**JPEGS, **OTHERS}[name]
    # Behind its pixels a TIFF may have its directory, a WebP a byte of padding, a GIF two to end.
    last = len(data) - (3 if name.startswith("GIF") else 2)
    for length in {*np.linspace(1, last, 60).astype(int).tolist()}:
        with pytest.raises(ValueError) as raised:
            decode(data[:length])
        assert "\n" not in str(raised.value)


# A progressive file that is cut between two scans is a whole file of lower quality.
@pytest.mark.parametrize("name", [name for name in JPEGS if name != "progressive"])
def test_no_truncated_jpeg_passes_with_an_end_marker_glued_on(name):
    data = JPEGS[name]
    for length in np.linspace(3, len(data) - 60, 40).astype(int).tolist():
        with pytest.raises(ValueError):
            decode(data[:length] + b"\xff\xd9")


def test_some_bytes_before_the_end_marker_are_forgiven():
    data = JPEGS["420"]
    padded = data[:-2] + b"\x12\x34" * 10 + data[-2:]
    with pytest.raises(ValueError, match="extraneous bytes before marker 0xd9"):
        simplejpeg.decode_jpeg(padded)
    assert largest_difference(decode(padded), decode(data)) == 0
    assert largest_difference(decode(data + b"trailing"), decode(data)) == 0


def test_a_header_that_hides_rows_is_damage():
    data = bytearray(JPEGS["420"])
    frame = data.find(b"\xff\xc0")
    struct.pack_into(">H", data, frame + 5, 42)  # of 90 rows
    with pytest.raises(ValueError, match="extraneous bytes"):
        decode(bytes(data))


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_anywhere_in_a_png_is_found(bit):
    data = OTHERS["PNG RGB"]
    for at in np.linspace(0, len(data) - 1, 50).astype(int).tolist():
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        with pytest.raises(ValueError):
            decode(bytes(flipped))


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"8BPS" + bytes(40), "8BPS"),
        (b"these are not the pixels you are looking for\n" * 9, "these are not"),
        ("ein Bäcker".encode(), "ein B"),
        (b"<html><body>404</body></html>", "<html>"),
        (b"", "0 bytes"),
        (b"\x00\x01\x02\x03" * 20, "x01.x02.x03"),
        (b"\0\0\0\x1cftypheic\0\0\0\0", "ftypheic"),
        (b"\0\0\0\x1cftypavif\0\0\0\0", "unusual AVIF"),
        (b"%PDF-1.7", "PDF"),
    ],
)
def test_what_is_no_image_is_named(data, name):
    with pytest.raises(ValueError, match=name):
        decode(data)


def test_a_png_that_is_named_jpg_simply_decodes():
    record = Record(0, "cat.jpg", {"image": OTHERS["PNG RGB"]})
    assert largest_difference(ImageDecoder()(record)["image"], picture()) == 0


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF", "JPEG2000"])
def test_a_bomb_is_refused_from_its_header(kind):
    data = encode(RGB, kind)
    with pytest.raises(ValueError, match=r"120x90 is 10,800 pixels, at most 10,799"):
        decode(data, max_pixels=10_799)
    assert decode(data, max_pixels=10_800).shape == (90, 120, 3)


def test_a_real_bomb_is_neither_inflated_nor_given_memory(monkeypatch):
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", 200_000, 200_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    bomb += chunk(b"IDAT", zlib.compress(bytes(1_000_000))) + chunk(b"IEND", b"")

    def never(*given: object, **options: object) -> None:
        raise AssertionError("its pixels were asked for: they are 40 gigapixels")

    monkeypatch.setattr(ImageFile.ImageFile, "load", never)
    monkeypatch.setattr(zlib, "decompress", never)
    monkeypatch.setattr(zlib, "decompressobj", never)
    tracemalloc.start()
    with pytest.raises(ValueError, match="max_pixels"):
        decode(bomb)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 100_000, "a header, and what is said of it"


def test_twelve_bits_are_refused_by_name():
    data = bytearray(JPEGS["420"])
    data[data.find(b"\xff\xc0") + 4] = 12
    with pytest.raises(ValueError, match="12-bit JPEG"):
        decode(bytes(data))


def test_a_record_without_an_image_says_what_it_has():
    with pytest.raises(
        ValueError, match=r"the text 'a/b.jpg', .*dataset.storage.image_column=<its"
    ):
        ImageDecoder()(Record(0, "k", {"image": "a/b.jpg"}))
    with pytest.raises(ValueError, match=r"no field 'image'.*jpg, label"):
        ImageDecoder()(Record(0, "a", {"jpg": b"", "label": 1}))


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_image_decoder_keeps_the_contract(mode):
    boxes = np.ones((2, 4), np.float32)
    good = [
        Record(i, f"{i}.jpg", {"image": data, "label": i, "boxes": boxes})
        for i, data in enumerate([JPEGS["420"], JPEGS["grey"], OTHERS["PNG RGBA"]])
    ]
    damaged = [Record(9, "9.jpg", {"image": data}) for data in (b"", JPEGS["420"][:900], b"GIF89a")]
    check_decoder(ImageDecoder(mode=mode), good, damaged)


def test_raw_decoder_keeps_the_contract():
    good = [Record(i, str(i), {"features": np.arange(i, dtype=np.float32)}) for i in range(3)]
    check_decoder(make_raw_decoder(), good, [])


@pytest.mark.parametrize("name", OTHERS)
def test_damage_is_a_value_error_of_one_line_or_is_not_seen(name):
    rng = np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(OTHERS[name])
        damaged[rng.integers(len(damaged))] = rng.integers(256)
        try:
            image = decode(bytes(damaged), max_pixels=1_000_000)
        except ValueError as error:
            assert "\n" not in str(error)
        else:
            assert image.dtype == np.uint8 and image.shape[2] == 3


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", OTHERS)
def test_the_limit_on_pixels_is_ours_and_not_pillows(name, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # it refuses images of twice as many
    assert decode(OTHERS[name]).shape == (90, 120, 3)
