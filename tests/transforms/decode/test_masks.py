"""Masks: every kind of PNG that holds class ids, written by Pillow."""

from __future__ import annotations

import io

import h5py
import numpy as np
import pytest
from PIL import Image

from penstock import build_loader, compose
from penstock.core.sample import Record
from penstock.pipeline.config.errors import ConfigError
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.image.masks import decode_mask

IDS = np.random.default_rng(0).integers(0, 4, (13, 17)).astype(np.uint8)
COLOURS = [[0, 0, 0], [128, 64, 128], [255, 0, 7], [1, 2, 3]]


def png(image: Image.Image, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def palette(ids: np.ndarray, bits: int = 8) -> Image.Image:
    image = Image.fromarray(ids).convert("L")
    image = Image.frombytes("P", image.size, image.tobytes())
    colours = (COLOURS * 64)[: 1 << bits]
    image.putpalette([value for colour in colours for value in colour])
    return image


def decoded(data):
    return decode_mask(data, colours=None, max_pixels=10_000)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_palettes_give_indices_and_no_colours(bits):
    for options in ({}, {"transparency": 0}):
        data = png(palette(IDS, bits), bits=bits, **options)
        assert (data[24], data[25]) == (bits, 3), "a palette of so many bits"
        found = decoded(data)
        assert found.dtype == np.uint8
        assert (found == IDS).all()


def test_one_bit():
    assert (decoded(png(Image.fromarray(IDS > 1))) == (IDS > 1)).all()
    assert (decoded(png(palette((IDS > 1).astype(np.uint8), 1), bits=1)) == (IDS > 1)).all()


def test_greys():
    assert (decoded(png(Image.fromarray(IDS))) == IDS).all()
    wide = IDS.astype(np.uint16) * 9000
    found = decoded(png(Image.fromarray(wide)))
    assert found.dtype == np.uint16 and (found == wide).all()


def test_colours_by_their_class():
    rgb = np.array(COLOURS, np.uint8)[IDS]
    decoder = ImageDecoder(mask_colors=COLOURS)
    fields = {"image": rgb, "mask": png(Image.fromarray(rgb))}
    assert (decoder(Record(0, "a", fields))["mask"] == IDS).all()
    rgb[3, 5] = 77
    fields["mask"] = png(Image.fromarray(rgb))
    with pytest.raises(ValueError, match=r"colour \[77, 77, 77\] at 5, 3, which is not among"):
        decoder(Record(0, "a", fields))
    with pytest.raises(ValueError, match="say whose they are"):
        decoded(fields["mask"])


def test_greys_that_stand_for_classes():
    for ids in (IDS % 2, np.array([[255, 0, 7]], np.uint8) // 255):
        fields = {"image": np.zeros((*ids.shape, 3), np.uint8)}
        fields["mask"] = png(Image.fromarray(ids * 255))
        decoder = ImageDecoder(mask_colors=[0, 255])
        assert (decoder(Record(0, "a", fields))["mask"] == ids).all()
        named = ImageDecoder(mask_colors=[[0, 0, 0], 128, [255, 255, 255]])
        assert (named(Record(0, "a", fields))["mask"] == ids * 2).all()
    fields["mask"] = png(Image.fromarray(np.array([[0, 254, 255]], np.uint8)))
    with pytest.raises(ValueError, match=r"colour \[254, 254, 254\] at 1, 0, which is not among"):
        decoder(Record(0, "a", fields))


def test_arrays_hold_colours_as_files_do():
    """As the rows of a mapped or of a chunked file do, read-only views among them."""
    image = np.zeros((*IDS.shape, 3), np.uint8)
    rgb = np.array(COLOURS, np.uint8)[IDS]
    rgb.flags.writeable = False
    sample = ImageDecoder(mask_colors=COLOURS)(Record(0, "a", {"image": image, "mask": rgb}))
    assert (sample["mask"] == IDS).all() and sample["mask"].dtype == np.uint8
    decoder = ImageDecoder(mask_colors=[0, 255])
    for dtype in (np.uint8, np.int16, np.int64):
        grey = ((IDS > 1) * 255).astype(dtype)
        sample = decoder(Record(0, "a", {"image": image, "mask": grey}))
        assert (sample["mask"] == (IDS > 1)).all() and sample["mask"].dtype == np.uint8
    for wrong in (-1, 254, 256):
        grey = np.zeros(IDS.shape, np.int16)
        grey[3, 5] = wrong
        with pytest.raises(ValueError, match="at 5, 3, which is not among"):
            decoder(Record(0, "a", {"image": image, "mask": grey}))
    with pytest.raises(ValueError, match=r"a mask of uint8 \[.*3\], expected integer"):
        ImageDecoder()(Record(0, "a", {"image": image, "mask": rgb}))


@pytest.mark.parametrize("form", ["memmap", "npy_shards", "hdf5"])
def test_arrays_of_0_and_255_in_any_form(tmp_path, form):
    masks = np.zeros((5, 24, 24), np.uint8)
    masks[:, :9] = 255
    images = np.random.default_rng(0).integers(0, 255, (5, 24, 24, 3), np.uint8)
    (tmp_path / "data").mkdir()
    if form == "hdf5":
        with h5py.File(tmp_path / "data/a.h5", "w") as file:
            file["images"] = images
            file.create_dataset("masks", data=masks, chunks=(2, 24, 24), compression="gzip")
    else:
        ending = "_0" if form == "npy_shards" else ""
        np.save(tmp_path / f"data/images{ending}.npy", images)
        np.save(tmp_path / f"data/masks{ending}.npy", masks)
    given = [f"dataset={form}", f"dataset.storage.path={tmp_path / 'data'}", "augment=none",
             "loader=inline", "dataset.val_fraction=0", "loader.batch_size=5"]  # fmt: skip
    typed = ["dataset.decode.mask_colors=[0,255]"]
    if form != "hdf5":  # whose records may be images
        with pytest.raises(ConfigError, match=r"mask_colors: .*type dataset/decode=image too"):
            compose([*given, *typed])
        typed += ["dataset/decode=image"]
    with build_loader(compose([*given, *typed])) as loader:
        [batch] = loader
    assert batch["mask"].unique().tolist() == [0, 1]
    assert batch["mask"].float().mean().item() == pytest.approx(9 / 24, abs=0.02)  # resized


def test_arrays_pass():
    assert decoded(IDS) is IDS
    with pytest.raises(ValueError, match="a mask of float32"):
        decoded(IDS.astype(np.float32))


@pytest.mark.parametrize("cut", [0, 8, 20, 40, -13, -1])
def test_truncation(cut):
    with pytest.raises(ValueError):
        decoded(png(palette(IDS))[:cut])


def test_what_is_refused():
    jpeg = io.BytesIO()
    Image.fromarray(IDS).save(jpeg, "JPEG")
    with pytest.raises(ValueError, match="no PNG"):
        decoded(jpeg.getvalue())
    with pytest.raises(ValueError, match="with alpha"):
        decoded(png(Image.fromarray(np.zeros((4, 4, 4), np.uint8))))
    with pytest.raises(ValueError, match="at most 100"):
        decode_mask(png(palette(IDS)), colours=None, max_pixels=100)


def test_a_mask_has_the_size_of_its_image():
    fields = {"image": np.zeros((13, 16, 3), np.uint8), "mask": png(palette(IDS))}
    for call in (ImageDecoder(), ImageDecoder().defer):
        with pytest.raises(ValueError, match="its mask has 17x13 pixels, the image 16x13"):
            call(Record(0, "a", fields))
