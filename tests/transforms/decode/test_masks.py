"""Masks: every kind of PNG that holds class ids, written by Pillow."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from penstock.core.sample import Record
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.image.masks import decode_mask

IDS = np.random.default_rng(0).integers(0, 4, (13, 17)).astype(np.uint8)
COLOURS = [[0, 0, 0], [128, 64, 128], [255, 0, 7], [1, 2, 3]]
BITS = (IDS > 1).astype(np.uint8)


def png(image: np.ndarray | Image.Image, **options) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    image.save(file, "PNG", **options)
    return file.getvalue()


def palette(ids: np.ndarray, bits: int, **options) -> bytes:
    image = Image.frombytes("P", ids.shape[::-1], ids.tobytes())
    image.putpalette([value for colour in (COLOURS * 64)[: 1 << bits] for value in colour])
    return png(image, bits=bits, **options)


def decoded(mask, *colours):
    shape = mask.shape[:2] if isinstance(mask, np.ndarray) else IDS.shape
    record = Record(0, "a", {"image": np.zeros((*shape, 3), np.uint8), "mask": mask})
    return ImageDecoder(mask_colors=list(colours))(record)["mask"]


@pytest.mark.parametrize(
    ("data", "ids"),
    [
        (palette(IDS, 2), IDS),
        (palette(IDS, 4, transparency=0), IDS),
        (palette(BITS, 1), BITS),
        (png(IDS > 1), BITS),
        (png(IDS), IDS),
        (png(IDS.astype(np.uint16) * 9000), IDS.astype(np.uint16) * 9000),
        (IDS, IDS),
    ],
)
def test_ids_are_greys_and_indices_of_palettes(data, ids):
    found = decoded(data)
    assert found.dtype == ids.dtype and (found == ids).all()


RGB = np.array(COLOURS, np.uint8)[IDS]
RGB.flags.writeable = False


@pytest.mark.parametrize(
    ("mask", "colours", "ids"),
    [
        (RGB, COLOURS, IDS),
        (BITS * 255, [0, 255], BITS),
        (BITS * 255, [[0, 0, 0], 128, [255, 255, 255]], BITS * 2),
        (BITS.astype(np.int64) * 255, [0, 255], BITS),
    ],
)
def test_colours_and_greys_stand_for_classes_in_files_and_arrays(mask, colours, ids):
    for given in (mask, png(mask)) if mask.dtype == np.uint8 else (mask,):
        found = decoded(given, *colours)
        assert found.dtype == np.uint8 and (found == ids).all()


def test_colours_of_palettes_stand_for_classes_too():
    assert (decoded(palette(IDS, 2), *COLOURS[::-1]) == 3 - IDS).all()
    assert (decoded(png(IDS > 1), 255, 0) == 1 - BITS).all()


@pytest.mark.parametrize("wrong", [-1, 77, 256])
def test_an_unknown_colour_is_refused_with_its_place(wrong):
    grey = np.zeros((13, 17), np.int16)
    grey[3, 5] = wrong
    for mask in [grey, *([png(grey.astype(np.uint8))] if wrong == 77 else [])]:
        with pytest.raises(ValueError, match=f"{wrong}.* at 5, 3"):
            decoded(mask, 0, 255)


JPEG = io.BytesIO()
Image.fromarray(IDS).save(JPEG, "JPEG")


@pytest.mark.parametrize(
    ("mask", "cause"),
    [
        (JPEG.getvalue(), "no PNG"),
        (png(np.zeros((4, 4, 4), np.uint8)), "with alpha"),
        (png(RGB), "mask_colors"),
        (RGB, r"a mask of uint8 \[.*3\], expected integer"),
        (png(IDS[:, 1:]), "its mask has 16x13 pixels, not 17x13"),
        *((palette(IDS, 8)[:cut], "PNG") for cut in (0, 8, 20, 40, -13, -1)),
    ],
)
def test_refusals(mask, cause):
    fields = {"image": np.zeros((13, 17, 3), np.uint8), "mask": mask}
    for call in (ImageDecoder(), ImageDecoder().defer):
        with pytest.raises(ValueError, match=cause):
            call(Record(0, "a", fields))
    with pytest.raises(ValueError, match="expected 1 to 100"):
        decode_mask(palette(IDS, 8), colours={}, max_pixels=100)
