"""Regions by TurboJPEG have the pixels of the whole image; a complaint of any kind is None."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st

from penstock.transforms.decode.image import ImageDecoder, turbojpeg
from penstock.transforms.decode.image.header import read_jpeg_header
from penstock.transforms.decode.image.jpeg import region_around
from penstock.transforms.decode.image.turbojpeg import RegionDecoder, region_decoder
from tests.photographs import SAMPLINGS, photograph

DECODER = region_decoder()
ROOT = Path(__file__).resolve().parents[3]
COLORS = {"RGB": "RGB", "L": "GRAY", "RGBA": "RGBA"}

pytestmark = pytest.mark.skipif(
    DECODER is None, reason="no TurboJPEG 3 on this machine: pip install turbojpeg"
)


@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.sampled_from([*SAMPLINGS, "grey"]),
    st.sampled_from([0, 1, 4]),
    st.sampled_from([*COLORS]),
    st.sampled_from([1, 2, 4, 8]),
    st.data(),
)
def test_a_region_has_the_pixels_of_the_whole_image(
    height, width, sampling, interval, mode, factor, draw
):
    data = photograph(height, width, sampling=sampling, interval=interval)
    small_height, small_width = -(-height // factor), -(-width // factor)
    least = {"min_height": small_height, "min_width": small_width} if factor > 1 else {}
    whole = simplejpeg.decode_jpeg(data, COLORS[mode], **least)
    x_min = draw.draw(st.integers(0, width - 1))
    y_min = draw.draw(st.integers(0, height - 1))
    x_max = draw.draw(st.integers(x_min + 1, width))
    y_max = draw.draw(st.integers(y_min + 1, height))
    box = (x_min, y_min, x_max, y_max)
    scan = read_jpeg_header(data).scan
    region = region_around(scan, box, factor)
    if region is None:  # no unit would be saved
        assert small_width < 8 or x_min // factor < scan.unit_width // factor + 8
        return
    left, top, right, bottom = region
    assert left <= x_min // factor and right >= -(-x_max // factor)
    assert top <= y_min // factor and bottom >= -(-y_max // factor)
    pixels = DECODER.decode(data, mode, region, factor)
    assert pixels.shape == (bottom - top, right - left, whole.shape[2])
    # What is kept around the box for the sake of its edge may differ itself.
    within = np.s_[y_min // factor : -(-y_max // factor), x_min // factor : -(-x_max // factor)]
    part = pixels[within[0].start - top : within[0].stop - top]
    part = part[:, within[1].start - left : within[1].stop - left]
    assert np.array_equal(part, whole[within])


@pytest.mark.parametrize("sampling", [*SAMPLINGS, "grey"])
def test_edges_at_every_column_and_row_have_the_pixels_of_the_whole_image(sampling):
    data = photograph(70, 100, sampling=sampling)
    whole = simplejpeg.decode_jpeg(data, COLORS["L" if sampling == "grey" else "RGB"])
    columns = [(x, 20, x + 1, 50) for x in range(99)] + [(x, 20, 100, 50) for x in range(99)]
    rows = [(20, y, 50, y + 1) for y in range(69)] + [(20, y, 50, 70) for y in range(69)]
    for box in [*columns, *rows]:
        region = region_around(read_jpeg_header(data).scan, box, 1) or (0, 0, 100, 70)
        pixels = DECODER.decode(data, "L" if sampling == "grey" else "RGB", region)
        part = pixels[box[1] - region[1] :, box[0] - region[0] :]
        part = part[: box[3] - box[1], : box[2] - box[0]]
        assert np.array_equal(part, whole[box[1] : box[3], box[0] : box[2]]), box


def test_only_the_region_is_decoded():
    image = ImageDecoder()._deferred(photograph(301, 500))
    pixels, left, top = image.around((200, 100, 300, 150))
    assert (left, top) == (192, 100)
    assert pixels.shape == (50, 302 - 192, 3)
    assert image.around((0, 0, 500, 301))[0].shape == (301, 500, 3)


@pytest.mark.parametrize("change", ["header", "entropy", "end", "text", "nothing"])
def test_a_complaint_of_any_kind_is_none(change):
    data = photograph(120, 130)
    at = read_jpeg_header(data).scan.data_at
    damaged = {
        "header": data[:100],
        "entropy": data[: at + 50] + b"\xff\xd9",
        "end": data[: at + 300],
        "text": b"not a JPEG",
        "nothing": b"",
    }[change]
    assert DECODER.decode(damaged, "RGB", (0, 60, 130, 110)) is None
    # Nothing of it is left over for the next one.
    assert DECODER.decode(data, "RGB", (0, 60, 130, 110)) is not None


def test_a_region_outside_of_the_image_or_of_no_pixels_is_refused():
    data = photograph(120, 130)
    for box in ((8, 0, 40, 40), (0, 0, 131, 40), (0, 100, 40, 121), (-16, 0, 16, 40)):
        assert DECODER.decode(data, "RGB", box) is None
    for box in ((16, 0, 16, 40), (16, 40, 32, 40), (32, 0, 16, 40)):
        with pytest.raises(ValueError, match="at least one pixel"):
            DECODER.decode(data, "RGB", box)


def test_every_thread_has_a_decoder_which_ends_with_it():
    files = [photograph(97, 131, sampling=sampling) for sampling in SAMPLINGS]
    expected = [DECODER.decode(data, "RGB", (32, 10, 131, 70)) for data in files]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            found = pool.map(lambda data: DECODER.decode(data, "RGB", (32, 10, 131, 70)), files)
            assert all(map(np.array_equal, found, expected))
    instances = []

    def decode() -> None:
        DECODER.decode(files[0], "RGB", (0, 0, 32, 32))
        instances.append(weakref.ref(DECODER._threads.instance))

    thread = threading.Thread(target=decode)
    thread.start()
    thread.join()
    gc.collect()
    assert instances[0]() is None


def test_a_library_is_taken_only_if_it_gives_the_right_pixels(tmp_path, monkeypatch):
    text = tmp_path / "libturbojpeg.so.0"
    text.write_text("no library")
    others = [str(text), str(tmp_path / "missing"), "libc.so.6"]
    monkeypatch.setattr(turbojpeg, "_paths", lambda: iter([*others, DECODER.path]))
    found = region_decoder.__wrapped__()
    assert found is not None and found.path == DECODER.path
    monkeypatch.setattr(turbojpeg, "_paths", lambda: iter(others))
    assert region_decoder.__wrapped__() is None

    right = RegionDecoder.decode
    for wrong in (
        lambda *arguments: None,
        lambda *arguments: right(*arguments) ^ 1,
        lambda self, data, mode, box, factor=1: right(
            self, data, mode, (0, box[1], box[2] - box[0], box[3]), factor
        ),
    ):
        monkeypatch.setattr(turbojpeg, "_paths", lambda: iter([DECODER.path]))
        monkeypatch.setattr(RegionDecoder, "decode", wrong)
        assert region_decoder.__wrapped__() is None


def test_no_damage_brings_the_process_down():
    code = """
import numpy as np
from tests.photographs import photograph
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.image.turbojpeg import region_decoder

rng = np.random.default_rng(7)
files = [photograph(97, 131, sampling=kind) for kind in ("420", "444", "grey")]
decoder, failed = ImageDecoder(max_pixels=10**6), 0
for trial in range(1500):
    data = bytearray(files[trial % 3])
    for at in rng.integers(2, len(data) if trial % 2 else 700, 1 + trial % 4).tolist():
        data[at] = int(rng.integers(256))
    try:
        image = decoder._deferred(bytes(data))
        if hasattr(image, "around"):
            height, width, _ = image.shape
            image.around((width // 3, height // 3, width // 3 + 1, height // 3 + 1))
    except ValueError:
        failed += 1
    region_decoder().decode(bytes(data), "RGB", (16, 9, 40, 30))
print("failed", failed > 200)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=250
    )
    assert done.stdout == "failed True\n", (done.returncode, done.stderr[-1000:])
