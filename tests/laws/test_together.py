"""Masks, boxes, keypoints and mixed labels follow their image."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest

from penstock import build_loader, compose
from tests.laws.runs import fed

COUNT, SIDE = 24, 64
LEFT, RIGHT = (255, 0, 0), (0, 255, 0)  # colours of two keypoints, RGB
STEPS = {
    "sample": ["augment.train.crop={_target_: transform/random_crop, size: 48}",
               "augment.train.flip={_target_: transform/horizontal_flip, p: 0.5}"],
    "batch": ["augment.device.crop={_target_: batch_transform/random_crop, size: 48}",
              "augment.device.flip={_target_: batch_transform/random_flip}"],
}  # fmt: skip


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A white rectangle with two dots on grey; its mask, its box and the dots as keypoints."""
    root = tmp_path_factory.mktemp("scenes")
    rng = np.random.default_rng(3)
    (root / "images").mkdir()
    (root / "masks").mkdir()
    images, annotations = [], []
    for number in range(COUNT):
        image = np.full((SIDE, SIDE, 3), 90, np.uint8)
        x, y = rng.integers(16, 24, 2).tolist()
        width, height = rng.integers(16, 24, 2).tolist()
        image[y : y + height, x : x + width] = 255
        mask = (image[..., 0] == 255).astype(np.uint8)
        dots = [(x + 3, y + 5), (x + width - 4, y + 5)]
        for (column, row), colour in zip(dots, (LEFT, RIGHT), strict=True):
            image[row - 1 : row + 2, column - 1 : column + 2] = colour
        cv2.imwrite(str(root / "images" / f"{number:02d}.png"), image[..., ::-1])
        cv2.imwrite(str(root / "masks" / f"{number:02d}.png"), mask)
        images.append(
            {"id": number, "file_name": f"{number:02d}.png", "width": SIDE, "height": SIDE}
        )
        points = [value for column, row in dots for value in (column, row, 2)]
        annotations.append(
            {"id": number, "image_id": number, "category_id": 1, "bbox": [x, y, width, height],
             "area": width * height, "iscrowd": 0, "keypoints": points, "num_keypoints": 2}
        )  # fmt: skip
    category = {"id": 1, "name": "face", "keypoints": ["left_eye", "right_eye"]}
    document = {"images": images, "annotations": annotations, "categories": [category]}
    (root / "objects.json").write_text(json.dumps(document))
    return root


def batches(scenes, *overrides):
    """Yield the batches of two epochs as a model gets them."""
    config = compose(
        [
            "dataset=image_folder", f"dataset.storage.path={scenes / 'images'}",
            "dataset.storage.labels=null", "dataset.val_fraction=0", "augment=as_is",
            "loader=inline", "loader.batch_size=8", *overrides,
        ]
    )  # fmt: skip
    with build_loader(config, "train") as loader:
        for _ in range(2):
            yield from fed(config, loader)


@pytest.mark.parametrize("where", STEPS)
def test_a_mask_is_cropped_and_flipped_with_its_image(where, scenes):
    masks = ["dataset/annotations=mask_folder", f"dataset.annotations.path={scenes / 'masks'}",
             "dataset.annotations.classes=2"]  # fmt: skip
    seen = set()
    for batch in batches(scenes, *masks, *STEPS[where]):
        image, mask = batch["image"].numpy(), batch["mask"].numpy()
        assert image.shape[1:3] == mask.shape[1:3] == (48, 48)
        assert np.array_equal((image != 90).any(3), mask == 1)
        seen |= {row.tobytes() for row in mask}
    assert len(seen) > COUNT  # epochs crop and flip anew


def test_boxes_and_keypoints_are_cropped_and_flipped_with_their_image(scenes):
    objects = ["dataset/annotations=coco", f"dataset.annotations.path={scenes / 'objects.json'}",
               "collate=list", "augment.keypoints._target_=settings/keypoints"]  # fmt: skip
    mirrored = 0
    for batch in batches(scenes, *objects, *STEPS["sample"]):
        for image, boxes, points in zip(
            batch["image"], batch["boxes"], batch["keypoints"], strict=True
        ):
            image = image.numpy()
            rows, columns = np.nonzero((image != 90).any(2))
            edges = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert boxes.tolist() == [edges]
            colours = [image[int(y), int(x)].tolist() for x, y, _ in points]
            assert sorted(colours) == sorted([list(LEFT), list(RIGHT)])
            # A mirror exchanges left and right: the left point is the other dot then.
            assert points[0, 0] < points[1, 0]
            mirrored += colours[0] == list(RIGHT)
    assert COUNT / 2 < mirrored < COUNT * 1.5


def test_a_mixed_row_knows_the_labels_of_both_images(tmp_path):
    """Each image has the brightness of its label, so a blend tells whose labels it needs."""
    labels = np.arange(64) % 5
    images = np.broadcast_to(labels[:, None, None, None] * 50, (64, 8, 8, 3)).astype(np.uint8)
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "labels.npy", labels)
    config = compose(
        ["dataset=memmap", f"dataset.storage.path={tmp_path}", "dataset.val_fraction=0",
         "augment=as_is", "loader=inline", "loader.batch_size=16",
         "augment.device.float={_target_: batch_transform/to_float}",
         "augment.device.mixup={_target_: batch_transform/mixup, alpha: 1.0}"]
    )  # fmt: skip
    mixed = 0
    with build_loader(config, "train") as loader:
        for batch in fed(config, loader):
            weight = batch["label_weight"].numpy()
            expected = weight * batch["label"].numpy() + (1 - weight) * batch["label_other"].numpy()
            brightness = batch["image"].numpy().mean((1, 2, 3)) * 255 / 50
            assert brightness == pytest.approx(expected, abs=1e-3)
            mixed += int((batch["label"] != batch["label_other"]).sum())
    assert mixed > 32
