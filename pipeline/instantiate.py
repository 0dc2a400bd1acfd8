"""Make the objects that config nodes describe.

Worker processes import this module; it imports the config's own modules only for library classes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from penstock.core import contracts, registry
from penstock.datasets.files.passwords import revealed

Config = Mapping[str, Any]

NO_ARGUMENTS = frozenset({"_target_", "_after_"})
"""Keys of a node beside the arguments of its target."""


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
    if "/" in name:  # the traceback of a component is of use
        made = call(*positional, **arguments)
        _check_contract(made, name)
        return made
    try:
        return call(*positional, **arguments)
    except (TypeError, ValueError, ArithmeticError) as error:
        text = ", ".join(f"{k}={v!r}" for k, v in node.items() if k not in NO_ARGUMENTS)
        said = " ".join(str(error).split())
        raise ValueError(f"{name}({text}) cannot be made: {said}") from error


_CONTRACTS: dict[str, Any] = {
    "decode": contracts.Decoder,
    "sampler": contracts.Sampler,
    "collate": contracts.Collate,
    "task": contracts.Task,
    "logger": contracts.Logger,
    "callback": contracts.Callback,
}


def _check_contract(made: Any, target_name: str) -> None:
    """Raise ValueError if a component lacks a method or the base class of its group."""
    group = target_name.partition("/")[0]
    contract = _CONTRACTS.get(group)
    abstract = inspect.isabstract(contract)
    if contract is None or (abstract and isinstance(made, contract)):
        return
    name, what = contract.__name__, f"{target_name} ({type(made).__qualname__})"
    public = [method for method in vars(contract) if not method.startswith("_")]
    needed = sorted(contract.__abstractmethods__) if abstract else public
    if lacking := [method for method in needed if not hasattr(made, method)]:
        raise ValueError(
            f"{what} has no {', '.join(lacking)}; give it what a {group} has, "
            f"{', '.join(needed)}: see {name} in core/contracts.py"
        )
    if abstract and contract not in (contracts.Decoder, contracts.Collate):
        text = f"{what} does not extend {name}; write class {type(made).__name__}({name})"
        raise ValueError(f"{text}, see core/contracts.py")


def build_nested(value: Any) -> Any:
    """Build the nodes in a config value, at any depth, and reveal its passwords."""
    if isinstance(value, Mapping):
        if "_target_" in value:
            return build(value)
        return {key: build_nested(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(build_nested(item) for item in value)
    return revealed(value) if isinstance(value, str) else value
