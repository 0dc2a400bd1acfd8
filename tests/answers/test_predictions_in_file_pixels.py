"""Predictions are in pixels of the file, whatever the evaluation stack does to the image."""

from __future__ import annotations

import base64
import json

import cv2
import numpy as np
import pytest

import penstock
from penstock.pipeline.commands import main
from penstock.pipeline.training.job import train

# A model that finds the bright square of an image, so that the right answer is known.
MODEL = """
import torch
from torch import nn
from penstock.core.registry import register


@register("model", "square_finder")
class SquareFinder(nn.Module):
    def __init__(self, kind: str, num_classes: int | None = None) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, batch):
        bright = batch["image"].float().mean(1) > 0.5
        outputs = {"loss": self.weight.sum()} if self.training else {}
        if self.kind == "segmentation":
            return torch.stack([~bright, bright], 1).float() + self.weight
        found = [_box(mask) for mask in bright]
        if self.kind == "keypoints":
            points = torch.stack([box[:, :2] for box in found]) + 0 * self.weight
            return {**outputs, "keypoints": points}
        rows = zip(found, bright, strict=True)
        outputs["detections"] = [
            {"boxes": b, "scores": torch.ones(1), "labels": torch.zeros(1).long(), "masks": m[None]}
            for b, m in rows
        ]
        return outputs


@register("transform", "only_pixels")
class OnlyPixels:
    def __call__(self, sample, rng):
        return {**sample, "image": sample["image"][::2, ::2].copy()}


def _box(mask):
    y, x = mask.nonzero(as_tuple=True)
    edges = [x.min(), y.min(), x.max() + 1, y.max() + 1] if len(x) else [0, 0, 1, 1]
    return torch.tensor([[float(edge) for edge in edges]])
"""
STACKS = {
    "stretched": "{a:{_target_:albumentations.Resize,height:96,width:120,interpolation:3}}",
    "letterbox": (
        "{a:{_target_:albumentations.LongestMaxSize,max_size:128},"
        "b:{_target_:albumentations.PadIfNeeded,min_height:128,min_width:128}}"
    ),
    "cropped": (
        "{a:{_target_:albumentations.SmallestMaxSize,max_size:128},"
        "b:{_target_:albumentations.CenterCrop,height:112,width:112}}"
    ),
    "torchvision": (
        "{a:{_target_:torchvision.transforms.v2.Resize,size:128},"
        "b:{_target_:torchvision.transforms.v2.CenterCrop,size:112}}"
    ),
    "turned": (
        "{a:{_target_:albumentations.Resize,height:128,width:128,interpolation:3},"
        "b:{_target_:albumentations.HorizontalFlip,p:1.0}}"
    ),
}
SIZES = {"wide/1.png": (200, 300), "tall/2.png": (260, 190), "3.png": (128, 128)}


