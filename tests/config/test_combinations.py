"""Combinations that cannot work: steps of the device in an order that has no meaning."""

import pytest

from penstock.pipeline.config import signatures as library
from penstock.pipeline.config.composition import compose
from penstock.pipeline.config.errors import ConfigError


@pytest.mark.parametrize("name", ["color_jitter", "grayscale"])
def test_colours_behind_normalize_are_refused_with_what_to_type(name):
    with pytest.raises(ConfigError) as error:
        compose([f"batch_transform={name}"])
    assert f"type augment.device.normalize._after_={name}" in str(error.value)
    config = compose([f"batch_transform={name}", f"augment.device.normalize._after_={name}"])
    assert name in config["augment"]["device"]
    compose([f"batch_transform={name}", "augment.device.normalize=null"])


@pytest.mark.parametrize("key", ["data_dir", "outputs", "dataset.storage.path", "trainer.resume"])
def test_a_path_of_a_variable_that_is_not_set_is_not_the_working_directory(key):
    with pytest.raises(ConfigError) as error:
        compose([f"{key}=", "seed=1"])
    [line] = [str(problem) for problem in error.value.problems]
    assert line.startswith(f"{key}: '' given, which names no folder")
    assert f"type {key}=" in line


def test_an_order_that_is_wrong_is_said_once():
    with pytest.raises(ConfigError) as error:
        compose(["batch_transform=grayscale", "augment.device.normalize._after_=greyscale"])
    assert "augment.device.normalize._after_" in str(error.value)


def test_a_library_that_is_missing_is_said_in_one_line(monkeypatch):
    monkeypatch.setattr(library, "_installed", lambda distribution: distribution != "kornia")
    step = (
        "{_target_: batch_transform/kornia, augmentations: {a: {_target_: kornia.augmentation.A}}}"
    )
    with pytest.raises(ConfigError, match="the package kornia is missing; run: pip install kornia"):
        compose(["augment.device.normalize._after_=k", f"augment.device.k={step}"])
