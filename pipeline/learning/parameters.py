"""Choose parameters by patterns of their names, and sort them into the groups of an optimizer."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from inspect import signature
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Gt, Le

from penstock.core import registry
from penstock.core.registry import register
from penstock.core.user_errors import Problem, listing
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.schema import check_libraries

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@register("settings", "parameters")
@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSettings:
    """What an optimizer does otherwise with some parameters; it stands among its arguments.

    Attributes:
        groups: Groups by name: `params`, patterns of names (``head``, ``*.bias``; the first group
            that one matches has the parameter), and arguments of the optimizer, such as `lr`.
        decay_norms: Whether weight decay is for norms and biases too, which have one dimension; a
            group that gives `weight_decay` means all of its own.
        layer_decay: What the rate is multiplied by from layer to layer, from the head down; a
            group that gives `lr` has that.
    """

    groups: Mapping[str, Mapping[str, Any]] | None = None
    decay_norms: bool = True
    layer_decay: Annotated[float, Gt(0), Le(1)] | None = None


def check_groups(target: str, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse arguments of groups that torch would ignore, and groups without patterns.

    Args:
        target: The ``_target_`` of the optimizer.
        groups: See `ParameterSettings`.

    Raises:
        ConfigError: With all mistakes.
    """
    component = registry.find(target)
    found: list[Problem] = []
    for name, group in groups.items():
        key, patterns = f"optimizer.groups.{name}", group.get("params")
        if not (isinstance(patterns, list) and patterns and {*map(type, patterns)} == {str}):
            example = patterns if isinstance(patterns, str) and patterns else "head"
            text = f"{patterns!r} given, expected patterns of the names of parameters"
            found.append(Problem(f"{key}.params", f"{text}; type {key}.params=[{example}]"))
        node = {argument: value for argument, value in group.items() if argument != "params"}
        if component is None:
            node = {"_target_": target, **node}
            found += check_libraries({"optimizer": {"groups": {name: node}}})
            continue
        for argument in node.keys() - signature(component.target).parameters.keys():
            text = f"unknown argument of {target}; type ~{key}.{argument}"
            found.append(Problem(f"{key}.{argument}", text))
    if found:
        raise ConfigError(found)


def matching(pattern: str, names: Collection[str], *, key: str) -> list[str]:
    """Choose the names that a pattern matches: all of it, or a module that they lie in.

    Args:
        pattern: Such as ``head.weight``, ``head``, ``blocks.1?.*``.
        names: Of parameters.
        key: Of the config, for the error.

    Raises:
        ValueError: There are none; close names are told.
    """
    found = [n for n in names if fnmatchcase(n, pattern) or fnmatchcase(n, f"{pattern}.*")]
    if found:
        return found
    known = list(dict.fromkeys(
        part for name in names for part in accumulate(name.split("."), lambda a, b: f"{a}.{b}")
    ))  # fmt: skip
    close = difflib.get_close_matches(pattern, known, n=3, cutoff=0.5)
    tops = list(dict.fromkeys(name.split(".")[0] for name in names))
    remedy = f"; type {key}=[{close[0]}]" if close else ""
    raise ValueError(
        f"{key}: {pattern!r} matches no parameter of the model, in which there is "
        f"{listing(close or tops)}{remedy}"
    )


def grouped_optimizer(
    make: Callable[[list[Any]], Optimizer], model: nn.Module, settings: ParameterSettings
) -> Optimizer:
    """Make an optimizer over the parameters of a model that are trained.

    Its first group is what has the rate that the optimizer is given, as far as there is one.

    Args:
        make: Takes parameters, or groups of them.
        model: The model.
        settings: What is done otherwise with some of them.

    Raises:
        ValueError: A pattern matches nothing, or a group is left without a parameter.
    """
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if settings == ParameterSettings():
        return make(list(trained.values()))
    groups = {"": {}, **(settings.groups or {})}
    owners = _owners(model, groups)
    depths = {} if settings.layer_decay is None else layer_depths(model)
    members: dict[tuple[int, int, bool], list[str]] = {}
    for name, parameter in trained.items():
        owner = owners.get(name, "")
        own = groups[owner]
        depth = 0 if "lr" in own else depths.get(name, 0)
        spared = not (settings.decay_norms or "weight_decay" in own or parameter.ndim > 1)
        members.setdefault(([*groups].index(owner), depth, spared), []).append(name)
    for number, group in enumerate(groups):
        if group and not any(key[0] == number for key in members):
            raise ValueError(
                f"optimizer.groups.{group}: all that it matches is frozen, or in a group before "
                f"it; take the group away"
            )
    order = sorted(members)
    values = [{k: v for k, v in each.items() if k != "params"} for each in groups.values()]
    optimizer = make([
        {
            "params": [trained[name] for name in members[key]],
            **values[key[0]],
            **({"weight_decay": 0.0} if key[2] else {}),
        }
        for key in order
    ])  # fmt: skip
    for (_, depth, _), made in zip(order, optimizer.param_groups, strict=True):
        made["lr"] *= (settings.layer_decay or 1.0) ** depth
    return optimizer


