"""Boxes, keypoints and polygons stated for an image of another size are scaled or refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from penstock import build_loader, compose

BASE = ["task=detection", "augment=as_is", "loader=inline", "loader.batch_size=1",
        "dataset.val_fraction=0", "loader.max_error_rate=0"]  # fmt: skip
WIDE, TALL = (60, 40), (40, 60)
BOX = [6, 8, 30, 32]
ROTATED = 6  # the EXIF orientation of a stored wide image that is shown tall


def write_image(folder, size, orientation=1):
    (folder / "images").mkdir(exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", size, (90, 120, 30)).save(folder / "images" / "a.jpg", exif=exif)


def coco(folder, size, **more):
    left, top, right, bottom = BOX
    image = {"id": 1, "file_name": "a.jpg"}
    if size is not None:
        image |= {"width": size[0], "height": size[1]}
    corners = [left, top, right, top, right, bottom, left, bottom]
    found = {"id": 1, "image_id": 1, "category_id": 1, "segmentation": [corners],
             "bbox": [left, top, right - left, bottom - top],
             "keypoints": [left, top, 2, right, bottom, 1]}  # fmt: skip
    content = {"images": [image], "annotations": [found], "categories": [{"id": 1, "name": "a"}]}
    (folder / "boxes.json").write_text(json.dumps(content))
    return ["dataset/annotations=coco", f"dataset.annotations.path={folder / 'boxes.json'}"]


def voc(folder, size):
    (folder / "xml").mkdir(exist_ok=True)
    stated = f"<size><width>{size[0]}</width><height>{size[1]}</height></size>" if size else ""
    edges = zip(("xmin", "ymin", "xmax", "ymax"), BOX, strict=True)
    box = "".join(f"<{name}>{edge}</{name}>" for name, edge in edges)
    (folder / "xml" / "a.xml").write_text(
        f"<annotation><filename>a.jpg</filename>{stated}<object><name>a</name><bndbox>{box}"
        "</bndbox></object></annotation>"
    )
    return ["dataset/annotations=voc", f"dataset.annotations.path={folder / 'xml'}",
            "dataset.annotations.one_based=false"]  # fmt: skip


def boxes_csv(folder, size):
    names = ",width,height" if size else ""
    sides = f",{size[0]},{size[1]}" if size else ""
    (folder / "boxes.csv").write_text(
        f"image,label,xmin,ymin,xmax,ymax{names}\na.jpg,a,{','.join(map(str, BOX))}{sides}\n"
    )
    typed = ["dataset/annotations=boxes_csv", f"dataset.annotations.path={folder / 'boxes.csv'}"]
    return [*typed, "dataset.annotations.size_columns=[width,height]"] if size else typed


FORMS = [coco, voc, boxes_csv]


def sample(folder, typed, keys=None):
    config = compose([*BASE, f"dataset.storage.path={folder / 'images'}", *typed])
    if keys is not None:
        config["dataset"]["keys"] = keys
    with build_loader(config) as loader:
        [batch] = loader
    return {name: np.asarray(values[0]) for name, values in batch.items()}


@pytest.mark.parametrize("form", FORMS)
def test_boxes_of_the_same_size_stay(tmp_path, form):
    write_image(tmp_path, WIDE)
    found = sample(tmp_path, form(tmp_path, WIDE))
    assert found["boxes"].tolist() == [BOX] and "stated_size" not in found


@pytest.mark.parametrize("form", FORMS)
def test_boxes_of_another_size_are_refused_until_they_are_scaled(tmp_path, form):
    write_image(tmp_path, WIDE)
    typed = form(tmp_path, (120, 80))
    with pytest.raises(ValueError, match=r"120x80.*60x40.*dataset\.annotations\.rescale=true"):
        sample(tmp_path, typed)
    found = sample(tmp_path, [*typed, "dataset.annotations.rescale=true"])
    assert np.allclose(found["boxes"], np.array([BOX]) / 2, atol=1e-4)
    if form is coco:
        assert np.allclose(found["keypoints"], [[3, 4, 2], [15, 16, 1]], atol=1e-4)


def test_each_side_is_scaled_by_itself(tmp_path):
    write_image(tmp_path, WIDE)
    found = sample(tmp_path, [*coco(tmp_path, (60, 80)), "dataset.annotations.rescale=true"])
    assert np.allclose(found["boxes"], [[6, 4, 30, 16]], atol=1e-4)


@pytest.mark.parametrize("kept", ["keypoints", "boxes"])
def test_no_choice_of_fields_hides_the_size(tmp_path, kept):
    write_image(tmp_path, WIDE)
    keys = {"*": None, "image": "image", kept: kept}
    with pytest.raises(ValueError, match="120x80"):
        sample(tmp_path, coco(tmp_path, (120, 80)), keys)


def test_polygons_of_another_size_are_refused_and_never_scaled(tmp_path):
    pytest.importorskip("pycocotools")
    write_image(tmp_path, WIDE)
    typed = [*coco(tmp_path, (120, 80)), "dataset.annotations.masks=true"]
    with pytest.raises(ValueError, match="120x80"):
        sample(tmp_path, typed)
    with pytest.raises(ValueError, match="masks"):
        sample(tmp_path, [*typed, "dataset.annotations.rescale=true"])
    found = sample(tmp_path, [*coco(tmp_path, WIDE), "dataset.annotations.masks=true"])
    assert found["box_masks"].shape == (1, 40, 60)


@pytest.mark.parametrize("form", FORMS)
def test_scaling_needs_a_stated_size(tmp_path, form):
    write_image(tmp_path, WIDE)
    with pytest.raises(ValueError, match=r"rescale"):
        sample(tmp_path, [*form(tmp_path, None), "dataset.annotations.rescale=true"])


@pytest.mark.parametrize("form", FORMS)
def test_a_box_outside_of_an_image_of_unknown_size_is_refused(tmp_path, form):
    write_image(tmp_path, (60, 8))
    with pytest.raises(ValueError, match=r"6, 8, 30, 32.*60x8"):
        sample(tmp_path, form(tmp_path, None))


@pytest.mark.parametrize("form", FORMS)
def test_boxes_relate_to_the_image_as_it_is_decoded(tmp_path, form):
    write_image(tmp_path, WIDE, ROTATED)
    shown = sample(tmp_path, form(tmp_path, TALL))
    assert shown["image"].shape == (60, 40, 3) and shown["boxes"].tolist() == [BOX]
    stored = sample(tmp_path, [*form(tmp_path, WIDE), "dataset.decode.orientation=ignore"])
    assert stored["image"].shape == (40, 60, 3) and stored["boxes"].tolist() == [BOX]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rescale", ["false", "true"])
@pytest.mark.parametrize("size", [WIDE, (120, 80)])
def test_boxes_of_the_other_orientation_are_refused(tmp_path, form, rescale, size):
    write_image(tmp_path, WIDE, ROTATED)
    typed = [*form(tmp_path, size), f"dataset.annotations.rescale={rescale}"]
    with pytest.raises(ValueError, match=r"40x60.*dataset\.decode\.orientation=ignore"):
        sample(tmp_path, typed)
    typed = [*form(tmp_path, TALL), "dataset.decode.orientation=ignore",
             f"dataset.annotations.rescale={rescale}"]  # fmt: skip
    with pytest.raises(ValueError, match=r"60x40.*dataset\.decode\.orientation=apply"):
        sample(tmp_path, typed)


def test_shares_relate_to_the_image_as_it_is_decoded(tmp_path):
    write_image(tmp_path, WIDE, ROTATED)
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("0 0.5 0.5 0.5 0.2\n")
    shown = sample(tmp_path, ["dataset/annotations=yolo"])
    assert np.allclose(shown["boxes"], [[10, 24, 30, 36]])
    stored = sample(tmp_path, ["dataset/annotations=yolo", "dataset.decode.orientation=ignore"])
    assert np.allclose(stored["boxes"], [[15, 16, 45, 24]])
