from __future__ import annotations

import functools
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from penstock.core.registry import register
from penstock.core.rng import KeyedRng
from penstock.core.sample import Sample
from penstock.transforms.cpu.stack import build_stack, ordered_steps
from tests.building import build_step
from tests.contracts.equality import untouched_global_states
from tests.contracts.transform import apply_at, check_transform

CONF = Path(__file__).resolve().parents[3] / "conf"
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
    return [
        {
            "image": rng.integers(0, 256, (*sizes[i % 3], 3), np.uint8),
            "label": i,
            "index": i,
            "key": f"{i}.jpg",
        }
        for i in range(count)
    ]


@functools.cache
def preset(name: str) -> dict:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(overrides=[f"+augment={name}"])
    container = OmegaConf.to_container(config.augment, resolve=True)
    assert isinstance(container, dict)
    return container


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("part", ["train", "eval"])
def test_presets_keep_the_contract(name, part):
    stack = build_stack(preset(name)[part], build_step=build_step)
    draws = part == "train" and name != "none"
    for sample in check_transform(stack, samples(), draws=draws):
        assert sample["image"].shape == (preset(name)["image_size"],) * 2 + (3,)
        assert sample["image"].dtype == np.uint8


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_three_parts_and_normalise_last(name):
    node = preset(name)
    assert {"train", "eval", "device"} <= set(node)
    assert list(ordered_steps(node["device"]))[-1] == "normalize"
    assert len((CONF / f"augment/{name}.yaml").read_text().splitlines()) < 40


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_draws_are_the_same_in_another_process(method):
    stack = build_stack(preset("strong")["train"], build_step=build_step)
    check_transform(stack, samples(), positions=8, start_method=method)


def node(value: int, after: str | None = None) -> dict:
    return {"_target_": "transform/test_add", "value": value} | (
        {"_after_": after} if after else {}
    )


def test_steps_run_in_order_and_ours_stand_among_those_of_albumentations():
    flip = {"_target_": "albumentations.HorizontalFlip", "p": 1.0}
    stack = build_stack(
        {"a": node(1), "flip": flip, "b": node(2), "flip_back": flip, "c": node(3)},
        build_step=build_step,
    )
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


def test_lists_of_a_config_reach_albumentations_as_tuples():
    seen = []

    def look(given):
        seen.append(given)
        return build_step(given)

    build_stack(
        {"some": {
            "_target_": "albumentations.OneOf", "p": 1.0,
            "transforms": [{"_target_": "albumentations.RandomResizedCrop", "size": [8, 8]}],
        }},
        build_step=look,
    )  # fmt: skip
    assert isinstance(seen[0]["transforms"], list)
    assert seen[0]["transforms"][0]["size"] == (8, 8)


def test_a_registered_albumentations_transform_joins_the_others():
    import albumentations

    @register("transform", "test_dim")
    class Dim(albumentations.ImageOnlyTransform):
        def get_params(self):
            return {"shift": self.py_random.randint(1, 5)}

        def apply(self, img, shift=0, **params):
            return img >> shift

    stack = build_stack(
        {"dim": {"_target_": "transform/test_dim", "p": 1.0}}, build_step=build_step
    )
    given = samples()[0]
    results = [apply_at(stack, given, p)["image"].tobytes() for p in range(8)]
    assert 1 < len(set(results)) <= 5
    assert set(results) <= {(given["image"] >> shift).tobytes() for shift in range(1, 6)}


def test_nested_steps_draw_from_the_rng_too():
    nested = [
        {"_target_": "albumentations.GaussNoise", "p": 1.0},
        {"_target_": "albumentations.RandomBrightnessContrast", "p": 1.0},
        {"_target_": "albumentations.Rotate", "limit": [-40, 40], "p": 1.0},
    ]
    stack = build_stack(
        {"some": {"_target_": "albumentations.SomeOf", "transforms": nested, "n": 2, "p": 1.0}},
        build_step=build_step,
    )
    check_transform(stack, samples())


def test_a_stack_takes_its_draws_from_whatever_rng_it_is_given():
    stack = build_stack(preset("light")["train"], build_step=build_step)
    rngs = [KeyedRng(), KeyedRng()]
    for position in range(6):
        result = stack(samples()[0], rngs[position % 2].at(7, 3, position))
        expected = apply_at(stack, samples()[0], position)
        assert np.array_equal(result["image"], expected["image"])