def _owners(model: nn.Module, groups: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Tell which group each parameter is in: the first that matches it."""
    names = [name for name, _ in model.named_parameters()]
    owners: dict[str, str] = {}
    for group, node in groups.items():
        for pattern in node.get("params", ()):
            for name in matching(pattern, names, key=f"optimizer.groups.{group}.params"):
                owners.setdefault(name, group)
    return owners


def freeze(model: nn.Module, patterns: Collection[str]) -> tuple[nn.Module, ...]:
    """Take parameters out of training.

    Args:
        model: Changed.
        patterns: Of parameters' names.

    Returns:
        Norms that belong to them and keep running figures: they are to stay in evaluation.

    Raises:
        ValueError: A pattern matches nothing, or nothing is left to train.
    """
    from torch.nn.modules.batchnorm import _NormBase

    key, parameters = "trainer.freeze", dict(model.named_parameters())
    chosen = [matching(pattern, [*parameters], key=key) for pattern in patterns]
    for name in (frozen := {name for names in chosen for name in names}):
        parameters[name].requires_grad_(False)
    if frozen and not any(each.requires_grad for each in parameters.values()):
        raise ValueError(
            f"{key}: all parameters are frozen, and nothing is left to train; leave out the "
            f"pattern of the head"
        )

    def is_still(name: str, norm: nn.Module) -> bool:
        own = [f"{name}.{each}".lstrip(".") for each, _ in norm.named_parameters()]
        if own:
            return frozen.issuperset(own)
        return any(fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*") for p in patterns)

    norms = ((n, each) for n, each in model.named_modules() if isinstance(each, _NormBase))
    return tuple(each for name, each in norms if is_still(name, each))


def layer_depths(model: nn.Module) -> dict[str, int]:
    """Count for each parameter the layers between it and the head, in the model's own order.

    Layers are the modules that the model holds; one with more than half of all its parameters is
    taken apart, until none has, so that the blocks of a transformer and the stages of a
    convolutional network are layers. What has no matrix, such as a norm, is of the layer before
    it, and parameters beside modules, such as an embedding of places, are of the layer behind.
    """
    parameters = dict(model.named_parameters())
    layers = [""]

    def parts_of(layer: str) -> list[str]:
        module = model.get_submodule(layer)
        held = [n for n, each in module.named_children() if any(True for _ in each.parameters())]
        return [f"{layer}.{name}".lstrip(".") for name in held]

    def is_big(layer: str) -> bool:
        inside = sum(name.startswith(f"{layer}.") for name in parameters)
        return (not layer or 2 * inside > len(parameters)) and bool(parts_of(layer))

    while (place := next((n for n, each in enumerate(layers) if is_big(each)), None)) is not None:
        layers[place : place + 1] = parts_of(layers[place])
    members: dict[str, list[str]] = {layer: [] for layer in layers}
    for name in parameters:
        module = name.rpartition(".")[0]
        above = (each for each in layers if f"{module}.".startswith(f"{each}.") or not each)
        behind = (each for each in layers if not module or each.startswith(f"{module}."))
        members[next(above, None) or next(behind)].append(name)
    number = -1
    numbers: dict[str, int] = {}
    for names in members.values():
        number += number < 0 or any(parameters[name].ndim > 1 for name in names)
        numbers |= dict.fromkeys(names, number)
    return {name: number - each for name, each in numbers.items()}


def describe_groups(optimizer: Optimizer) -> str:
    """Say what the groups of an optimizer are, where there are several."""
    texts = []
    for group in optimizer.param_groups:
        decay, lr = group.get("weight_decay"), group.get("initial_lr", group.get("lr"))
        values = {"lr": lr, "weight_decay": decay}
        said = ", ".join(f"{k} {v:.3g}" for k, v in values.items() if isinstance(v, float))
        texts.append(f"{len(group['params'])} ({said})")
    return f"{len(texts)} groups of parameters: {listing(texts, 6)}" if texts[1:] else ""
