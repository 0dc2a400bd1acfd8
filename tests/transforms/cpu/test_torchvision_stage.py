"""Steps of torchvision: drawn by position, with boxes, masks and keypoints moved along."""

from __future__ import annotations

import pickle
from typing import Any

import cv2
import numpy as np
import pytest

from penstock.core.sample import Sample
from penstock.pipeline.build import build_transform
from penstock.pipeline.config import libraries
from penstock.pipeline.config.compose import compose
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.schema import refuse_library_mistakes
from penstock.pipeline.instantiate import build
from penstock.transforms.cpu.stack import build_stack
from penstock.transforms.cpu.targets import BoxSettings, KeypointSettings
from tests.contracts.equality import assert_same, untouched_global_states
from tests.contracts.transform import apply_all, apply_at
from tests.laws.runs import INLINE, digests, rows, way
from tests.photographs import scene

V2 = "torchvision.transforms.v2"
FLIP = {"_target_": f"{V2}.RandomHorizontalFlip", "p": 1.0}


def test_without_the_library_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(libraries, "_installed", lambda name: name != "torchvision")
    with pytest.raises(ValueError, match="the package torchvision is missing; run: pip install"):
        compose(["augment=torchvision"])


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
    return build_stack(steps, build_step=build, **targets)


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
        assert stack.capabilities.global_random and not stack.capabilities.crops_first
        order = list(range(12))
        with untouched_global_states():
            expected = apply_all(stack, scenes(), order)
        assert_same(apply_all(stack, scenes(), order[::-1])[::-1], expected, "in another order")
        again = pickle.loads(pickle.dumps(stack))
        assert_same([apply_at(again, scenes()[p % 3], p) for p in order], expected, "pickled")
        assert all(s["image"].shape == (64, 64, 3) for s in expected)
        assert all(s["image"].dtype == np.uint8 for s in expected)
        assert len({s["image"].tobytes() for s in expected}) == 12
        frozen = scenes()[0]
        frozen["image"].flags.writeable = False
        before = frozen["image"].copy()
        apply_at(stack, frozen, 0)
        assert np.array_equal(frozen["image"], before)

    def test_targets_move_as_those_of_albumentations_do(self):
        given = with_targets()
        own = {"_target_": "albumentations.HorizontalFlip", "p": 1.0}
        keypoints = KeypointSettings(swaps=[[0, 1]])
        expected = apply_at(stack_of(own, keypoints=keypoints), given, 0)
        found = apply_at(stack_of(FLIP, keypoints=keypoints), given, 0)
        assert np.allclose(
            found.pop("boxes"), expected.pop("boxes"), atol=1e-4
        )  # theirs are shares
        assert_same(found, expected, "mirrored")
        assert np.array_equal(found["image"][..., 0], found["mask"] // 2)

    def test_what_leaves_the_image_is_dropped_or_invisible(self):
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

    def test_steps_stand_beside_those_of_others(self):
        resize = {"_target_": "albumentations.Resize", "height": 20, "width": 30}
        clean = {"_target_": f"{V2}.SanitizeBoundingBoxes", "min_size": 4.5}
        found = apply_at(stack_of(FLIP, resize, clean, FLIP), with_targets(), 0)
        assert found["image"].shape == (20, 30, 3) and found["mask"].dtype == np.uint16
        assert np.allclose(found["boxes"], [[2.5, 5, 12.5, 10]], atol=1e-4)

    def test_what_mixes_or_makes_no_tensor_is_refused(self):
        with pytest.raises(ValueError, match=r"mixes the images.* type batch_transform=mixup"):
            stack_of({"_target_": f"{V2}.MixUp", "num_classes": 3})
        with pytest.raises(ValueError, match="it gives a Image in the place") as error:
            apply_at(stack_of({"_target_": f"{V2}.ToPILImage"}), with_targets(), 0)
        assert error.value.__notes__ == [f"in augmentation step 'step_0' ({V2}.ToPILImage)"]

    @pytest.mark.parametrize(
        "typed",
        [
            "flip.probability=1",
            "flip.p=often",
            f"x._target_={V2}.RandomHorizontalFlop",
            "x._target_=torchvision.transforms.RandomCrop",
        ],
    )
    def test_arguments_are_checked_before_anything_runs(self, typed):
        with pytest.raises(ConfigError) as error:
            refuse_library_mistakes(compose(["augment=torchvision", f"augment.train.{typed}"]))
        assert error.value.problems[0].key == f"augment.train.{typed.partition('=')[0]}"

    def test_engines_give_the_same_bytes(self, tmp_path):
        for number in range(20):
            folder = tmp_path / "photos" / "ab"[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(folder / f"{number}.png"), scene(40, 36 + number, number))
        config = compose([
            "augment=torchvision", "augment.image_size=24", "loader.batch_size=6",
            f"dataset.storage.path={tmp_path / 'photos'}", "loader.drop_last=false",
            "dataset.val_fraction=0", f"+augment.train.color._target_={V2}.ColorJitter",
            "+augment.train.color.brightness=0.5",
        ])  # fmt: skip
        expected = digests(config, **INLINE)
        for engine in ("threads", "processes", "torch"):  # each in a process of its own
            assert digests(config, **way(engine)) == expected, engine
        whole = rows(config, **INLINE)
        parts = [rows(config, **INLINE, rank=rank, world_size=2) for rank in range(2)]
        joined = [sorted(a + b) for a, b in zip(*parts, strict=True)]
        assert joined == [sorted(batch) for batch in whole]
