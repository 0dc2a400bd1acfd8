"""What is drawn, against the exact ground truth of the demo set's scenes."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core.sample import BadSample
from penstock.datasets.demo.shapes import CLASSES, draw_scene
from penstock.pipeline.pictures.fields import Classes
from penstock.pipeline.pictures.picture import (
    PointNames,
    array_picture,
    as_pixels,
    channels_last,
    class_colour,
    draw_cell,
    draw_mask,
    scaled,
)

NAMED = {"label": Classes(CLASSES), "box_labels": Classes(CLASSES)}
SCENES = [draw_scene(0, number) for number in range(12)]


def drawn(height, width, *, factor=1, points=None, **fields):
    """A cell of a black image with boxes or keypoints over it."""
    sample = {"image": np.zeros((height, width, 3), np.uint8), **fields}
    size = factor * max(height, width)
    return draw_cell(sample, "original", size=size, classes=NAMED, points=points)


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("factor", [1, 3])
def test_an_outline_lies_on_the_outermost_pixels_of_its_shape(scene, factor):
    canvas = drawn(*scene.mask.shape, factor=factor, boxes=scene.boxes[:1]).picture
    y, x = np.nonzero(canvas.any(2))
    shape = np.isin(scene.mask, scene.label + 1)
    x0, y0, x1, y1 = scene.boxes[0]
    # The first box is exactly around the largest shape's own pixels.
    assert shape[y0:y1, x0:x1].any(0).all()
    assert (x.min(), x.max()) == (x0 * factor, x1 * factor - 1)
    assert (y.min(), y.max()) == (y0 * factor, y1 * factor - 1)
    inner = canvas[y0 * factor + 2 : y1 * factor - 2, x0 * factor + 2 : x1 * factor - 2]
    assert not inner.any()
    for column in (x0 * factor, x1 * factor - 1):
        assert (canvas[y0 * factor : y1 * factor, column] == class_colour(0)).all()


@pytest.mark.parametrize("scene", SCENES)
def test_masks_tint_the_pixels_of_their_classes_and_no_others(scene):
    canvas = scene.image.copy()
    classes = Classes(("background", *CLASSES))
    legend = draw_mask(canvas, scene.mask, classes)
    for number in np.unique(scene.mask):
        here = scene.mask == number
        expected = scene.image[here]
        if number:
            expected = np.rint(expected * 0.55 + np.array(class_colour(int(number))) * 0.45)
            assert legend[classes.name(int(number))] == class_colour(int(number))
        assert (canvas[here] == expected).all()
    assert "background" not in legend


def test_the_shares_of_a_masks_pixels_are_told_the_largest_first():
    mask = np.zeros((10, 20), np.uint8)
    mask[:2], mask[9, 19] = 2, 255
    classes = {"mask": Classes(("sky", "road", "car"))}
    sample = {"image": np.zeros((10, 20, 3), np.uint8), "mask": mask, "label": 3}
    assert draw_cell(sample, "original", size=64, classes=classes).lines == (
        "3 · 20 × 10 pixels · pixels: sky 79.5%, car 20.0%, 255 0.5%",
    )


@pytest.mark.parametrize("factor", [2, 3])
def test_a_mask_grows_with_its_picture(factor):
    scene, classes = SCENES[1], Classes(("background", *CLASSES))
    small, large = scene.image.copy(), np.repeat(np.repeat(scene.image, factor, 0), factor, 1)
    draw_mask(small, scene.mask, classes)
    draw_mask(large, scene.mask, classes)
    assert (large == np.repeat(np.repeat(small, factor, 0), factor, 1)).all()


def test_ignored_pixels_are_striped_and_so_are_ids_that_are_no_class():
    mask = np.zeros((30, 30), np.int64)
    mask[:10], mask[10:20] = 11, 255
    canvas = np.full((30, 30, 3), 120, np.uint8)
    legend = draw_mask(canvas, mask, Classes([f"c{i}" for i in range(12)], frozenset({11})))
    for rows in (slice(0, 10), slice(10, 20)):
        assert {tuple(p) for p in canvas[rows].reshape(-1, 3).tolist()} == {
            (20, 20, 20),
            (235, 235, 235),
        }
    assert (canvas[20:] == np.rint(120 * 0.55 + np.array(class_colour(0)) * 0.45)).all()
    assert list(legend) == ["c0", "ignored"]


def test_keypoints_are_drawn_in_the_middle_of_the_pixel_that_they_name():
    scene = SCENES[3]
    points = np.array(scene.keypoints, np.float32)
    points[1, 2], points[2, 2] = 0, 1
    canvas = drawn(*scene.mask.shape, factor=4, keypoints=points).picture
    for number, (x, y, visibility) in enumerate(points.astype(int).tolist()):
        found = tuple(canvas[y * 4 + 2, x * 4 + 2].tolist())
        wanted = {2: class_colour(number), 1: (255, 255, 255), 0: (0, 0, 0)}[visibility]
        assert found == wanted  # a disc, a ring, or nothing


def test_boxes_of_every_kind_are_drawn_or_left_out():
    boxes = [
        [np.nan, 0, 4, 4],
        [150, 150, 150, 150],
        [-100, -100, 300, 300],
        [900, 900, 999, 999],
        [60, 180, 61, 181],
    ]
    cell = drawn(200, 200, boxes=boxes, box_labels=[0, 1, 2, 3, 4])
    assert list(cell.legend) == [CLASSES[i] for i in (1, 2, 3, 4)]
    assert tuple(cell.picture[150, 150].tolist()) == class_colour(1)
    assert tuple(cell.picture[180, 60].tolist()) == class_colour(4)
    assert not drawn(20, 20, boxes=np.zeros((0, 4)), box_labels=np.zeros(0)).legend


def test_a_name_stands_beside_its_box_in_the_colour_of_its_class():
    canvas = drawn(100, 200, boxes=[[50, 40, 120, 90]], box_labels=[2]).picture
    chip = canvas[28:40, 50:60]
    assert (chip == class_colour(2)).all(-1).mean() > 0.5
    assert not canvas[:25].any()


def test_a_cell_shows_the_pixels_it_was_given():
    scene = SCENES[0]
    sample = {"image": scene.image, "label": scene.label, "key": "a", "index": 0, "position": 0}
    cell = draw_cell(sample, "original", size=2 * max(scene.mask.shape), classes=NAMED)
    assert cell.picture is not None
    assert (cell.picture[::2, ::2] == scene.image).all()
    height, width = scene.image.shape[:2]
    assert cell.lines == (f"{CLASSES[scene.label]} · {width} × {height} pixels",)


def test_a_bad_sample_is_told_in_its_cell():
    bad = BadSample(3, "x.jpg", 0, "is no image", "image_folder")
    cell = draw_cell(bad, "epoch 0", size=64, classes={})
    assert cell.picture is None
    assert cell.fault == "is no image"


def test_pixels_of_any_type_and_layout():
    ramp = np.arange(0, 240, dtype=np.uint8).reshape(8, 10, 3)
    assert (as_pixels(ramp)[0] == ramp).all()
    assert (as_pixels(ramp / np.float32(255))[0] == ramp).all()
    assert (as_pixels(ramp.astype(np.int64))[0] == ramp).all()
    assert (as_pixels(ramp[:, :, 0])[0] == ramp[:, :, :1]).all()
    assert (channels_last(np.moveaxis(ramp, 2, 0)) == ramp).all()
    stretched, said = as_pixels(ramp.astype(np.float32) * 2 - 7)
    assert said and stretched.min() == 0 and stretched.max() == 255
    assert as_pixels(np.full((4, 4), np.nan, np.float32))[0].shape == (4, 4, 3)


@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (700, 300), (64, 64), (300, 256)])
def test_pictures_fit_into_their_size(shape):
    picture, (across, down) = scaled(np.zeros((*shape, 3), np.uint8), 256)
    assert max(picture.shape[:2]) <= 256
    assert picture.shape[:2] == (round(shape[0] * down), round(shape[1] * across))


def test_names_of_boxes_leave_the_marks_of_keypoints_alone():
    names = PointNames(("top",))
    cell = drawn(
        120, 200, points=names, keypoints=[[52, 34, 2]], boxes=[[50, 40, 120, 90]], box_labels=[2]
    )
    chip = (cell.picture == class_colour(2)).all(-1)
    assert not chip[:40].any() and chip[92].any()  # below, where above there is no room
    assert cell.legend == {CLASSES[2]: class_colour(2), "top": class_colour(0)}
    assert (cell.picture[14:28, 46:70] == class_colour(0)).all(-1).any()


def test_names_do_not_cover_each_other():
    boxes = [[20, 40, 90, 60]] * 2
    both = drawn(100, 200, boxes=boxes, box_labels=[0, 1]).picture
    rows = [(both == class_colour(number)).all(-1).any(1).nonzero()[0] for number in (0, 1)]
    above = rows[0].min() < 40 - 8 and rows[1].max() > 60 + 8
    assert above, "one name above the box, the other below it"


def test_keypoints_of_several_objects_share_names_and_colours():
    names = PointNames(("eye", "ear"))
    assert [names.name(names.number(row)) for row in range(6)] == ["eye", "ear"] * 3
    assert [PointNames(None, 3).number(row) for row in range(6)] == [0, 1, 2] * 2
    points = [[x, 20, 2] for x in range(10, 190, 30)]
    cell = drawn(40, 200, points=names, keypoints=points)
    assert cell.legend == {"eye": class_colour(0), "ear": class_colour(1)}


def test_of_many_boxes_and_keypoints_the_legend_alone_has_the_names():
    boxes = [[x, y, x + 30, y + 30] for x in (5, 60, 115, 165) for y in (20, 65, 110, 155)]
    few, many = (drawn(200, 200, boxes=boxes[:n], box_labels=[3] * n) for n in (15, 16))
    assert few.legend == many.legend == {CLASSES[3]: class_colour(3)}
    assert many.picture.any(2).sum() < few.picture.any(2).sum() / 1.5
    points = [[15 * i + 10, 15 * i + 10, 2] for i in range(11)]
    names = PointNames(tuple("abcdefghijk"))
    dots = drawn(200, 200, points=names, keypoints=points)
    assert len(dots.legend) == 11
    named = drawn(200, 200, points=names, keypoints=points[:10])
    assert named.picture.any(2).sum() > dots.picture.any(2).sum()


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((100,), "a curve"),
        ((100, 3), "3 curves"),
        ((20, 30), "a map of values"),
        ((4, 20, 30), "slice 2"),
        ((3, 4, 20, 30), "slice 1, 2"),
    ],
)
def test_arrays_are_curves_maps_or_slices(shape, said):
    values = np.random.default_rng(0).normal(size=shape)
    values.flat[0] = np.nan
    picture, told = array_picture(values, 120)
    assert told == said
    assert max(picture.shape[:2]) == 120 and picture.std() > 5
    if "curve" not in said:
        middle = values[tuple(n // 2 for n in shape[:-2])]
        light = picture[2::4, 2::4, 0][: shape[-2], : shape[-1]]
        order = np.argsort(middle[np.isfinite(middle)])
        assert (np.diff(light[np.isfinite(middle)][order].astype(int)) >= 0).all()


def test_what_is_no_number_is_red_and_no_array_is_drawn_of_texts():
    values = np.zeros((10, 10))
    values[0, 0] = np.nan
    picture, _ = array_picture(values, 100)
    assert tuple(picture[5, 5].tolist()) == (200, 30, 30)
    assert array_picture(np.array(["a", "b"]), 100) is None
    assert array_picture(np.zeros(1), 100) is None
