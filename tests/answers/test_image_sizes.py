"""Training and evaluation have images of one size, or a warning names both and the keys."""

from __future__ import annotations

import re

import cv2
import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.pipeline.training.job import train
from tests.console import penstock


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
        }
        for step in config["augment"][stack].values():
            sides = step.get("size") or []
            sizes |= {*sides} if isinstance(sides, list) else {sides}
        assert sizes == {64}, stack


def test_training_and_evaluation_have_the_size_that_was_typed():
    with pytest.raises(ValueError, match=r"augment\.size") as error:
        compose(["augment=imagenet", "augment.size=48"])
    remedy = re.search(r"; type (.*)$", str(error.value), re.MULTILINE)[1].split()
    config = compose(["augment=imagenet", *remedy, "loader=inline", "loader.batch_size=4"])
    for split in ("train", "val"):
        with build_loader(config, split) as loader:
            assert next(iter(loader))["image"].shape[1:3] == (48, 48)


def test_a_crop_that_fits_into_no_image_is_refused():
    with pytest.raises(ValueError, match=r"augment\.eval\.crop") as error:
        compose(["augment=imagenet", "augment.image_size=300"])
    remedy = re.search(r"; type (.*)$", str(error.value), re.MULTILINE)[1].split()
    typed = ["augment=imagenet", "augment.image_size=300", *remedy, "loader=inline"]
    config = compose([*typed, "loader.batch_size=2"])
    for split in ("train", "val"):
        with build_loader(config, split) as loader:
            assert next(iter(loader))["image"].shape[1:3] == (300, 300)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Images of differing sizes in two classes, the same ones to train and to validate on."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for split in ("train", "val"):
        for number in range(6):
            folder = root / split / "ab"[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            high, wide = (40 + 5 * number, 70 - 5 * number)
            image = rng.integers(0, 255, (high, wide, 3), np.uint8)
            cv2.imwrite(str(folder / f"{number}.png"), image)
    return root


def run(photos, outputs, *typed):
    return [
        "dataset=image_folder",
        f"dataset.storage.path={photos}",
        "augment=imagenet",
        "augment.image_size=32",
        "augment.eval_size=36",
        "model.width=8",
        "loader=inline",
        "loader.batch_size=3",
        f"outputs={outputs}",
        "trainer.max_epochs=2",
        "trainer.device=cpu",
        *typed,
    ]


def warned(capsys) -> list[str]:
    """Return the lines printed since the last call that name a size of 32."""
    printed = capsys.readouterr()
    return [line for line in (printed.out + printed.err).splitlines() if "32 x 32" in line]


OTHER = {
    "imagenet": ["augment.eval.crop.size=[24,28]"],
    "light": ["augment.eval.resize.size=[24,28]"],
    "torchvision": ["augment.eval.resize.size=[24,28]"],
}


@pytest.mark.parametrize("augment", OTHER)
def test_sizes_that_differ_are_told_once_with_the_keys_to_type(augment, photos, tmp_path, capsys):
    if augment == "torchvision":
        pytest.importorskip("torchvision")
    typed = [f"augment={augment}", *OTHER[augment]]
    settings = run(photos, tmp_path, *typed, *["~augment.eval_size"][: augment != "imagenet"])
    train(compose(settings))
    [said] = warned(capsys)
    assert "24 x 28" in said
    remedy = re.search(r"type (.*)$", said)[1].replace("'", "").split()
    train(compose([*settings, *remedy]))
    assert not warned(capsys)


@pytest.mark.parametrize(
    "typed",
    [
        ["augment.eval_size=64"],
        ["augment=device", "~augment.eval_size", *OTHER["imagenet"]],  # the device's crop is last
        ["augment.eval.crop=null", "loader.batch_size=1"],
        [*OTHER["imagenet"], "trainer.overfit_batches=1"],
    ],
)
def test_one_size_or_sizes_that_vary_are_no_warning(typed, photos, tmp_path, capsys):
    train(compose(run(photos, tmp_path, *typed)))
    assert not warned(capsys)


def test_evaluation_is_compared_with_the_run(photos, tmp_path, capsys):
    trained = train(compose(run(photos, tmp_path)))["run_dir"]
    assert not warned(capsys)
    typed = [f"evaluate.checkpoint={trained}", f"evaluate.output={tmp_path}/a.json"]
    assert penstock("evaluate", *typed) == 0
    assert not warned(capsys)
    typed += [*OTHER["imagenet"], "evaluate.overwrite=true"]
    assert penstock("evaluate", *typed) == 0
    [said] = warned(capsys)
    assert "24 x 28" in said
    remedy = re.search(r"type (.*)$", said)[1].replace("'", "").split()
    assert penstock("evaluate", *typed, *remedy) == 0
    assert not warned(capsys)
