"""Make the objects that config nodes describe.

Worker processes import this module; it imports the config's own modules only for library classes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from penstock.core import contracts, registry
from penstock.datasets.files.passwords import revealed

Config = Mapping[str, Any]

NO_ARGUMENTS = frozenset({"_target_", "_after_"})
"""Keys of a node that are no arguments of its target."""


def build(node: Config, **injected: Any) -> Any:
    """Build the object of a config node, with `injected` values for the parameters that it names.

    Nested nodes are built first. For a function that is itself the component, return the function
    with its arguments bound.
    """
    call = _target_of(node)
    arguments = {k: build_nested(v) for k, v in node.items() if k not in NO_ARGUMENTS}
    accepted = inspect.signature(call).parameters
    group = registry.GROUPS.get(node["_target_"].partition("/")[0])
    if group is not None and group.partial and not inspect.isclass(call):
        arguments |= {k: v for k, v in injected.items() if k in accepted}
        return functools.partial(call, **arguments) if arguments else call
    for name, value in arguments.items():
        default = accepted[name].default if name in accepted else None
        if isinstance(default, Enum) and isinstance(value, str):  # a config holds its name
            arguments[name] = type(default)[value]
    arguments |= {k: v for k, v in injected.items() if k in accepted}
    return _call(node, call, arguments.pop("_args_", ()), arguments)


def _target_of(node: Config) -> Callable[..., Any]:
    component = registry.find(node["_target_"])
    if component is not None:
        return component.target
    from penstock.pipeline.config.libraries import resolve_target

    return resolve_target(node["_target_"])


def _call(node: Config, call: Any, positional: Iterable[Any], arguments: dict[str, Any]) -> Any:
    """Call a target; a library's error about its arguments becomes one line."""
    name = node["_target_"]
    if "/" in name:  # a component's own traceback is of use, and ours have said it in a line
        made = call(*positional, **arguments)
        _check_contract(made, name)
        return made
    try:
        return call(*positional, **arguments)
    except (TypeError, ValueError, ArithmeticError) as error:
        text = ", ".join(f"{k}={v!r}" for k, v in node.items() if k not in NO_ARGUMENTS)
        raise ValueError(f"{_key_of(name)}{name}({text}) cannot be made: {_said(error)}") from error


def _key_of(target: str) -> str:
    """Return the first config key that takes a class of this library."""
    from penstock.pipeline.config.libraries import family_of
    from penstock.pipeline.config.places import PLACES

    family = family_of(target)
    keys = [key for key, place in PLACES.items() if family and family.name in place.kinds]
    return f"{keys[0]}: " if keys else ""


def _said(error: Exception) -> str:
    """Format a library's error in one line; for pydantic, the error of each argument."""
    from pydantic import ValidationError

    told = error.__cause__ or error  # albumentations raises its text anew
    if isinstance(told, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, each['loc']))} is {each['input']!r}: {each['msg']}"
            for each in told.errors()
        )
    return " ".join(str(error).split())


_CONTRACTS: dict[str, tuple[Any, Any]] = {
    "decode": (contracts.Decoder, None),
    "sampler": (contracts.Sampler, None),
    "collate": (contracts.Collate, None),
    "task": (contracts.Task, None),
    "logger": (contracts.Logger, contracts.LoggerCapabilities),
    "callback": (contracts.Callback, contracts.CallbackCapabilities),
}
_SPECIAL = ("__call__", "__len__")


def _check_contract(made: Any, target_name: str) -> None:
    """Raise ValueError if a component lacks a method, or has an undeclared capability."""
    group = target_name.partition("/")[0]
    if group not in _CONTRACTS:
        return
    contract, declared = _CONTRACTS[group]
    needed = [name for name in vars(contract) if name in _SPECIAL or not name.startswith("_")]
    if inspect.isabstract(contract):
        needed = sorted(contract.__abstractmethods__)
    lacking = [name for name in needed if not hasattr(made, name)]
    what = f"{target_name} ({type(made).__qualname__})"
    if lacking:
        raise ValueError(
            f"{what} has no {', '.join(lacking)}; give it what a {group} has, "
            f"{', '.join(needed)}: see {contract.__name__} in core/contracts.py"
        )
    if inspect.isabstract(contract) and not isinstance(made, contract):
        if not hasattr(contract, "of"):
            name = contract.__name__
            raise ValueError(
                f"{what} does not extend {name}; write class {type(made).__name__}({name}), "
                f"see core/contracts.py"
            )
        own = vars(contract).keys() - {*needed, "of"}
        if unread := sorted(name for name in own if name[0] != "_" and hasattr(made, name)):
            raise ValueError(
                f"{what} has {', '.join(unread)}, which the framework does not read there; extend "
                f"{contract.__name__} of core/contracts.py, or rename it"
            )
    if declared is None or hasattr(made, "capabilities"):
        return
    unread = [each.name for each in fields(declared) if hasattr(made, each.name)]
    if unread:
        raise ValueError(
            f"{what} has {', '.join(unread)}, which nobody reads there; declare it: "
            f"capabilities = {declared.__name__}({unread[0]}=...), see core/contracts.py; or "
            f"rename what means something else"
        )


def build_nested(value: Any) -> Any:
    """Build the nodes in a config value, at any depth, and reveal its passwords."""
    if isinstance(value, Mapping):
        if "_target_" in value:
            return build(value)
        return {key: build_nested(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(build_nested(item) for item in value)
    return revealed(value) if isinstance(value, str) else value
