"""Groups of an optimizer: patterns, weight decay, rates by layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from penstock.pipeline.learning.parameters import (
    ParameterSettings,
    grouped_optimizer,
    layer_depths,
    matching,
)


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(1, 4, 8))
        self.patches = nn.Linear(3, 8)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
                                      for _ in range(3)))  # fmt: skip
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 2)


def groups(model, **settings):
    """Of each group: its parameters' names and values that differ from the optimizer's own."""
    made = grouped_optimizer(
        lambda params: torch.optim.AdamW(params, lr=0.1, weight_decay=0.5),
        model, ParameterSettings(**settings),
    )  # fmt: skip
    names = {id(each): name for name, each in model.named_parameters()}
    return [
        ([names[id(each)] for each in group["params"]], group["lr"], group["weight_decay"])
        for group in made.param_groups
    ]


def test_layers_are_blocks_and_what_stands_before_and_behind_them():
    depths = layer_depths(Vit())
    assert depths["head.weight"] == 0 and depths["norm.bias"] == depths["blocks.2.1.weight"] == 1
    assert depths["blocks.0.0.bias"] == 3 and depths["blocks.1.1.bias"] == 2
    assert depths["patches.weight"] == depths["place"] == 4
    wrapped = layer_depths(nn.Sequential(nn.Sequential(Vit())))
    assert wrapped == {f"0.0.{name}": depth for name, depth in depths.items()}


def test_rates_fall_from_the_head_down_and_a_group_with_a_rate_keeps_it():
    model = Vit()
    found = groups(model, layer_decay=0.5, groups={"last": {"params": ["blocks.2"], "lr": 3.0}})
    rates = {name: lr for names, lr, _ in found for name in names}
    assert rates["head.bias"] == 0.1 and rates["place"] == pytest.approx(0.1 * 0.5**4)
    assert rates["blocks.2.0.weight"] == rates["blocks.2.1.weight"] == 3.0
    assert found[0][1] == 0.1, "the figure lr is the optimizer's own"
    assert len(rates) == len(list(model.parameters()))


def test_norms_and_biases_do_not_decay_but_in_a_group_that_says_so():
    found = groups(Vit(), decay_norms=False,
                   groups={"head": {"params": ["head.*"], "weight_decay": 0.1}})  # fmt: skip
    decay = {name: each for names, _, each in found for name in names}
    assert decay["head.bias"] == 0.1 and decay["norm.weight"] == decay["patches.bias"] == 0
    assert decay["patches.weight"] == decay["place"] == 0.5


def test_the_first_group_that_matches_has_the_parameter_and_frozen_ones_have_none():
    model = Vit()
    model.patches.requires_grad_(False)
    first, second = {"params": ["*.weight"], "lr": 1.0}, {"params": ["head"], "lr": 2.0}
    found = groups(model, groups={"first": first, "second": second})
    rates = {name: lr for names, lr, _ in found for name in names}
    assert rates["head.weight"] == 1.0 and rates["head.bias"] == 2.0 and rates["norm.bias"] == 0.1
    assert "patches.weight" not in rates
    with pytest.raises(ValueError, match=r"groups\.second: all that it matches is frozen, or in"):
        groups(model, groups={"first": {"params": ["head"]}, "second": second})


def test_a_pattern_that_matches_nothing_is_told_close_names():
    names = [name for name, _ in Vit().named_parameters()]
    with pytest.raises(ValueError) as told:
        matching("block.1", names, key="trainer.freeze")
    assert str(told.value).startswith("trainer.freeze: 'block.1' matches no parameter of the model")
    assert "type trainer.freeze=[blocks.1]" in str(told.value)
    with pytest.raises(ValueError, match=r"in which there is place, patches, blocks, norm, head$"):
        matching("xyz", names, key="trainer.freeze")
