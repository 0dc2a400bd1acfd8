"""A crop and flips taken over from Compose have the pixels and draws of albumentations."""

from __future__ import annotations

import inspect
from typing import Any

import albumentations
import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.rng import KeyedRng, PythonRandom
from penstock.transforms.cpu import crop_first
from penstock.transforms.cpu.crop_first import FirstSteps, take_first_steps
from penstock.transforms.cpu.stack import Stack, build_stack
from tests.building import build_step
from tests.contracts.equality import assert_same

SIDES = st.integers(1, 90)
SIZES = st.tuples(st.integers(1, 70), st.integers(1, 70))
P = st.sampled_from([0.0, 0.3, 0.8, 1.0])
INTERPOLATION = st.sampled_from(range(7))
AREA = st.sampled_from([None, "image", "image_mask"])
SCALES = st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(lambda s: tuple(sorted(s)))
RATIOS = st.tuples(st.floats(0.1, 5), st.floats(0.1, 5)).map(lambda s: tuple(sorted(s)))
PADDED = {
    "pad_if_needed": st.booleans(),
    "pad_position": st.sampled_from(["center", "top_left", "bottom_right", "random"]),
    "border_mode": st.sampled_from([0, 1, 2, 4]),
    "fill": st.sampled_from([0, 77]),
}
FRAMED = {"height": SIDES, "width": SIDES, **PADDED}
RESIZED = {"size": SIZES, "interpolation": INTERPOLATION, "area_for_downscale": AREA}
CROPS = {
    "CenterCrop": FRAMED,
    "RandomCrop": FRAMED,
    "Crop": {"x_min": st.integers(0, 9), "y_min": st.integers(0, 9),
             "x_max": st.integers(10, 90), "y_max": st.integers(10, 90), **PADDED},
    "RandomCropFromBorders": {"crop_left": st.floats(0, 0.5), "crop_top": st.floats(0, 0.5)},
    "RandomResizedCrop": {"scale": SCALES, "ratio": RATIOS, **RESIZED},
    "RandomSizedCrop": {
        "min_max_height": st.tuples(st.integers(1, 40), st.integers(40, 90)),
        "w2h_ratio": st.floats(0.3, 2),
        **RESIZED,
    },
    "Resize": {"height": SIDES, "width": SIDES, "interpolation": INTERPOLATION,
               "area_for_downscale": AREA},
}  # fmt: skip

MODULES = (
    crop_first._CROP_MODULE,
    crop_first._RESIZE_MODULE,
    crop_first._FLIP_MODULE,
)


def node(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"albumentations.{name}", **arguments}


CROP_NODES = st.sampled_from(sorted(CROPS)).flatmap(
    lambda name: st.fixed_dictionaries({**CROPS[name], "p": P}).map(lambda a: node(name, **a))
)
FLIPS = st.sampled_from(["HorizontalFlip", "VerticalFlip"])
FLIP_NODES = st.lists(st.builds(lambda name, p: node(name, p=p), FLIPS, P), max_size=4)
AFTER = st.sampled_from([None, None, node("ColorJitter", p=0.7), node("Transpose", p=0.5)])


def stack(*nodes: dict[str, Any]) -> Stack:
    return build_stack({f"step {i}": n for i, n in enumerate(nodes)}, build_step=build_step)


def by_compose(nodes: tuple[dict[str, Any], ...], image: np.ndarray, position: int) -> Any:
    """What albumentations gives, and the draw after it; or what it raises."""
    rng = KeyedRng().at(3, 1, position)
    compose = albumentations.Compose([build_step(n) for n in nodes])
    compose.set_random_state(rng, PythonRandom(rng))
    try:
        return compose(image=image.copy())["image"], rng.random()
    except Exception as error:
        return type(error)


def by_stack(transform: Stack, image: np.ndarray, position: int, into: Any = None) -> Any:
    rng = KeyedRng().at(3, 1, position)
    try:
        return transform({"image": image}, rng, into=into)["image"], rng.random()
    except Exception as error:
        return type(error)


def compare(nodes: tuple[dict[str, Any], ...], image: np.ndarray, positions: range) -> None:
    transform = stack(*nodes)
    before = image.copy()
    for position in positions:
        expected = by_compose(nodes, image, position)
        assert_same(by_stack(transform, image, position), expected)
        assert np.array_equal(image, before)
        if isinstance(expected, tuple):
            shape = expected[0].shape
            block = np.full((3, *shape), 7, np.uint8)
            found, draw = by_stack(transform, image, position, block[1])
            assert_same((found, draw), expected)
            assert (block[0] == 7).all() and (block[2] == 7).all()
            assert found is block[1] or (block[1] == 7).all() or np.array_equal(block[1], found)
            other = np.full((shape[0] + 1, *shape[1:]), 7, np.uint8)
            assert_same(by_stack(transform, image, position, other), expected)
            assert (other == 7).all()


