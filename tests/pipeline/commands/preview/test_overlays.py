"""What is drawn, against the exact ground truth of the demo set's scenes."""

from __future__ import annotations

import numpy as np
import pytest

from datasets.demo import CLASSES, draw_scene
from datasets.sample import BadSample
from pipeline.commands.preview.overlays import Classes, draw_boxes, draw_mask
from pipeline.commands.preview.palette import class_colour
from pipeline.commands.preview.picture import as_pixels, channels_last, draw_cell, scaled
from pipeline.commands.preview.placing import Placing
from pipeline.commands.preview.points import PointNames, draw_marks, keep_clear, marks_of

NAMED = {"label": Classes(CLASSES), "box_labels": Classes(CLASSES)}
SCENES = [draw_scene(0, number) for number in range(12)]


def room(canvas):
    return Placing(*canvas.shape[:2])


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("factor", [1, 3])
def test_an_outline_lies_on_the_outermost_pixels_of_its_shape(scene, factor):
    height, width = scene.mask.shape
    canvas = np.zeros((height * factor, width * factor, 3), np.uint8)
    draw_boxes(canvas, scene.boxes[:1], None, Classes(), (factor, factor), room(canvas))
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
    height, width = scene.mask.shape
    canvas = np.zeros((height * 4, width * 4, 3), np.uint8)
    points = np.array(scene.keypoints, np.float32)
    points[1, 2], points[2, 2] = 0, 1
    names = PointNames()
    draw_marks(canvas, marks_of(points, names, (4, 4)), names, room(canvas))
    for number, (x, y, visibility) in enumerate(points.astype(int).tolist()):
        found = tuple(canvas[y * 4 + 2, x * 4 + 2].tolist())
        if visibility == 2:
            assert found == class_colour(number)
        elif visibility == 1:  # a ring
            assert found == (255, 255, 255)
        else:
            assert found == (0, 0, 0)


def test_boxes_of_every_kind_are_drawn_or_left_out():
    canvas = np.zeros((200, 200, 3), np.uint8)
    boxes = [
        [np.nan, 0, 4, 4],
        [150, 150, 150, 150],
        [-100, -100, 300, 300],
        [900, 900, 999, 999],
        [60, 180, 61, 181],
    ]
    legend = draw_boxes(canvas, boxes, [0, 1, 2, 3, 4], Classes(), (1, 1), room(canvas))
    assert list(legend) == ["1", "2", "3", "4"]
    assert tuple(canvas[150, 150].tolist()) == class_colour(1)
    assert tuple(canvas[180, 60].tolist()) == class_colour(4)
    none = np.zeros((0, 4)), np.zeros(0)
    assert not draw_boxes(canvas, *none, Classes(), (1, 1), room(canvas))


def test_a_name_stands_beside_its_box_in_the_colour_of_its_class():
    canvas = np.zeros((100, 200, 3), np.uint8)
    draw_boxes(canvas, [[50, 40, 120, 90]], [2], Classes(CLASSES), (1, 1), room(canvas))
    chip = canvas[28:40, 50:60]
    assert (chip == class_colour(2)).all(-1).mean() > 0.5
    assert not canvas[:25].any()


def test_a_cell_shows_the_pixels_it_was_given():
    scene = SCENES[0]
    sample = {"image": scene.image, "label": scene.label, "key": "a", "index": 0, "position": 0}
    cell = draw_cell(sample, "original", size=2 * max(scene.mask.shape), classes=NAMED)
    assert cell.picture is not None
    assert (cell.picture[::2, ::2] == scene.image).all()
    assert cell.lines[0] == CLASSES[scene.label]


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


def test_names_stand_on_nothing_else_and_within_the_picture():
    draw = np.random.default_rng(0)
    placing, given = Placing(90, 120), []
    for _ in range(200):
        width, height = draw.integers(1, 30, 2).tolist()
        corners = draw.integers(-20, 120, (4, 2)).tolist()
        found = placing.first_free(map(tuple, corners), width, height)
        if found is not None:
            assert list(found) in corners
            given.append((*found, found[0] + width, found[1] + height))
    canvas = np.zeros((90, 120), int)
    for left, top, right, bottom in given:
        assert 0 <= left and 0 <= top and right <= 120 and bottom <= 90
        canvas[top:bottom, left:right] += 1
    assert len(given) > 10 and canvas.max() == 1


def test_names_of_boxes_leave_the_marks_of_keypoints_alone():
    canvas = np.zeros((120, 200, 3), np.uint8)
    placing, names = room(canvas), PointNames(("top",))
    marks = marks_of([[52, 34, 2]], names, (1, 1))
    keep_clear(marks, placing)
    draw_boxes(canvas, [[50, 40, 120, 90]], [2], Classes(CLASSES), (1, 1), placing)
    assert not canvas[25:40].any() and canvas[92].any()  # below, where above there is no room
    assert draw_marks(canvas, marks, names, placing) == {"top": class_colour(0)}
    assert canvas[30:40, 60:90].any()


def test_keypoints_of_several_objects_share_names_and_colours():
    names = PointNames(("eye", "ear"))
    points = [[x, 20, 2] for x in range(10, 190, 30)]
    marks = marks_of(points, names, (1, 1))
    assert [names.name(mark.number) for mark in marks] == ["eye", "ear"] * 3
    assert [mark.number for mark in marks_of(points, PointNames(None, 3), (1, 1))] == [0, 1, 2] * 2
    canvas = np.zeros((40, 200, 3), np.uint8)
    legend = draw_marks(canvas, marks, names, room(canvas))
    assert legend == {"eye": class_colour(0), "ear": class_colour(1)}


def test_of_many_boxes_and_keypoints_the_legend_alone_has_the_names():
    few, many = np.zeros((2, 200, 200, 3), np.uint8)
    boxes = [[x, y, x + 30, y + 30] for x in (5, 60, 115, 165) for y in (20, 65, 110, 155)]
    for canvas, count in ((few, 15), (many, 16)):
        legend = draw_boxes(canvas, boxes[:count], [3] * count, Classes(), (1, 1), room(canvas))
        assert legend == {"3": class_colour(3)}
    assert many.any(2).sum() < few.any(2).sum() / 1.5
    marked = np.zeros((200, 200, 3), np.uint8)
    names = PointNames(tuple("abcdefghijk"))
    marks = marks_of([[15 * i + 10, 15 * i + 10, 2] for i in range(11)], names, (1, 1))
    assert len(draw_marks(marked, marks, names, room(marked))) == 11
    dots = marked.copy()
    draw_marks(dots, marks, PointNames(), room(dots))
    assert dots.any(2).sum() > marked.any(2).sum()