def picture(height, width):
    """Draw a bright square near the middle; return the image and the box."""
    image = np.full((height, width, 3), 10, np.uint8)
    box = [width // 2 - 30, height // 2 - 24, width // 2 + 20, height // 2 + 36]
    image[box[1] : box[3], box[0] : box[2]] = 255
    return image, box


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("squares")
    (root / "model.py").write_text(MODEL)
    images, annotations = [], []
    for number in range(4):
        image, (left, top, right, bottom) = picture(150 + number, 160)
        for name, pixels in (("images", image), ("masks", image[..., 0] // 255)):
            (root / name).mkdir(exist_ok=True)
            cv2.imwrite(str(root / name / f"{number}.png"), pixels)
        images.append({"id": number, "file_name": f"{number}.png", "height": 150 + number,
                       "width": 160})  # fmt: skip
        annotations.append({
            "id": number + 1, "image_id": number, "category_id": 1, "iscrowd": 0,
            "bbox": [left, top, right - left, bottom - top], "area": 1, "num_keypoints": 1,
            "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
            "keypoints": [left, top, 2],
        })  # fmt: skip
    categories = [{"id": 1, "name": "square", "keypoints": ["corner"]}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / "boxes.json").write_text(json.dumps(content))
    for key, size in SIZES.items():
        (root / "new" / key).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(root / "new" / key), picture(*size)[0])
    return root


def predicted(data, tmp_path, kind, stack):
    """Train a step and predict the new images: rows by key."""
    steps = STACKS.get(stack, stack)
    if "torchvision" in steps:
        pytest.importorskip("torchvision")
    labels = [f"dataset.annotations.path={data / 'boxes.json'}"]
    if kind == "segmentation":
        labels = [f"dataset.annotations.path={data / 'masks'}",
                  "dataset.annotations.classes=[ground,square]"]  # fmt: skip
    config = penstock.compose([
        f"task={kind}", f"imports=[{data / 'model.py'}]", f"dataset.storage.path={data / 'images'}",
        "dataset.storage.labels=null", *labels, "model=square_finder", f"model.kind={kind}",
        "loader=inline", "loader.batch_size=1", "loader.eval_batch_size=1", "trainer.max_steps=1",
        "trainer.max_epochs=1",
        "trainer.validate_every=0", "augment=as_is", f"augment.train={steps}",
        f"augment.eval={steps}", "augment.device={a:{_target_:batch_transform/normalize}}",
        "trainer.progress=off", f"outputs={tmp_path / 'outputs'}",
    ])  # fmt: skip
    run = train(config)["run_dir"]
    output = tmp_path / "predictions.json"
    main(["predict", f"checkpoint={run}", str(data / "new"), f"output={output}",
          f"imports=[{data / 'model.py'}]"])  # fmt: skip
    return {row["key"]: row for row in json.loads(output.read_text())}


@pytest.mark.parametrize("stack", STACKS)
def test_boxes(data, tmp_path, stack):
    rows = predicted(data, tmp_path, "detection", stack)
    assert rows.keys() == SIZES.keys()
    for key, (height, width) in SIZES.items():
        row = rows[key]
        assert (row["image_height"], row["image_width"]) == (height, width)
        assert row["boxes"][0] == pytest.approx(picture(height, width)[1], abs=3)
        assert row["classes"] == ["square"] and row["error"] is None


@pytest.mark.parametrize("stack", ["letterbox", "cropped"])
def test_masks_of_objects_have_the_size_of_the_file(data, tmp_path, stack):
    from pycocotools import mask as coco

    rows = predicted(data, tmp_path, "instances", stack)
    for key, (height, width) in SIZES.items():
        runs = {"size": [height, width], "counts": rows[key]["masks"][0].encode()}
        found = coco.decode(runs).astype(bool)
        assert overlap(found, picture(height, width)[0][..., 0] > 128) > 0.9
        assert rows[key]["boxes"][0] == pytest.approx(picture(height, width)[1], abs=3)


@pytest.mark.parametrize("stack", ["stretched", "letterbox", "cropped"])
def test_masks_of_pixels_have_the_size_of_the_file(data, tmp_path, stack):
    rows = predicted(data, tmp_path, "segmentation", stack)
    for key, (height, width) in SIZES.items():
        png = np.frombuffer(base64.b64decode(rows[key]["mask"]), np.uint8)
        mask = cv2.imdecode(png, cv2.IMREAD_UNCHANGED)
        assert mask.shape == (height, width)
        assert overlap(mask == 1, picture(height, width)[0][..., 0] > 128) > 0.9
        hidden = (mask == 255).sum()  # pixels that the crop leaves out
        assert (hidden > 0) == (stack == "cropped")


@pytest.mark.parametrize("stack", ["stretched", "letterbox", "cropped"])
def test_keypoints(data, tmp_path, stack):
    rows = predicted(data, tmp_path, "keypoints", stack)
    for key, (height, width) in SIZES.items():
        corner = picture(height, width)[1][:2]
        assert rows[key]["keypoint_corner"] == pytest.approx(corner, abs=3)


def test_steps_without_a_place_in_the_file_are_refused(data, tmp_path, capsys):
    random = "{a:{_target_:albumentations.RandomCrop,height:64,width:64}}"
    with pytest.raises(FileNotFoundError):
        predicted(data, tmp_path, "detection", random)
    assert "augment.eval" in capsys.readouterr().err


def test_a_step_that_leaves_boxes_where_they_were_is_refused(data, tmp_path, capsys):
    with pytest.raises(FileNotFoundError):
        predicted(data, tmp_path, "detection", "{a:{_target_:transform/only_pixels}}")
    assert "boxes" in capsys.readouterr().err


def overlap(found, truth):
    return (found & truth).sum() / (found | truth).sum()