@settings(max_examples=150)
@given(
    crop=CROP_NODES, flips=FLIP_NODES, after=AFTER, shape=st.tuples(SIDES, SIDES),
    channels=st.sampled_from([1, 2, 3, 3, 3, 4, 5]), seed=st.integers(0, 1000),
)  # fmt: skip
def test_pixels_draws_and_errors_are_those_of_compose(crop, flips, after, shape, channels, seed):
    if after is not None and after["_target_"].endswith("ColorJitter"):
        channels = 3
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (*shape, channels), np.uint8)
    compare((crop, *flips, *([after] if after else [])), image, range(seed, seed + 3))


@pytest.mark.parametrize("interpolation", range(7))
@pytest.mark.parametrize("p", [0, 0.5, 1])
def test_the_usual_recipe_on_hundreds_of_draws(interpolation, p):
    crop = node("RandomResizedCrop", size=(48, 64), interpolation=interpolation)
    nodes = (crop, node("HorizontalFlip", p=p), node("VerticalFlip", p=0.5))
    image = np.random.default_rng(1).integers(0, 256, (120, 101, 3), np.uint8)
    compare(nodes, image, range(40))


def test_the_recipe_is_compiled_to_its_end_and_written_into_the_row():
    transform = stack(node("RandomResizedCrop", size=(32, 32)), node("HorizontalFlip", p=0.5))
    image = np.random.default_rng(1).integers(0, 256, (60, 70, 3), np.uint8)
    row = np.zeros((32, 32, 3), np.uint8)
    for position in range(8):
        assert by_stack(transform, image, position, row)[0] is row


def test_opencv_writes_where_it_is_told_and_flips_in_place():
    """What the compiled head relies on."""
    rng = np.random.default_rng(2)
    for height, width in [(1, 1), (1, 9), (7, 1), (33, 65), (224, 224), (301, 517)]:
        for channels in (1, 2, 3, 4):
            source = rng.integers(0, 256, (41, 57, channels), np.uint8)
            block = np.zeros((3, height, width, channels), np.uint8)
            assert cv2.resize(source, (width, height), dst=block[1]).base is not None
            plain = cv2.resize(source, (width, height)).reshape(block[1].shape)
            assert np.array_equal(block[1], plain)
            for code, turned in ((1, plain[:, ::-1]), (0, plain[::-1]), (-1, plain[::-1, ::-1])):
                block[1] = plain
                cv2.flip(block[1], code, dst=block[1])
                assert np.array_equal(block[1], turned)
            assert not block[0].any() and not block[2].any()


class OwnCrop(albumentations.RandomResizedCrop):
    """May do anything."""


def head_of(*transforms: Any) -> FirstSteps | None:
    return take_first_steps(albumentations.Compose(list(transforms)))


def test_only_what_is_known_exactly_is_compiled(monkeypatch):
    crop = albumentations.RandomResizedCrop((8, 8))
    assert head_of(crop) is not None
    assert head_of(OwnCrop((8, 8))) is None
    resize = head_of(albumentations.Resize(8, 8))
    assert resize is not None and not resize.crops
    assert head_of(albumentations.HorizontalFlip(), crop) is None
    assert head_of() is None
    monkeypatch.setattr(albumentations, "__version__", "2.0.9")
    assert head_of(crop) is None


def test_the_compiled_classes_have_no_other_draws_than_those_made():
    """A release that draws elsewhere must not pass unnoticed."""
    for name in [*CROPS, "HorizontalFlip", "VerticalFlip"]:
        kind = getattr(albumentations, name)
        assert kind.__module__ in MODULES
        assert kind.get_params is albumentations.BasicTransform.get_params
        assert kind.should_apply is albumentations.BasicTransform.should_apply
        assert kind.__call__ is albumentations.BasicTransform.__call__
        assert "random" not in inspect.getsource(kind.apply)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_other_types_of_pixels_go_through_compose(dtype):
    nodes = (node("RandomResizedCrop", size=(16, 16)), node("HorizontalFlip", p=0.5))
    image = np.random.default_rng(1).integers(0, 256, (30, 40, 3)).astype(dtype)
    for position in range(4):
        assert_same(by_stack(stack(*nodes), image, position), by_compose(nodes, image, position))


def test_what_follows_the_head_never_sees_the_row():
    class Keeps(albumentations.ImageOnlyTransform):
        seen: list[np.ndarray] = []  # noqa: RUF012

        def apply(self, img: np.ndarray, **params: Any) -> np.ndarray:
            self.seen.append(img)
            return img

    def build(given: dict[str, Any]) -> Any:
        return Keeps(p=1.0) if given["_target_"].endswith("Blur") else build_step(given)

    transform = build_stack(
        {"crop": node("CenterCrop", height=8, width=8), "keep": node("Blur")}, build_step=build
    )
    row = np.zeros((8, 8, 3), np.uint8)
    image = np.random.default_rng(1).integers(0, 256, (30, 40, 3), np.uint8)
    by_stack(transform, image, 0, row)
    assert len(Keeps.seen) == 1 and not np.shares_memory(Keeps.seen[0], row)
