"""The remedy for a wrong size key sets the size of training and evaluation alike."""

from __future__ import annotations

import re

import pytest

from penstock import build_loader, compose


@pytest.mark.parametrize("augment", ["imagenet", "strong", "light", "segmentation", "keypoints"])
@pytest.mark.parametrize("typed", [["augment.size=64"], ["augment.height=64", "augment.width=64"]])
def test_the_remedy_leads_to_one_size(augment, typed):
    settings = [f"augment={augment}"]
    try:
        config = compose([*settings, *typed])
    except ValueError as error:
        remedy = re.search(r"; type (.*)$", str(error), re.MULTILINE)[1].split()
        config = compose([*settings, *remedy])
    for stack in ("train", "eval"):
        sizes = {
            value
            for step in config["augment"][stack].values()
            for name, value in step.items()
            if name in ("height", "width")
        } | {side for step in config["augment"][stack].values() for side in step.get("size", ())}
        assert sizes == {64}, stack


def test_training_and_evaluation_have_the_size_that_was_typed():
    with pytest.raises(ValueError, match=r"augment\.size") as error:
        compose(["augment=imagenet", "augment.size=48"])
    remedy = re.search(r"; type (.*)$", str(error.value), re.MULTILINE)[1].split()
    config = compose(["augment=imagenet", *remedy, "loader=inline", "loader.batch_size=4"])
    for split in ("train", "val"):
        with build_loader(config, split) as loader:
            assert next(iter(loader))["image"].shape[1:3] == (48, 48)
