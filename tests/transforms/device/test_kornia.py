"""Augmentations of kornia: seeded by the slice's first position, and global states left alone."""

import pickle
import random

import numpy as np
import pytest
import torch

from penstock.pipeline.build import build_device_transforms
from penstock.pipeline.config.compose import compose
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.schema import refuse_library_mistakes
from penstock.transforms.device.random_erasing import RandomErasing
from penstock.transforms.device.random_resized_crop import RandomResizedCrop
from penstock.transforms.device.steps import apply_steps, host_draws
from tests.transforms.device.drawn_rows import as_floats, batch, part, same

augmentation = pytest.importorskip("kornia.augmentation")

from penstock.transforms.device.kornia import Kornia  # noqa: E402

STACK = (
    "augment.device.k={_target_: batch_transform/kornia, augmentations: {"
    "turn: {_target_: kornia.augmentation.RandomAffine, degrees: 30.0, p: 1.0}, "
    "jitter: {_target_: kornia.augmentation.ColorJitter, brightness: 0.3, hue: 0.1, p: 0.8}, "
    "noise: {_target_: kornia.augmentation.RandomGaussianNoise, std: 0.1}}}"
)


def stack(split="train", *overrides, seed=7):
    base = [f"seed={seed}", "augment.device.normalize._after_=k", STACK]
    made, normalize = build_device_transforms(compose([*base, *overrides]), split)
    assert type(normalize).__name__ == "Normalize"
    return made


def of(*modules, split="train"):
    named = {str(i): module for i, module in enumerate(modules)}
    return Kornia(augmentations=named, seed=1, split=split, step="k")


def test_a_batch_is_the_same_again_and_others_are_others():
    given = batch()
    result = stack()(given)
    assert result["image"].dtype == torch.uint8 and result["image"].shape == given["image"].shape
    assert not torch.equal(result["image"], given["image"])
    used = stack()
    used(batch(epoch=9))
    for again in (stack(), used, pickle.loads(pickle.dumps(used))):
        assert same(again(given), result)
    for other in (stack()(batch(epoch=3)), stack()(batch(start=104)), stack(seed=8)(given)):
        assert not torch.equal(other["image"], result["image"])


def test_slices_are_seeded_by_their_first_position():
    whole = batch()
    assert same(stack()(part(whole, slice(0, 16))), stack()(part(whole, slice(0, 16))))
    second = stack()(part(whole, slice(16, 32)))
    assert not torch.equal(second["image"], stack()(whole)["image"][16:])


def test_global_random_states_are_left_alone():
    states = random.getstate(), np.random.get_state()[1].copy(), torch.random.get_rng_state()
    expected = stack()(batch())
    torch.manual_seed(99)
    state = torch.random.get_rng_state()
    assert same(stack()(batch()), expected)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.random.set_rng_state(states[2])
    assert random.getstate() == states[0] and (np.random.get_state()[1] == states[1]).all()


def test_masks_go_along_and_floats_stay_floats():
    given = {**batch(), "mask": batch()["image"][..., 0] // 64}
    flip = augmentation.RandomHorizontalFlip(p=1.0)
    result = of(flip)(given)
    assert torch.equal(result["image"], given["image"].flip(2))
    assert torch.equal(result["mask"], given["mask"].flip(2))
    floats = as_floats(batch())
    assert torch.equal(of(flip)(floats)["image"], floats["image"].flip(3))


def test_steps_before_and_behind_may_resize():
    given = batch()
    sized = {"seed": 7, "split": "train"}
    steps = [
        RandomResizedCrop(size=[20, 16], step="crop", **sized),
        of(augmentation.RandomCrop((12, 8))),
        RandomErasing(p=1.0, step="erase", **sized),
    ]
    expected = given
    for step in steps:
        expected = step(expected)
    for image in (given["image"], list(given["image"])):
        host = {**given, "image": image}
        draws = host_draws(steps, host)
        assert (draws[2]["windows"][:, :2] + draws[2]["windows"][:, 2:] <= [12, 8]).all()
        result = apply_steps(steps, host, draws)["image"]
        assert result.shape[1:3] == (12, 8) and torch.equal(result, expected["image"])


def test_arrays_stay_arrays():
    given = {**batch(), "mask": batch()["image"][..., 0] // 64}
    arrays = {name: value.numpy() if name != "key" else value for name, value in given.items()}
    turned = of(augmentation.RandomAffine(30.0, p=1.0))
    result, expected = turned(arrays), turned(given)
    for name in ("image", "mask"):
        assert type(result[name]) is np.ndarray
        assert np.array_equal(result[name], expected[name].numpy())


def test_evaluation_and_no_augmentation_change_nothing():
    given = batch()
    assert stack("val")(given) is given and of()(given) is given and of(None)(given) is given


def test_what_cannot_be_is_said():
    flip = augmentation.RandomHorizontalFlip()
    with pytest.raises(ValueError, match=r"augment\.device\.k: the batch has boxes"):
        of(flip)({**batch(), "boxes": []})
    with pytest.raises(ValueError, match="images are a list"):
        of(flip)({**batch(), "image": list(batch()["image"])})
    with pytest.raises(ValueError, match=r"k\.augmentations\.0 mixes images"):
        of(augmentation.AugmentationSequential(augmentation.RandomMixUpV2(), data_keys=["input"]))
    with pytest.raises(ValueError, match=r"augmentations\.0 is 3, expected a class of kornia"):
        of(3)


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        (STACK.replace("brightness", "brightnes"), "jitter.brightnes"),
        (STACK.replace("ColorJitter", "ColorJiter"), "jitter._target_"),
        (STACK.replace("augmentation.ColorJitter", "io.load_image"), "jitter._target_"),
    ],
)
def test_mistakes_in_a_config_are_found_before_anything_is_built(typed, key):
    with pytest.raises(ConfigError) as error:
        refuse_library_mistakes(compose(["augment.device.normalize._after_=k", typed]))
    assert [problem.key for problem in error.value.problems] == [
        f"augment.device.k.augmentations.{key}"
    ]
