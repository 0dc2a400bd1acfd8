"""Decoding what a crop needs gives the pixels of the whole image, and hides no damage in it."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core.sample import PendingImage, Record, RecordError
from penstock.transforms.decode.image import ImageDecoder, jpeg
from penstock.transforms.decode.image.header import read_header
from penstock.transforms.decode.image.jpeg_tiles import write_tiled
from penstock.transforms.decode.image.turbojpeg import region_decoder
from tests.encoded_images import OTHERS
from tests.photographs import SAMPLINGS, photograph, scene, turned

SIZES = [(97, 131), (64, 128), (33, 200), (301, 223), (8, 300), (9, 9), (1, 1), (250, 67)]
TILED = write_tiled(scene(120, 400), quality=95)
WHOLE = ImageDecoder(region="whole")
needs_turbojpeg = pytest.mark.skipif(region_decoder() is None, reason="no TurboJPEG 3")


@pytest.fixture(autouse=True, params=[pytest.param("regions", marks=needs_turbojpeg), "rows"])
def way(request, monkeypatch) -> str:
    """With TurboJPEG and without it."""
    if request.param == "rows":
        monkeypatch.setattr(jpeg, "region_decoder", lambda: None)
    return request.param


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


def check_all_boxes(data: bytes, count: int = 12, **options: object) -> bool:
    """Compare every pixel of many boxes; return whether some were decoded in part."""
    whole, pending = ImageDecoder(**options).decode(data), defer(data, **options)
    assert pending.shape == whole.shape and np.array_equal(pending.whole(), whole)
    in_part = False
    for box in boxes(*whole.shape[:2], count):
        pixels, left, top = pending.around(box)
        part = pixels[box[1] - top : box[3] - top, box[0] - left : box[2] - left]
        assert np.array_equal(part, whole[box[1] : box[3], box[0] : box[2]]), box
        assert pixels.flags.writeable
        in_part |= pixels.shape != whole.shape
    return in_part


@pytest.mark.parametrize("sampling", [*SAMPLINGS, "grey"])
@pytest.mark.parametrize("size", SIZES)
def test_parts_have_the_pixels_of_the_whole_image(size, sampling, way):
    in_part = [
        check_all_boxes(photograph(*size, sampling=sampling, interval=interval), count=8)
        for interval in (0, 1, 3)
    ]
    # Without TurboJPEG, files with restart markers are decoded whole.
    assert all(in_part if way == "regions" else in_part[:1]) or size[0] < 60


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("size", [*SIZES, (700, 900)])
def test_tiles_have_the_pixels_of_the_whole_image(size, mode):
    for channels in (3, 1):
        data = write_tiled(scene(*size)[..., :channels], quality=95)
        assert WHOLE.decode(data).shape[:2] == size
        assert check_all_boxes(data, mode=mode) or min(size) < 90


def test_only_the_part_is_decoded(way):
    shapes = {"regions": (50, 110, 3), "rows": (152, 500, 3)}
    assert defer(photograph(301, 500)).around((200, 100, 300, 150))[0].shape == shapes[way]
    tiled = defer(write_tiled(scene(700, 900), quality=95)).around((300, 300, 400, 400))
    assert tiled[0].shape == (128, 192, 3) and tiled[1:] == (256, 288)


def test_a_damaged_table_is_damage():
    table = TILED.find(b"\xff\xe9")
    for at in range(table + 20, table + 60, 3):
        damaged = TILED[:at] + bytes([TILED[at] ^ 4]) + TILED[at + 1 :]
        with pytest.raises(RecordError, match="table of tiles"):
            WHOLE.decode(damaged)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (photograph(97, 131, progressive=True), "progressive or unusual"),
        (turned(97, 131, 6), "EXIF orientation"),
        (OTHERS["PNG RGB"], "PNG"),
    ],
)
def test_others_are_decoded_whole_at_once(data, reason):
    decoder = ImageDecoder()
    image = decoder.defer(Record(0, "a", {"image": data}))["image"]
    assert np.array_equal(image, WHOLE.decode(data))
    assert reason in decoder.whole_because(data)
    assert isinstance(WHOLE.defer(Record(0, "a", {"image": TILED}))["image"], np.ndarray)
    assert check_all_boxes(turned(97, 131, 6), orientation="ignore")


def test_every_truncated_file_raises_even_if_the_crop_lies_above():
    for data, box in ((photograph(120, 130), (0, 0, 16, 16)), (TILED, (0, 60, 400, 120))):
        start = read_header(data).data_at
        for length in np.linspace(start + 1, len(data) - 2, 30).astype(int).tolist():
            with pytest.raises(RecordError):
                defer(data[:length]).around(box)


def outcome(decode) -> np.ndarray | None:
    try:
        return decode()
    except RecordError:
        return None


def crop_of(data: bytes, box: tuple[int, int, int, int]) -> np.ndarray:
    pixels, left, top = defer(data).around(box)
    return pixels[box[1] - top : box[3] - top, box[0] - left : box[2] - left]


@pytest.mark.parametrize("data", [photograph(160, 192), photograph(160, 192, interval=12), TILED])
def test_a_part_is_never_stricter_than_the_whole_and_never_has_other_pixels(data):
    header = read_header(data)
    rng = np.random.default_rng(3)
    damaged_wholes = damaged_parts = 0
    for trial in range(180):
        at, size = int(rng.integers(header.data_at, len(data) - 40)), (1, 3, 20)[trial // 60]
        damaged = [
            data[:at] + bytes([data[at] ^ 1 << trial % 8]) + data[at + 1 :],
            data[:at] + data[at + size :],
            data[:at] + b"\xff\x00" * size + data[at + 2 * size :],
        ][trial % 3]
        whole = outcome(lambda damaged=damaged: WHOLE.decode(damaged))
        box = boxes(header.height, header.width, 1, seed=trial)[-1]
        part = outcome(lambda damaged=damaged, box=box: crop_of(damaged, box))
        damaged_wholes += whole is None
        damaged_parts += part is None
        if whole is not None:
            assert np.array_equal(part, whole[box[1] : box[3], box[0] : box[2]])
    assert damaged_wholes >= 15 and damaged_parts >= 3


def test_no_damage_brings_the_process_down():
    rng, failed = np.random.default_rng(7), 0
    files = [photograph(97, 131, sampling=kind) for kind in ("420", "444", "grey")]
    for trial in range(1500):
        data = bytearray(files[trial % 3])
        for at in rng.integers(2, len(data) if trial % 2 else 700, 1 + trial % 4).tolist():
            data[at] = int(rng.integers(256))
        try:
            defer(bytes(data), max_pixels=10**6).around((5, 5, 6, 6))
        except (RecordError, AssertionError):  # damage, or decoded whole
            failed += 1
    assert failed > 200
