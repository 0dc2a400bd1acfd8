"""Steps of torchvision: drawn by position, with boxes, masks and keypoints moved along."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.core.sample import Sample
from penstock.pipeline.build import build_transform
from penstock.pipeline.config.compose import compose
from penstock.pipeline.instantiate import build
from penstock.transforms.cpu.stack import Stack
from penstock.transforms.cpu.targets import BoxSettings, KeypointSettings
from tests.contracts.equality import assert_same, untouched_global_states
from tests.contracts.transform import apply_all, apply_at
from tests.photographs import scene

V2 = "torchvision.transforms.v2"
FLIP = {"_target_": f"{V2}.RandomHorizontalFlip", "p": 1.0}


def scenes(count: int = 3) -> list[Sample]:
    sizes = [(90, 120), (64, 64), (100, 70)]
    return [
        {"image": scene(*sizes[i % 3], i), "label": i, "index": i, "key": f"{i}.jpg"}
        for i in range(count)
    ]


def with_targets(height: int = 40, width: int = 60) -> Sample:
    mask = np.zeros((height, width), np.uint16)
    mask[10:20, 5:25] = 300
    return {
        "image": np.repeat(mask[..., None] // 2, 3, 2).astype(np.uint8), "mask": mask,
        "boxes": np.array([[5, 10, 25, 20], [50, 0, 60, 8]], np.float32),
        "box_labels": np.array([3, 4]),
        "keypoints": np.array([[5, 10, 2], [24, 19, 2], [58, 0, 1]], np.float32),
        "key": "one",
    }  # fmt: skip


def stack_of(*nodes: dict[str, Any], **targets: Any) -> Any:
    steps = {f"step_{number}": node for number, node in enumerate(nodes)}
    return Stack(steps, build_step=build, **targets)


@pytest.mark.ecosystem
class TestSteps:
    @pytest.fixture(autouse=True)
    def library(self):
        return pytest.importorskip(V2)

    def test_a_sample_is_a_function_of_its_position(self):
        config = compose(["augment=torchvision"])
        color = {"_target_": f"{V2}.ColorJitter", "brightness": 0.4, "hue": 0.1}
        config["augment"]["train"]["color"] = color
        stack = build_transform(config, "train")
        assert stack.global_random and not stack.crops_first
        order = list(range(12))
        with untouched_global_states():
            expected = apply_all(stack, scenes(), order)
        assert_same(apply_all(stack, scenes(), order[::-1])[::-1], expected, "in another order")
        assert all(s["image"].shape == (64, 64, 3) for s in expected)
        assert all(s["image"].dtype == np.uint8 for s in expected)
        assert len({s["image"].tobytes() for s in expected}) == 12

    def test_targets_move_as_those_of_albumentations_do(self):
        given = with_targets()
        own = {"_target_": "albumentations.HorizontalFlip", "p": 1.0}
        keypoints = KeypointSettings(swaps=[[0, 1]])
        expected = apply_at(stack_of(own, keypoints=keypoints), given, 0)
        found = apply_at(stack_of(FLIP, keypoints=keypoints), given, 0)
        assert np.allclose(found.pop("boxes"), expected.pop("boxes"), atol=1e-4)
        assert_same(found, expected, "mirrored")
        assert np.array_equal(found["image"][..., 0], found["mask"] // 2)

    def test_targets_outside_of_the_image_are_dropped_or_invisible(self):
        crop = {"_target_": f"{V2}.CenterCrop", "size": [40, 30]}  # columns 15 to 45
        found = apply_at(stack_of(crop), with_targets(), 0)
        assert found["boxes"].tolist() == [[0, 10, 10, 20]] and found["box_labels"].tolist() == [3]
        assert found["keypoints"].tolist() == [[-10, 10, 0], [9, 19, 2], [43, 0, 0]]
        pad = {"_target_": f"{V2}.Pad", "padding": 30}
        back = apply_at(stack_of(crop, pad), with_targets(), 0)
        assert back["keypoints"][:, 2].tolist() == [0, 2, 0], "what was cut off does not come back"
        limits = BoxSettings(min_visibility=0.6)
        assert not len(apply_at(stack_of(crop, boxes=limits), with_targets(), 0)["boxes"])

    def test_masks_of_boxes_move_with_them(self):
        given = with_targets()
        masks = np.zeros((2, 40, 60), np.uint8)
        masks[0, 10:20, 5:25] = masks[1, 0:8, 50:60] = 1
        crop = {"_target_": f"{V2}.CenterCrop", "size": [40, 30]}  # columns 15 to 45
        clean = {"_target_": f"{V2}.SanitizeBoundingBoxes", "min_size": 4.5}
        found = apply_at(stack_of(crop, FLIP, clean), given | {"box_masks": masks}, 0)
        assert found["boxes"].tolist() == [[20, 10, 30, 20]]
        assert np.array_equal(found["box_masks"], masks[:1, :, 15:45][:, :, ::-1])
