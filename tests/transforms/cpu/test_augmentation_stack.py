from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import torch

from penstock import compose
from penstock.core.registry import register
from penstock.core.sample import Sample
from penstock.transforms.cpu.stack import Stack, ordered_steps
from tests.building import build_step
from tests.contracts.equality import untouched_global_states
from tests.contracts.transform import apply_at, check_transform

PRESETS = ("none", "light", "imagenet", "strong")


@register("transform", "test_add")
def add(sample: Sample, rng: np.random.Generator, *, value: int) -> Sample:
    return {**sample, "label": sample["label"] * 10 + value}


@register("transform", "test_global_noise", global_random=True)
def global_noise(sample: Sample, rng: np.random.Generator) -> Sample:
    noise = (random.randrange(9) + np.random.randint(9) + int(torch.randint(9, (1,)))) * 7
    return {**sample, "image": sample["image"] ^ np.uint8(noise)}


@register("transform", "test_fail")
def fail(sample: Sample, rng: np.random.Generator) -> Sample:
    raise KeyError("nothing here")


def samples(count: int = 3) -> list[Sample]:
    rng = np.random.default_rng(0)
    sizes = [(90, 120), (64, 64), (300, 200)]
    images = [rng.integers(0, 256, (*sizes[i % 3], 3), np.uint8) for i in range(count)]
    return [{"image": v, "label": i, "index": i, "key": f"{i}.jpg"} for i, v in enumerate(images)]


def preset(name: str) -> dict:
    return compose([f"augment={name}"])["augment"]


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("part", ["train", "eval"])
def test_presets_keep_the_contract(name, part):
    stack = Stack(preset(name)[part], build_step=build_step)
    draws = part == "train" and name != "none"
    for sample in check_transform(stack, samples(), draws=draws):
        assert sample["image"].shape == (preset(name)["image_size"],) * 2 + (3,)
        assert sample["image"].dtype == np.uint8


def test_draws_are_the_same_in_another_process():
    stack = Stack(preset("strong")["train"], build_step=build_step)
    check_transform(stack, samples(), positions=8, start_method="spawn")


def node(value: int, after: str | None = None) -> dict:
    return {"_target_": "transform/test_add", "value": value, "_after_": after}


def test_steps_run_in_order_and_ours_stand_among_those_of_albumentations():
    flip = {"_target_": "albumentations.HorizontalFlip", "p": 1.0}
    nodes = {"a": node(1), "flip": flip, "b": node(2), "flip_back": flip, "c": node(3)}
    stack = Stack(nodes, build_step=build_step)
    sample = {**samples()[0], "label": 0}
    result = apply_at(stack, sample, 0)
    assert result["label"] == 123
    assert np.array_equal(result["image"], sample["image"])
    assert result is not sample and sample["label"] == 0


def test_after_places_a_step_and_null_removes_one():
    steps = {
        "a": node(1), "b": node(2), "x": node(3, "a"), "y": node(4, "a"), "z": node(5, "x"),
        "gone": None,
    }  # fmt: skip
    assert list(ordered_steps(steps)) == ["a", "x", "z", "y", "b"]
    assert list(ordered_steps({**steps, "a": None})) == ["x", "z", "y", "b"]
    assert list(ordered_steps({})) == []


def test_after_must_name_a_step():
    with pytest.raises(ValueError, match=r"'x': _after_='resize', .* x$"):
        ordered_steps({"x": node(1, "resize")})
    with pytest.raises(ValueError, match="wait for one another by _after_: x, y"):
        ordered_steps({"a": node(1), "x": node(1, "y"), "y": node(1, "x")})


def test_no_boxes_and_no_keypoints_are_left_as_none():
    sample = {
        **samples()[0],
        "boxes": np.zeros((0, 4), np.float32),
        "box_labels": np.zeros(0, np.int64),
        "keypoints": np.zeros((0, 3), np.float32),
    }
    stack = Stack(preset("strong")["train"], build_step=build_step)
    result = check_transform(stack, [sample])[0]
    assert result["boxes"].shape == (0, 4) and result["boxes"].dtype == np.float32
    assert result["box_labels"].shape == (0,) and result["box_labels"].dtype == np.int64
    assert result["keypoints"].shape == (0, 3)


def test_global_random_steps_are_seeded_by_position_and_leave_no_trace():
    stack = Stack({"noise": {"_target_": "transform/test_global_noise"}}, build_step=build_step)
    can = stack, pickle.loads(pickle.dumps(stack))
    assert all(each.global_random for each in can)
    with untouched_global_states():
        first = [apply_at(stack, samples()[0], p)["image"].tobytes() for p in range(8)]
    random.seed(9)
    again = [apply_at(stack, samples()[0], p)["image"].tobytes() for p in range(8)]
    assert again == first and len(set(first)) > 3
    assert not Stack({"a": node(1)}, build_step=build_step).global_random


def test_a_failing_step_is_named():
    nodes = {"a": node(1), "oops": {"_target_": "transform/test_fail"}}
    stack = Stack(nodes, build_step=build_step)
    with pytest.raises(KeyError) as raised:
        apply_at(stack, samples()[0], 0)
    assert raised.value.__notes__ == ["in augmentation step 'oops' (transform/test_fail)"]
    crop = {"_target_": "albumentations.CenterCrop", "height": 999, "width": 999}
    with pytest.raises(Exception, match="999") as caught:
        apply_at(Stack({"too_large": crop}, build_step=build_step), samples()[0], 0)
    assert "'too_large' (albumentations.CenterCrop)" in caught.value.__notes__[0]
