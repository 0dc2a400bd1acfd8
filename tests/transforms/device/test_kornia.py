"""Augmentations of kornia: seeded by the slice's first position, and global states left alone."""

import pickle

import numpy as np
import pytest
import torch

from penstock.pipeline.build import build_device_transforms
from penstock.pipeline.config.compose import compose
from tests.transforms.device.drawn_rows import batch, same

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


def test_evaluation_and_no_augmentation_change_nothing():
    given = batch()
    assert stack("val")(given) is given and of()(given) is given and of(None)(given) is given


def test_arrays_stay_arrays():
    turned, image = of(augmentation.RandomAffine(30.0, p=1.0)), batch()["image"]
    result = turned({**batch(), "image": image.numpy()})["image"]
    assert type(result) is np.ndarray
    assert np.array_equal(result, turned(batch())["image"].numpy())


def test_refusals():
    flip = augmentation.RandomHorizontalFlip()
    with pytest.raises(ValueError, match=r"augment\.device\.k: the batch has mask"):
        of(flip)({**batch(), "mask": []})
    with pytest.raises(ValueError, match="images are a list"):
        of(flip)({**batch(), "image": list(batch()["image"])})
    with pytest.raises(ValueError, match=r"k\.augmentations\.0 .* use batch_transform=mixup"):
        of(augmentation.AugmentationSequential(augmentation.RandomMixUpV2(), data_keys=["input"]))
    with pytest.raises(ValueError, match=r"augmentations\.0 is a int, expected a class of kornia"):
        of(3)
