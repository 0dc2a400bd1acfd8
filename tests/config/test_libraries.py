"""Arguments of library classes: every mistake by its key, before anything is built."""

from __future__ import annotations

import re

import pytest

from penstock.pipeline.build import build, build_dataset
from penstock.pipeline.config import libraries
from penstock.pipeline.config.composition import compose
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.libraries import check_libraries
from penstock.pipeline.training.job import train

FLIP = "albumentations.HorizontalFlip"
ADAM = {"_target_": "torch.optim.AdamW"}


def found(config) -> dict[str, str]:
    return {problem.key: problem.message for problem in check_libraries(config)}


def test_all_mistakes_of_all_nodes_are_found_by_their_keys():
    config = {
        "optimizer": {**ADAM, "lrr": 0.1, "params": [], "amsgrad": "yes"},
        "scheduler": {"_target_": "torch.optim.lr_scheduler.StepLR", "gamma": "half"},
        "augment": {"train": {"flip": {"_target_": FLIP, "pp": 0.5, "_after_": "crop"}}},
        "model": {"_target_": "model/module", "layers": [{"_target_": "torch.nn.Linear"}]},
    }
    assert set(found(config)) == {
        "optimizer.lrr", "optimizer.params", "optimizer.amsgrad", "scheduler.gamma",
        "scheduler.step_size", "augment.train.flip.pp", "model.layers.0.in_features",
        "model.layers.0.out_features",
    }  # fmt: skip


@pytest.mark.parametrize(
    "node",
    [
        {**ADAM, "lr": 1, "betas": [0.9, 0.99], "foreach": None, "weight_decay": 0},
        {"_target_": "torch.nn.Conv2d", "_args_": [3, 8, 3], "padding": "same"},
        {"_target_": "torch.nn.Sequential", "_args_": [{"_target_": "torch.nn.ReLU"}]},
        {"_target_": "torch.nn.Identity", "anything": 1},
        {"_target_": "albumentations.RandomCrop", "height": 8, "width": 8, "p": 1},
    ],
)
def test_what_a_class_takes_is_no_mistake(node):
    assert found({"part": node}) == {}


def test_settings_may_stand_beside_the_arguments_of_an_optimizer():
    plain = compose(["optimizer=sgd"])
    assert check_libraries(plain) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("lrr", 0.1), ("lr", "0.1"), ("weight_decay", True), ("amsgrad", 1)],
)
def test_the_remedy_builds(name, value):
    import torch

    [text] = found({"optimizer": {**ADAM, name: value}}).values()
    [(typed, given)] = re.findall(r"type (?:for example )?optimizer\.(\w+)=(\S+)", text)
    node = compose([f"optimizer.{typed}={given}"])["optimizer"]
    taken = {**ADAM, typed: node[typed]}
    assert found({"optimizer": taken}) == {}
    assert build(taken, params=[torch.nn.Parameter(torch.zeros(1))]).defaults[typed] == node[typed]


def test_a_missing_class_names_the_nearest():
    text = found({"flip": {"_target_": "albumentations.HorizontlFlip"}})["flip._target_"]
    assert f"type flip._target_={FLIP}" in text
    assert "flip._target_" in found({"flip": {"_target_": "os.system"}})


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setattr(libraries, "_installed", lambda name: name != "kornia")
    text = found({"k": {"_target_": "kornia.augmentation.RandomAffine"}})["k._target_"]
    assert "pip install 'penstock[kornia]'" in text


@pytest.mark.parametrize("use", [train, lambda config: build_dataset(config, "train")])
def test_a_config_is_checked_where_it_is_used(use, tmp_path):
    config = compose([f"outputs={tmp_path}/runs"])
    config["optimizer"] = {**ADAM, "lrr": 0.1}
    config["augment"]["train"] = {"flip": {"_target_": FLIP, "pp": 0.5}}
    with pytest.raises(ConfigError) as error:
        use(config)
    keys = {problem.key for problem in error.value.problems}
    assert keys == {"optimizer.lrr", "augment.train.flip.pp"}
    assert not (tmp_path / "runs").exists()
