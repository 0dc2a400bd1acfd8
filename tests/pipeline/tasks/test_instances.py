"""Objects with masks: from COCO's polygons and runs, moved with their boxes, found and measured."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
import torch
from pycocotools import mask as coco

from penstock.core import registry
from penstock.core.sample import Record
from penstock.datasets.annotations.coco import CocoAnnotations
from penstock.datasets.demo.shapes import CLASSES, draw_scene, run_lengths
from penstock.datasets.writing import write_storage
from penstock.pipeline.config.components import register_components
from penstock.pipeline.instantiate import build
from penstock.pipeline.learning import networks
from penstock.pipeline.learning.losses import total_loss
from penstock.pipeline.pictures.picture import class_colour, draw_box_masks
from penstock.pipeline.tasks.instances import Instances
from penstock.pipeline.tasks.multi import Multi
from penstock.transforms.cpu.stack import Stack
from penstock.transforms.decode.image import ImageDecoder
from tests.contracts.components import storage_at
from tests.contracts.records import ListedRecords
from tests.contracts.task import check_task
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images

register_components()
WRITERS = {each.name: each.target for each in registry.components("writer")}
SQUARE = [[2, 1, 6, 1, 6, 4, 2, 4]]


def opened(root, *segmentations, size=(10, 8), **options):
    write_images(root, ["a.jpg", "b.jpg"])
    annotations = [
        {"id": n, "image_id": 1, "category_id": 3, "bbox": [0, 0, 5, 5], "segmentation": one}
        for n, one in enumerate(segmentations)
    ]
    images = [
        {"id": 1 + n, "file_name": f"{name}.jpg", "width": size[0], "height": size[1]}
        for n, name in enumerate("ab")
    ]
    content = {"images": images, "annotations": annotations, "categories": [{"id": 3, "name": "x"}]}
    (root / "coco.json").write_text(json.dumps(content))
    return open_annotated(root, CocoAnnotations("coco.json", masks=True, **options))


def test_polygons_and_runs_become_masks_once_the_image_is_decoded(tmp_path):
    pixels = np.random.default_rng(0).random((8, 10)) < 0.4
    runs = coco.encode(np.asfortranarray(pixels, np.uint8))
    forms = [
        SQUARE,
        {"size": [8, 10], "counts": run_lengths(pixels)},
        {"size": [8, 10], "counts": runs["counts"].decode()},
    ]
    storage = opened(tmp_path, *forms)
    image = np.zeros((8, 10, 3), np.uint8)
    found = []
    for record in storage.read(np.arange(2)):
        sample = ImageDecoder()(Record(0, "", {**record.fields, "image": image}))
        found.append(sample["box_masks"])
    square, listed, compressed = found[0]
    assert square.sum() == 12 and square[1:4, 2:6].all()
    assert (listed == pixels).all() and (compressed == pixels).all()
    assert found[1].shape == (0, 8, 10) and found[1].dtype == np.uint8
    with pytest.raises(ValueError, match="mask of a box has 10x8 pixels, the image 20x16"):
        ImageDecoder()(Record(0, "", {**storage.read(np.arange(1))[0].fields,
                                      "image": np.zeros((16, 20, 3), np.uint8)}))  # fmt: skip


@pytest.mark.parametrize("form", [name for name in WRITERS if "values" not in
                                  WRITERS[name]().cannot_hold])  # fmt: skip
def test_packed_masks_are_the_same_to_the_bit(tmp_path, form):
    pixels = np.random.default_rng(0).random((8, 10)) < 0.4
    (tmp_path / "data").mkdir()
    source = opened(tmp_path / "data", SQUARE, {"size": [8, 10], "counts": run_lengths(pixels)})
    image = cv2.imencode(".png", np.zeros((8, 10, 3), np.uint8))[1].tobytes()
    wanted = [Record(r.index, r.key, {**r.fields, "image": image})
              for r in source.read(np.arange(2))]  # fmt: skip
    records = ListedRecords({r.key: r.fields for r in wanted})
    write_storage(WRITERS[form](), tmp_path / "packed", records)
    found = storage_at(form, tmp_path / "packed").read(np.arange(2))
    for one, other in zip(found, wanted, strict=True):
        masks, whole = (ImageDecoder()(record)["box_masks"] for record in (one, other))
        assert masks.dtype == np.uint8 and np.array_equal(masks, whole)


def test_masks_of_any_shape_survive_their_run_lengths():
    rng = np.random.default_rng(1)
    for share in (0, 0.02, 0.5, 1):
        mask = rng.random((37, 53)) < share
        for counts in (run_lengths(mask),):
            runs = coco.frPyObjects({"size": [37, 53], "counts": counts}, 37, 53)
            encoded = "37,53," + runs["counts"].decode()
            sample = {"image": np.zeros((37, 53, 3), np.uint8), "box_masks": [encoded]}
            assert (ImageDecoder()(Record(0, "", sample))["box_masks"][0] == mask).all()


@pytest.mark.parametrize(
    ("segmentation", "cause"),
    [
        ([[1, 2, 3, 4]], "a polygon of its mask has fewer than 3 corners"),
        ([], "fewer than 3 corners"),
        ({"size": [8, 10], "counts": [3, 4]}, "the runs of its mask are not 10x8 pixels"),
        ({"size": [8, 10]}, "lacks 'counts'"),
    ],
)
def test_a_broken_mask_makes_its_record_bad(tmp_path, segmentation, cause):
    found = fields_of(opened(tmp_path, segmentation))
    with pytest.raises(ValueError, match=cause):
        raise ValueError(found[0])
    assert isinstance(found[1], dict)


def test_runs_that_are_damaged_make_the_sample_bad():
    image = np.zeros((8, 10, 3), np.uint8)
    for counts in ("", "1", "\xff\xff", "ooooooooooooo"):
        sample = {"image": image, "box_masks": ["8,10," + counts]}
        with pytest.raises(ValueError, match="mask of a box is damaged"):
            ImageDecoder()(Record(0, "", sample))


STEPS = {
    "flip": {"_target_": "albumentations.HorizontalFlip", "p": 0.5},
    "turn": {"_target_": "albumentations.RandomRotate90", "p": 0.5},
    "crop": {"_target_": "albumentations.RandomCrop", "height": 48, "width": 56, "p": 0.7},
    "resize": {"_target_": "albumentations.Resize", "height": 96, "width": 80, "interpolation": 0},
}


def bounds(mask):
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


def test_masks_and_boxes_stay_aligned_under_augmentations():
    stack = Stack(STEPS, build_step=build)
    counts = []
    for number in range(16):
        scene = draw_scene(0, number)
        image = np.zeros_like(scene.image)
        for n, shape in enumerate(scene.shapes):
            image[shape] = n + 1
        sample = {
            "image": image,
            "boxes": np.array(scene.boxes, np.float32),
            "box_labels": np.array(scene.box_labels),
            "box_number": np.arange(len(scene.boxes)),
            "box_masks": scene.shapes.astype(np.uint8),
        }
        moved = stack(sample, np.random.default_rng(number))
        assert moved["image"].shape == (96, 80, 3)
        assert len(moved["boxes"]) == len(moved["box_masks"]) == len(moved["box_labels"])
        for box, mask, n in zip(
            moved["boxes"], moved["box_masks"], moved["box_number"].tolist(), strict=True
        ):
            assert (mask.astype(bool) == (moved["image"][..., 0] == n + 1)).all()
            assert box.tolist() == bounds(mask)
        counts.append(len(scene.boxes) - len(moved["boxes"]))
    assert sum(counts) > 0  # some left the image
    nothing = {name: value[:0] for name, value in sample.items() if name != "image"}
    moved = stack({**nothing, "image": image}, np.random.default_rng(0))
    assert moved["box_masks"].shape == (0, 96, 80) and moved["boxes"].shape == (0, 4)


@pytest.mark.parametrize("name", ["mosaic", "copy_paste"])
def test_steps_that_do_not_move_masks_refuse_them(name):
    register_components([])
    size = {"height": 8, "width": 8} if name == "mosaic" else {}
    step = build({"_target_": f"transform/{name}", "p": 1.0, **size})
    sample = {"image": np.zeros((8, 8, 3), np.uint8), "key": "a", "boxes": np.zeros((0, 4)),
              "box_labels": np.zeros(0, int), "box_masks": np.zeros((0, 8, 8))}  # fmt: skip
    with pytest.raises(ValueError, match=f"{name}: 'a' has .*box_masks.*annotations.masks=false"):
        step(sample, np.random.default_rng(0), [sample] * (3 if name == "mosaic" else 1))


def batch_of(count=4, side=64):
    resize = {"resize": {"_target_": "albumentations.Resize", "height": side, "width": side}}
    stack = Stack(resize, build_step=build)
    samples = []
    for number in range(count):
        scene = draw_scene(0, number)
        fields = {"image": scene.image, "boxes": np.array(scene.boxes, np.float32),
                  "box_labels": np.array(scene.box_labels),
                  "box_masks": scene.shapes.astype(np.uint8)}  # fmt: skip
        samples.append(stack(fields, np.random.default_rng(0)))
    batch = {
        name: [torch.from_numpy(np.array(s[name])) for s in samples]
        for name in ("boxes", "box_labels", "box_masks")
    }
    images = torch.stack([torch.from_numpy(np.array(s["image"])) for s in samples])
    return {
        **batch, "image": images.permute(0, 3, 1, 2).float() / 255,
        "valid": torch.ones(count, dtype=torch.bool), "position": torch.arange(count),
        "key": list(map(str, range(count))),
    }  # fmt: skip


def figures(task, outputs, batch, by_class=False):
    metrics = task.metrics_by_class() if by_class else task.metrics()
    task.update(metrics, outputs, batch)
    return metrics.compute()


def test_masks_are_measured_and_not_boxes():
    task, batch = Instances(num_classes=6, class_names=CLASSES), batch_of()
    found = [
        {"boxes": boxes + 9, "labels": labels, "scores": torch.ones(len(labels)), "masks": masks}
        for boxes, labels, masks in zip(
            batch["boxes"], batch["box_labels"], batch["box_masks"], strict=True
        )
    ]
    told = figures(task, {"detections": found}, batch, by_class=True)
    assert told["map"] == 1 and told["average_precision"][0] == 1
    for one in found:
        one["masks"] = one["masks"].roll(20, 2)
    assert figures(task, {"detections": found}, batch)["map_50"] < 0.2
    runs = task.predictions({"detections": found}, batch)["masks"][0][0]
    again = coco.decode({"size": [64, 64], "counts": runs.encode()})
    assert (again == found[0]["masks"][0].numpy()).all()


def test_rows_that_are_not_valid_change_nothing():
    torch.manual_seed(0)
    check_task(Instances(num_classes=6), networks.InstanceNet(num_classes=6, width=8), batch_of(3))


def test_a_few_pictures_are_learned_by_heart():
    torch.manual_seed(0)
    task, batch = Instances(num_classes=6), batch_of(2, side=32)
    model = networks.InstanceNet(num_classes=6, width=8, prototypes=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        total_loss(task, model(batch), batch).backward()
        optimizer.step()
    with torch.no_grad():
        told = figures(task, model(batch), batch)
    assert told["map_50"] > 0.6, told


def test_what_lacks_masks_is_said():
    task, batch = Instances(num_classes=6), batch_of(1)
    model = networks.BoxDetector(num_classes=6, width=8)
    with pytest.raises(ValueError, match=r"task instances: the model gave .*model=instance_net"):
        task.losses(model(batch), batch)
    del batch["box_masks"]
    with pytest.raises(ValueError, match=r"no 'box_masks'.*type dataset/annotations=coco_masks"):
        task.losses(model(batch), batch)


def test_beside_other_tasks_a_model_of_ones_own_gives_the_masks():
    torch.manual_seed(0)
    one, batch = Instances(num_classes=6), batch_of(2)
    several = Multi(tasks={"objects": one})
    model, heads = (networks.InstanceNet(num_classes=6, width=8),
                    networks.MultiNet({"objects": ("box_labels", 6)}, width=8))  # fmt: skip
    outputs = {"objects": model(batch)}
    alone = one.losses(outputs["objects"], batch)
    assert {f"objects_{name}": loss for name, loss in alone.items()} == several.losses(
        outputs, batch
    )
    assert several.predictions(outputs, batch)["objects_masks"] is not None
    with pytest.raises(ValueError, match="model=multi_net has no masks of boxes: take"):
        several.losses(heads(batch), batch)


def test_a_preview_tints_the_masks():
    canvas = np.zeros((8, 8, 3), np.uint8)
    mask = np.zeros((1, 4, 4), np.uint8)
    mask[0, 0, 0] = 1
    draw_box_masks(canvas, mask, [2])
    tinted = canvas.any(2)
    assert tinted[:2, :2].all() and tinted.sum() == 4
    assert canvas[0, 0].argmax() == np.argmax(class_colour(2))
