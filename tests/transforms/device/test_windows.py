"""Random windows: erased, or cropped and resized with all that lies in them."""

import cv2
import numpy as np
import pytest
import torch

from penstock.transforms.device.draws import WINDOW_DRAWS, drawn_windows, uniforms
from penstock.transforms.device.steps import host_draws
from tests.transforms.device.drawn_rows import batch, step


def windows(count, height, width, scale, ratio):
    rows = {"epoch": np.zeros(count, int), "position": np.arange(count)}
    draws = uniforms(rows, 3, WINDOW_DRAWS)
    return drawn_windows(draws, (height, width), scale=scale, ratio=ratio)


def test_windows_have_the_areas_and_shapes_asked_for_and_lie_anywhere():
    places, found = windows(5000, 200, 300, (0.1, 0.4), (0.5, 2.0))
    assert found.mean() > 0.999
    top, left, height, width = places.T
    share, shape = height * width / 60_000, np.log(width / height)
    assert share.min() > 0.098 and share.max() < 0.402 and abs(share.mean() - 0.25) < 0.01
    assert abs(np.abs(shape).max() - np.log(2)) < 0.03 and abs(shape.mean()) < 0.03
    assert top.min() == 0 == left.min()
    assert (top + height).max() == 200 and (left + width).max() == 300
    centre = (top + height / 2).mean(), (left + width / 2).mean()
    assert abs(centre[0] - 100) < 3 and abs(centre[1] - 150) < 4


@pytest.mark.parametrize(
    ("height", "width", "scale"), [(10, 1000, (0.9, 1.0)), (4, 4, (0.001, 0.01))]
)
def test_windows_that_never_fit_or_have_no_pixel_are_not_found(height, width, scale):
    places, found = windows(50, height, width, scale, (0.9, 1.1))
    assert not found.any() and places[:, 2:].max() == 0


def test_a_rectangle_is_erased_and_nothing_else():
    given = batch(600, 24, 24)
    given["image"].clamp_(min=1)
    result = step("random_erasing", p=0.6, value=0, scale=[0.1, 0.3])(given)["image"]
    erased = (result == 0).all(3)
    assert torch.equal(result[~erased], given["image"][~erased])
    rows = erased.flatten(1).any(1)
    assert abs(rows.float().mean() - 0.6) < 0.1
    for area in erased[rows]:
        ys, xs = area.nonzero().unbind(1)
        assert (ys.max() - ys.min() + 1) * (xs.max() - xs.min() + 1) == area.sum()
        assert 0.08 * 576 <= area.sum() <= 0.32 * 576


def test_erased_rectangles_lie_anywhere_however_few_rows_are_erased():
    given = {**batch(2000, 20, 20), "image": torch.ones(2000, 20, 20, 1, dtype=torch.uint8)}
    result = step("random_erasing", p=0.25, value=0, scale=[0.02, 0.1])(given)["image"]
    shares = (result == 0).float().mean((0, 3))
    for side in (shares[:10], shares[10:], shares[:, :10], shares[:, 10:]):
        assert abs(side.mean() / shares.mean() - 1) < 0.2


def crop(given, **options):
    return step("random_resized_crop", **options)(given)


def test_a_crop_is_the_window_resized():
    given = batch(16, 40, 60)
    result = crop(given, size=[20, 20], scale=[0.1, 0.5])["image"]
    [draws] = host_draws([step("random_resized_crop", size=20, scale=[0.1, 0.5])], dict(given))
    for row, (top, left, height, width) in enumerate(draws["windows"].tolist()):
        window = given["image"][row, top : top + height, left : left + width].numpy()
        assert np.array_equal(result[row].numpy(), cv2.resize(window, (20, 20)))


def test_where_no_window_fits_it_is_the_centre():
    given = batch(3, 10, 400)
    result = crop(given, size=[10, 13], scale=[0.9, 1.0])["image"]
    assert torch.equal(result, given["image"][:, :, 193:206])


def test_evaluation_takes_the_largest_window_at_the_centre():
    given = batch(3, 20, 31)
    result = step("random_resized_crop", "val", size=[20, 21])(given)["image"]
    assert torch.equal(result, given["image"][:, :, 5:26])
    halved = step("random_resized_crop", "val", size=[10, 10])(given)["image"]
    window = given["image"][0, :, 5:25].numpy()
    assert np.array_equal(halved[0].numpy(), cv2.resize(window, (10, 10)))


