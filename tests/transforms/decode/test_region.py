"""Decoding what a crop needs gives the pixels of the whole image, and hides no damage in it."""

from __future__ import annotations

import itertools
import struct

import cv2
import numpy as np
import pytest

from penstock.core.sample import PendingImage, Record, RecordError
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.image.files import read_header
from penstock.transforms.decode.image.jpeg import cut_part
from penstock.transforms.decode.image.jpeg_tiles import write_tiled
from tests.encoded_images import OTHERS
from tests.photographs import photograph, scene, turned

# Restart intervals in units: within a row, a row, two rows, and one that fits no row.
SIZES = [(97, 131), (64, 128), (33, 200), (301, 223), (16, 16), (8, 300), (9, 9), (1, 1), (250, 67)]
SAMPLINGS = ["420", "422", "440", "444", "411", "grey"]
pytestmark = pytest.mark.usefixtures("part_of_a_jpeg")
SEVEN_TILES = write_tiled(scene(120, 400), quality=95)


def defer(data: bytes, **options: object) -> PendingImage:
    image = ImageDecoder(**options).defer(Record(0, "a", {"image": data}))["image"]
    assert isinstance(image, PendingImage)
    return image


def boxes(height: int, width: int, count: int, seed: int = 0) -> list[tuple[int, int, int, int]]:
    """Boxes of every kind: single pixels, whole rows and columns, the corners, any others."""
    rng = np.random.default_rng([seed, height, width])
    found = [(0, 0, width, height), (0, 0, 1, 1), (width - 1, height - 1, width, height)]
    found += [(0, height // 2, width, height // 2 + 1), (width // 2, 0, width // 2 + 1, height)]
    for _ in range(count):
        x = sorted(rng.choice(width + 1, 2, replace=False).tolist())
        y = sorted(rng.choice(height + 1, 2, replace=False).tolist())
        found.append((x[0], y[0], x[1], y[1]))
    return found


def check_all_boxes(data: bytes, count: int = 12, **options: object) -> set[bool | None]:
    """Compare every pixel of many boxes; tells which ways were taken."""
    whole = ImageDecoder(**options).decode(data)
    pending = defer(data, **options)
    assert pending.shape == whole.shape
    assert np.array_equal(pending.whole(), whole)
    scan = read_header(data).scan
    assert scan is not None
    ways: set[bool | None] = set()
    for box in boxes(*whole.shape[:2], count):
        pixels, left, top = pending.around(box)
        x_min, y_min, x_max, y_max = box
        part = pixels[y_min - top : y_max - top, x_min - left : x_max - left]
        assert np.array_equal(part, whole[y_min:y_max, x_min:x_max]), box
        assert pixels.flags.writeable
        cut = cut_part(data, scan, box)
        ways.add(None if cut is None else cut.exhaustive)
    return ways


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("size", SIZES)
def test_rows_below_the_crop_are_left_out_with_equal_pixels(size, sampling):
    ways = check_all_boxes(photograph(*size, sampling=sampling))
    if size[0] > 60:
        assert False in ways


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("size", SIZES)
def test_any_restart_interval_gives_equal_pixels(size, sampling):
    scan = read_header(photograph(*size, sampling=sampling)).scan
    units = -(-size[1] // scan.unit_width)
    divisors = {n for n in range(1, units + 1) if units % n == 0}
    for interval in sorted({1, units, 2 * units, 3, *list(divisors)[:3]}):
        data = photograph(*size, sampling=sampling, interval=interval)
        ways = check_all_boxes(data, count=6)
        regular = units % interval == 0 or interval % units == 0
        assert ways <= ({True, None} if regular else {None})
        if regular and interval == 1 and min(size) > 60:
            assert True in ways


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("size", [*SIZES, (700, 900)])
def test_tiled_files_give_the_pixels_of_their_whole_decoding(size, mode):
    for channels in (3, 1):
        image = scene(*size)[..., :channels]
        data = write_tiled(image, quality=95)
        assert ImageDecoder().decode(data).shape[:2] == size
        ways = check_all_boxes(data, mode=mode)
        if min(size) > 90:
            assert ways == {True, None}


@pytest.mark.parametrize("quality", [50, 95])
def test_a_tiled_file_is_an_ordinary_jpeg_with_a_wider_edge(quality):
    image = scene(90, 100)
    data = write_tiled(image, quality=quality)
    others = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    assert others.shape == (90, 128, 3)
    assert np.array_equal(others[:, :100], ImageDecoder().decode(data))
    padded = np.pad(image, ((0, 0), (0, 28), (0, 0)), mode="edge")[..., ::-1]
    untiled = cv2.imencode(".jpg", padded, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    assert np.array_equal(others, cv2.imdecode(untiled, cv2.IMREAD_COLOR)[..., ::-1])


def test_tiles_are_found_without_the_table():
    table = SEVEN_TILES.find(b"\xff\xe9")
    (length,) = struct.unpack_from(">H", SEVEN_TILES, table + 2)
    bare = SEVEN_TILES[:table] + SEVEN_TILES[table + 2 + length :]
    assert ImageDecoder().decode(bare).shape == (120, 448, 3)
    assert True in check_all_boxes(bare)


def test_a_damaged_table_is_damage():
    table = SEVEN_TILES.find(b"\xff\xe9")
    for at in range(table + 20, table + 60, 3):
        damaged = bytearray(SEVEN_TILES)
        damaged[at] ^= 4
        with pytest.raises(ValueError, match="table of tiles"):
            ImageDecoder().decode(bytes(damaged))
    foreign = bytearray(SEVEN_TILES)
    foreign[table + 4] ^= 1  # another program's segment: the image is as wide as it is stored
    assert ImageDecoder().decode(bytes(foreign)).shape == (120, 448, 3)


def test_tiles_save_most_of_the_bytes():
    data = write_tiled(scene(700, 900), quality=95)
    part = cut_part(data, read_header(data).scan, (300, 300, 400, 400))
    assert part is not None and part.exhaustive
    assert (part.left, part.top, part.width, part.height) == (256, 288, 192, 128)
    assert len(part.file) < len(data) / 10


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (photograph(97, 131, progressive=True), "progressive or unusual"),
        (turned(97, 131, 6), "EXIF orientation"),
        (OTHERS["PNG RGB"], "PNG"),
        (OTHERS["WebP lossy"], "WebP"),
    ],
)
def test_others_are_decoded_whole_at_once(data, reason):
    decoder = ImageDecoder()
    image = decoder.defer(Record(0, "a", {"image": data}))["image"]
    assert np.array_equal(image, decoder.decode(data))
    assert reason in decoder.whole_because(data)


def test_orientation_that_is_ignored_and_regions_that_are_not_wanted():
    assert True in check_all_boxes(photograph(97, 131, interval=9), orientation="ignore")
    assert False in check_all_boxes(turned(97, 131, 6), orientation="ignore")
    image = ImageDecoder(region="whole").defer(Record(0, "a", {"image": SEVEN_TILES}))["image"]
    assert isinstance(image, np.ndarray)


def test_every_truncated_file_raises_even_if_the_crop_lies_above():
    for data in (photograph(120, 130), photograph(120, 128, interval=8)):
        at = read_header(data).scan.data_at
        for length in np.linspace(at + 1, len(data) - 2, 30).astype(int).tolist():
            with pytest.raises(ValueError):
                defer(data[:length]).around((0, 60, 130 - 2, 110))
    # Plain files show it wherever the crop lies; tiles know only what they touch.
    data = photograph(120, 130)
    for length in np.linspace(at + 1, len(data) - 2, 30).astype(int).tolist():
        with pytest.raises(RecordError):
            defer(data[:length]).around((0, 0, 16, 16))


def outcome(decode) -> np.ndarray | None:
    try:
        return decode()
    except ValueError:
        return None


# What a decoder of all rows would notice while it is in the rows that the crop needs.
@pytest.mark.parametrize(
    "replaced", [b"\xff" + bytes([kind]) for kind in b"\xd3\xd9\xda\x01\xc8\xc0\xe1\x7f"]
)
@pytest.mark.parametrize("interval", [0, 3, 9])
def test_markers_within_the_decoded_rows_raise(replaced, interval):
    data = photograph(120, 130, interval=interval)
    at = read_header(data).scan.data_at
    upper = at + (len(data) - at) // 4
    for where in range(at, upper, (upper - at) // 20):
        damaged = data[:where] + replaced + data[where + 2 :]
        with pytest.raises(ValueError):
            ImageDecoder().decode(damaged)
        with pytest.raises(RecordError):
            defer(damaged).around((0, 0, 130, 80))


@pytest.mark.parametrize("kind", ["plain", "rows", "tiles"])
def test_damage_never_passes_where_whole_decoding_of_these_rows_finds_it(kind):
    data = {
        "plain": photograph(160, 192),
        "rows": photograph(160, 192, interval=12),
        "tiles": write_tiled(scene(160, 192), quality=90),
    }[kind]
    scan = read_header(data).scan
    rng = np.random.default_rng(3)
    whole_raises = region_raises = 0
    for trial, size in itertools.product(range(60), (1, 3, 20)):
        # Bytes flipped, cut out or set to ones, which no Huffman code begins with.
        at = int(rng.integers(scan.data_at, len(data) - 30))
        kinds = [
            data[:at] + bytes([data[at] ^ 1 << trial % 8]) + data[at + 1 :],
            data[:at] + data[at + size :],
            data[:at] + b"\xff\x00" * size + data[at + 2 * size :],
        ]
        damaged = kinds[trial % 3]
        whole = outcome(lambda damaged=damaged: ImageDecoder().decode(damaged))
        same = outcome(lambda damaged=damaged: defer(damaged).around((0, 0, 192, 160))[0])
        assert (whole is None) == (same is None)
        assert whole is None or np.array_equal(whole, same)
        box = boxes(160, 192, 1, seed=trial * 31 + size)[-1]
        part = outcome(lambda damaged=damaged, box=box: crop_of(damaged, box))
        whole_raises += whole is None
        region_raises += part is None
        if part is None:
            # A region is never stricter than the whole image.
            assert whole is None
        elif whole is not None:
            assert np.array_equal(part, whole[box[1] : box[3], box[0] : box[2]])
    assert whole_raises >= 15 and region_raises >= 5


def crop_of(data: bytes, box: tuple[int, int, int, int]) -> np.ndarray:
    pixels, left, top = defer(data).around(box)
    return pixels[box[1] - top : box[3] - top, box[0] - left : box[2] - left]


@pytest.mark.parametrize("kind", ["rows", "tiles"])
def test_damage_in_touched_tiles_raises_wherever_the_whole_image_does(kind):
    data = photograph(160, 192, interval=12) if kind == "rows" else SEVEN_TILES
    header = read_header(data)
    box = (0, 0, header.width, 60)
    part = cut_part(data, header.scan, box)
    assert part is not None and part.exhaustive and part.width == header.scan.width
    rng = np.random.default_rng(5)
    raised = 0
    for trial in range(120):
        # The touched tiles are the first ones, so their bytes are the first ones too.
        at = int(rng.integers(header.scan.data_at, len(part.file) - 45))
        kinds = [data[:at] + data[at + 40 :], data[:at] + b"\xff\x00" * 4 + data[at + 8 :]]
        damaged = kinds[trial % 2]
        if outcome(lambda damaged=damaged: ImageDecoder().decode(damaged)) is None:
            raised += 1
            with pytest.raises(RecordError):
                defer(damaged).around(box)
    assert raised > 60
