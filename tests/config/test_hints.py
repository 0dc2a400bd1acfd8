"""The remedy of a mistake composes when it is typed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from penstock.core.registry import register
from penstock.pipeline.commands import pack  # noqa: F401 - registers its settings
from penstock.pipeline.config import libraries
from penstock.pipeline.config.composition import compose
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.learning.building import build_model


@register("model", "test_timm_style")
def timm_style(*, depth: int = 1, **kwargs: Any) -> torch.nn.Module:
    return torch.nn.Linear(depth, kwargs["num_classes"])


@pytest.mark.parametrize("given", ["optimizer.llrd=0.3", "lrf=0.01", "min_lr=0.1", "hflip=0.5"])
def test_no_remedy_gives_a_value_to_a_key_of_another_meaning(given):
    with pytest.raises(ConfigError) as error:
        compose([given])
    [problem] = error.value.problems
    assert problem.key == given.partition("=")[0] and "type " not in problem.message


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

class Plain: ...

class Slow(torch.optim.SGD): ...

def net(): ...
"""


def test_classes_of_a_module_that_imports_names_are_taken(tmp_path, monkeypatch):
    (tmp_path / "own_nets.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(libraries, "_own_modules", set())
    typed = ["model=module", "model.module._target_=own_nets.Net", "model.module.width=5"]
    with pytest.raises(ConfigError, match=r"type imports=\[own_nets\] too; a component of your"):
        compose(typed)
    imports = "imports=[own_nets]"
    config = compose([imports, *typed])
    assert build_model(config, 3).module.head.out_features == 3, "the data's classes"
    config = compose([imports, *typed, "model.module.num_classes=7"])
    assert build_model(config, 3).module.head.out_features == 7
    compose([imports, "optimizer._target_=own_nets.Slow"])
    for name in ("Plain", "net", "os.system", "torch.load", "nothing"):
        with pytest.raises(ConfigError, match=rf"own_nets.{name}' is none of the classes"):
            compose([imports, "model=module", f"model.module._target_=own_nets.{name}"])
    with pytest.raises(ConfigError, match=r"type model=module model.module._target_=own_nets.Net"):
        compose([imports, "model._target_=own_nets.Net"])
    with pytest.raises(ConfigError, match="unknown key"):
        compose([imports, *typed, "model.module.widht=5"])


def test_a_model_that_takes_any_argument_is_told_the_classes_if_it_hands_them_on(
    tmp_path, monkeypatch, caplog
):
    (tmp_path / "own_nets.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(libraries, "_own_modules", set())
    typed = ["imports=[own_nets]", "model=module", "model.module._target_=own_nets.Wrapped"]
    assert build_model(compose(typed), 3).module.head.out_features == 3
    config = compose([*typed, "model.module.num_classes=7"])
    assert build_model(config, 3).module.head.out_features == 7
    assert not caplog.messages
    config = compose([*typed[:2], "model.module._target_=own_nets.Alone"])
    assert build_model(config, 3).module.out_features == 5
    assert caplog.messages == ["own_nets.Alone takes no num_classes, and the data has 3"]
    with pytest.raises(ValueError, match=r"cannot be made: .*unexpected keyword argument 'hight'"):
        build_model(compose([*typed, "+model.module.hight=7"]), 3)


def test_a_registered_model_that_takes_any_argument_is_told_the_classes():
    assert (
        build_model(compose(["model=test_timm_style", "model.depth=2"]), 3).module.out_features == 3
    )


def test_a_variable_at_the_top_is_one_that_something_refers_to(tmp_path):
    folder = tmp_path / "experiment"
    folder.mkdir()
    text = "# @package _global_\nside: 48\naugment: {image_size: '${side}'}\n"
    (folder / "mine.yaml").write_text(text)
    config = compose(["experiment=mine", "side=32"], config_dir=tmp_path)
    assert config["augment"]["image_size"] == 32