def test_masks_boxes_and_points_stay_with_their_pixels():
    """Around a bright rectangle: it is found again where its box, mask and corners are."""
    count, generator = 200, np.random.default_rng(0)
    image = np.zeros((count, 64, 80, 3), np.uint8)
    boxes = []
    for row in range(count):
        x, y = generator.integers(4, 50), generator.integers(4, 40)
        box = [x, y, x + generator.integers(6, 26), y + generator.integers(6, 20)]
        image[row, box[1] : box[3], box[0] : box[2]] = 255
        boxes.append(torch.tensor([box, [0, 0, 1, 1]]).float())
    given = {
        **batch(count),
        "image": torch.from_numpy(image),
        "mask": torch.from_numpy(image[..., 0] // 255),
        "boxes": boxes,
        "box_labels": [torch.tensor([4, 9]) for _ in boxes],
        "keypoints": torch.stack([torch.cat([b[0].reshape(2, 2), torch.full((2, 1), 2.0)], 1)
                                  for b in boxes]),
    }  # fmt: skip
    result = crop(given, size=[96, 96], scale=[0.2, 1.0])
    seen = 0
    for row in range(count):
        shape = result["mask"][row].bool()
        bright = result["image"][row, ..., 0] > 127
        assert (shape ^ bright).float().mean() < 0.03
        labels = result["box_labels"][row].tolist()
        if 4 not in labels:
            assert not shape.any()
            continue
        box = result["boxes"][row][labels.index(4)]
        assert (box >= 0).all() and (box <= 96).all()
        if not shape.any():
            assert (box[2:] - box[:2]).min() < 1
            continue
        ys, xs = shape.nonzero().unbind(1)
        true = torch.stack([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]).float()
        assert (box - true).abs().max() <= 1
        corners = result["keypoints"][row]
        for corner, place in zip(corners, true.reshape(2, 2), strict=True):
            if corner[2]:
                seen += 1
                assert (corner[:2] - place).abs().max() <= 1
        assert len(labels) == len(result["boxes"][row])
    assert seen > count // 2
    assert sum(9 in labels for labels in result["box_labels"]) < count // 2


def test_images_of_any_sizes_become_one_tensor():
    sizes = [(30, 40), (50, 20), (64, 64)]
    images = [batch(1, *size)["image"][0] for size in sizes]
    given = {**batch(3), "image": images, "mask": [image[..., 0] for image in images]}
    result = crop(given, size=16)
    assert result["image"].shape == (3, 16, 16, 3) and result["mask"].shape == (3, 16, 16)
    for row in range(3):
        alone = {name: value[row : row + 1] for name, value in given.items()}
        assert torch.equal(crop(alone, size=16)["image"][0], result["image"][row])


def test_what_belongs_to_a_box_goes_with_it_where_images_are_a_list():
    given = batch(12, 20, 30)
    corner = torch.rand(12, 6, 2, generator=torch.Generator().manual_seed(3)) * 12
    given["boxes"] = list(torch.cat([corner, corner + 4], 2))
    given["box_labels"] = list(torch.arange(72).reshape(12, 6))
    options = {"size": [10, 14], "scale": [0.1, 0.3]}
    expected = crop(given, **options)
    result = crop({**given, "image": list(given["image"])}, **options)
    assert sum(map(len, expected["boxes"])) < 72
    for field in ("boxes", "box_labels"):
        assert all(map(torch.equal, result[field], expected[field]))


def test_what_cannot_be_is_said():
    with pytest.raises(ValueError, match=r"augment\.device\.step: boxes are padded"):
        crop({**batch(), "boxes": torch.zeros(32, 5, 4)})
    with pytest.raises(ValueError, match=r"step\.size is \[3\], expected one side"):
        step("random_resized_crop", size=[3])
    with pytest.raises(ValueError, match=r"step\.scale is \[0\.5, 1\.5\], expected \[least"):
        step("random_resized_crop", scale=[0.5, 1.5])
    with pytest.raises(ValueError, match=r"value is \[1, 2\], and images have 3 channels"):
        step("random_erasing", value=[1, 2])(batch())