def test_mask_boxes_and_keypoints_go_with_the_image():
    mask = np.zeros((60, 80), np.uint8)
    mask[10:20, 30:50] = 5
    sample = {
        "image": np.repeat(mask[..., None] * 40, 3, 2),
        "mask": mask,
        "boxes": np.array([[30, 10, 50, 20], [-5, -5, 3, 3], [90, 90, 95, 95]], np.float32),
        "box_labels": np.array([7, 8, 9]),
        "keypoints": np.array([[30, 10, 2], [79, 59, 1]], np.float32),
        "label": 1,
        "key": "a",
        "index": 0,
    }
    stack = build_stack(
        {
            "flip": {"_target_": "albumentations.HorizontalFlip", "p": 1.0},
            "crop": {
                "_target_": "albumentations.Crop",
                "x_min": 20, "y_min": 0, "x_max": 80, "y_max": 50, "p": 1.0,
            },
        },
        build_step=build_step,
    )  # fmt: skip
    result = check_transform(stack, [sample], draws=False)[0]
    assert result["image"].shape == (50, 60, 3)
    assert np.array_equal(result["mask"] * 40, result["image"][..., 0])
    assert result["boxes"].tolist() == [[10, 10, 30, 20], [57, 0, 60, 3]]
    assert result["boxes"].dtype == np.float32
    assert result["box_labels"].tolist() == [7, 8]
    assert result["keypoints"].tolist() == [[29, 10, 2], [-20, 59, 0]]
    assert list(result) == list(sample)


def test_no_boxes_and_no_keypoints_are_left_as_none():
    sample = {
        **samples()[0],
        "boxes": np.zeros((0, 4), np.float32),
        "box_labels": np.zeros(0, np.int64),
        "keypoints": np.zeros((0, 3), np.float32),
    }
    stack = build_stack(preset("strong")["train"], build_step=build_step)
    result = check_transform(stack, [sample])[0]
    assert result["boxes"].shape == (0, 4) and result["boxes"].dtype == np.float32
    assert result["box_labels"].shape == (0,) and result["box_labels"].dtype == np.int64
    assert result["keypoints"].shape == (0, 3)


def test_grey_images_keep_their_channel():
    sample = {**samples()[0], "image": samples()[0]["image"][..., :1].copy()}
    for name in ("none", "light", "imagenet"):
        stack = build_stack(preset(name)["train"], build_step=build_step)
        assert apply_at(stack, sample, 0)["image"].shape[2:] == (1,)


def test_global_random_steps_are_seeded_by_position_and_leave_no_trace():
    stack = build_stack(
        {"noise": {"_target_": "transform/test_global_noise"}}, build_step=build_step
    )
    can = stack.capabilities, pickle.loads(pickle.dumps(stack)).capabilities
    assert all(each.global_random for each in can)
    with untouched_global_states():
        first = [apply_at(stack, samples()[0], p)["image"].tobytes() for p in range(8)]
    random.seed(9)
    again = [apply_at(stack, samples()[0], p)["image"].tobytes() for p in range(8)]
    assert again == first and len(set(first)) > 3
    still = build_stack({"a": node(1)}, build_step=build_step)
    assert not still.capabilities.global_random


def test_a_failing_step_is_named():
    stack = build_stack({"a": node(1), "oops": {"_target_": "transform/test_fail"}},
                        build_step=build_step)  # fmt: skip
    with pytest.raises(KeyError) as raised:
        apply_at(stack, samples()[0], 0)
    assert raised.value.__notes__ == ["in augmentation step 'oops' (transform/test_fail)"]
    stack = build_stack(
        {
            "flip": {"_target_": "albumentations.HorizontalFlip", "p": 1.0},
            "too_large": {"_target_": "albumentations.CenterCrop", "height": 999, "width": 999},
        },
        build_step=build_step,
    )
    with pytest.raises(Exception, match="999") as caught:
        apply_at(stack, samples()[0], 0)
    assert "'too_large' (albumentations.CenterCrop)" in caught.value.__notes__[0]


def test_a_step_that_cannot_be_built_fails_at_once():
    with pytest.raises(AttributeError):
        build_stack({"x": {"_target_": "albumentations.NoSuchThing"}}, build_step=build_step)
