"""Models of one's own get the number of classes of the data."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from penstock import compose, register
from penstock.pipeline.config import libraries
from penstock.pipeline.learning.building import build_model

OWN = """
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
