"""Classes of libraries and of one's own modules: what a config may name, and their arguments."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from penstock import compose, register
from penstock.pipeline.build import build, build_dataset
from penstock.pipeline.config import libraries
from penstock.pipeline.config.components import register_components
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.libraries import (
    check_libraries,
    resolve_class,
    resolve_function,
    resolve_target,
)
from penstock.pipeline.learning.building import build_model
from penstock.pipeline.training.job import train

FLIP = "albumentations.HorizontalFlip"
ADAM = {"_target_": "torch.optim.AdamW"}
OWN = """
import os
import torch

class Net(torch.nn.Module):
    def __init__(self, width, num_classes):
        super().__init__()
        self.head = torch.nn.Linear(width, num_classes)

class Wrapped(Net):
    def __init__(self, width=4, **kwargs):
        super().__init__(width, **kwargs)

class Alone(torch.nn.Linear):
    def __init__(self, **kwargs):
        super().__init__(2, 5, **kwargs)

class Slow(torch.optim.SGD): ...
"""


@register("model", "test_timm_style")
def timm_style(*, depth: int = 1, **kwargs: Any) -> torch.nn.Module:
    return torch.nn.Linear(depth, kwargs["num_classes"])


@pytest.mark.parametrize(
    "target",
    [
        "torch.optim.AdamW", "torch.optim.adamw.AdamW", "torch.optim.lr_scheduler.OneCycleLR",
        "torch.nn.Linear", "torch.nn.modules.conv.Conv2d", "albumentations.HorizontalFlip",
        "albumentations.OneOf", "torch.utils.data.RandomSampler",
    ],
)  # fmt: skip
def test_classes_of_the_libraries_resolve(target: str):
    assert resolve_target(target).__name__ == target.rpartition(".")[2]


@pytest.mark.parametrize(
    "target",
    [
        "os.system", "builtins.eval", "subprocess.Popen", "torch.load", "torch.hub.load",
        "torch.nn.functional.importlib.import_module", "torch.nn.modules.module.functools.partial",
        "torch.optim.lr_scheduler.warnings.warn", "torch.optim.Optimizer", "torch.nn.Module",
        "torch.nn.Parameter", "torch.nn.utils.clip_grad_norm_", "torch.utils.data.DataLoader",
        "albumentations.from_dict", "albumentations.load", "albumentations.core.composition.random",
        "albumentations.BasicTransform", "hydra.utils.instantiate", "sampler/none_such", "random",
        "torch.optim.lr_scheduler.Optimizer", "torch.nn..Linear", "torch.nn.Linear.__init__",
        "torch.optim.adamw.Adam.__class__", "torch.nn.modules.module.Module.__subclasses__",
    ],
)  # fmt: skip
def test_nothing_else_resolves(target: str):
    register_components()
    with pytest.raises(ValueError):
        resolve_target(target)


def test_functions_and_classes_come_from_named_modules_alone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "user_set.py").write_text(
        "from os import system\nfrom shutil import rmtree\ndef collate(items):\n    return items\n"
    )
    (tmp_path / "needs_more.py").write_text("import a_module_that_is_not_there\n")
    assert resolve_function("user_set.collate", {"user_set"})([1]) == [1]
    for name in ("os.system", "user_set.system", "user_set.rmtree", "user_set.nothing"):
        with pytest.raises(ValueError):
            resolve_function(name, {"user_set"})
    with pytest.raises(ValueError):
        resolve_function("user_set.collate", set())
    bases = ("torch.utils.data.Dataset",)
    assert resolve_class("torch.utils.data.TensorDataset", bases).__name__ == "TensorDataset"
    for path in ("os.PathLike", "json.dumps", "no_such.Thing", "Thing"):
        with pytest.raises(ValueError):
            resolve_class(path, bases)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        resolve_class("needs_more.Set", bases)


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_nets.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(libraries, "_own_modules", set())
    return ["imports=[own_nets]", "model=module"]


@pytest.mark.parametrize(("name", "more"), [("Net", ["model.module.width=5"]), ("Wrapped", [])])
def test_a_model_of_ones_own_gets_the_classes_of_the_data(name, more, own, caplog):
    typed = [*own, f"model.module._target_=own_nets.{name}", *more]
    assert build_model(compose(typed), 3).module.head.out_features == 3
    config = compose([*typed, "model.module.num_classes=7"])
    assert build_model(config, 3).module.head.out_features == 7
    assert not caplog.messages


def test_other_classes_of_ones_own_are_taken_too(own, caplog):
    compose([own[0], "optimizer._target_=own_nets.Slow"])
    alone = [*own, "model.module._target_=own_nets.Alone"]
    assert build_model(compose(alone), 3).module.out_features == 5
    assert len(caplog.messages) == 1 and "num_classes" in caplog.text
    with pytest.raises(ValueError, match="hight"):
        build_model(compose([*alone, "+model.module.hight=7"]), 3)
    registered = compose(["model=test_timm_style", "model.depth=2"])
    assert build_model(registered, 3).module.out_features == 3


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
def test_accepted_arguments_are_no_mistake(node):
    assert found({"part": node}) == {}


def test_settings_may_stand_beside_the_arguments_of_an_optimizer():
    assert check_libraries(compose(["optimizer=sgd"])) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("lrr", 0.1), ("lr", "0.1"), ("weight_decay", True), ("amsgrad", 1)],
)
def test_the_remedy_builds(name, value):
    [text] = found({"optimizer": {**ADAM, name: value}}).values()
    [(typed, given)] = re.findall(r"type (?:for example )?optimizer\.(\w+)=(\S+)", text)
    node = compose([f"optimizer.{typed}={given}"])["optimizer"]
    taken = {**ADAM, typed: node[typed]}
    assert found({"optimizer": taken}) == {}
    assert build(taken, params=[torch.nn.Parameter(torch.zeros(1))]).defaults[typed] == node[typed]


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
