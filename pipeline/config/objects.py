"""A config node to the object that it describes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from pipeline.completeness import check_complete
from pipeline.config.allowed import family_of, resolve_target
from pipeline.config.places import PLACES

if TYPE_CHECKING:
    from collections.abc import Iterable

Config = Mapping[str, Any]

NO_ARGUMENTS = frozenset({"_target_", "_after_"})
"""Keys of a node that are no arguments of its target."""


def build(node: Config, **injected: Any) -> Any:
    """Make the object that a config node describes.

    Args:
        node: A mapping with a ``_target_``; nested mappings with one are built first.
        injected: What is known at run time; passed on by name where the target asks for it.

    Returns:
        The object; for a function that is the component itself, the function with the node's
        and the injected arguments bound.
    """
    target = resolve_target(node["_target_"])
    arguments = {k: build_nested(v) for k, v in node.items() if k not in NO_ARGUMENTS}
    accepted = inspect.signature(target.call).parameters
    if target.partial and not inspect.isclass(target.call):
        arguments |= {k: v for k, v in injected.items() if k in accepted}
        return functools.partial(target.call, **arguments) if arguments else target.call
    for name, value in arguments.items():
        default = accepted[name].default if name in accepted else None
        if isinstance(default, Enum) and isinstance(value, str):  # a config holds its name
            arguments[name] = type(default)[value]
    arguments |= {k: v for k, v in injected.items() if k in accepted}
    return _call(node, target.call, arguments.pop("_args_", ()), arguments)


def _call(node: Config, call: Any, positional: Iterable[Any], arguments: dict[str, Any]) -> Any:
    """Call a target; what a library says against its arguments becomes one line."""
    name = node["_target_"]
    if "/" in name:  # a component's own traceback is of use, and ours have said it in a line
        made = call(*positional, **arguments)
        check_complete(made, name)
        return made
    try:
        return call(*positional, **arguments)
    except (TypeError, ValueError) as error:
        text = ", ".join(f"{k}={v!r}" for k, v in node.items() if k not in NO_ARGUMENTS)
        raise ValueError(f"{_key_of(name)}{name}({text}) cannot be made: {_said(error)}") from error


def _key_of(target: str) -> str:
    """Where a class of a library stands in a config, where it can only stand there."""
    family = family_of(target)
    keys = [key for key, place in PLACES.items() if family and family.name in place.kinds]
    return f"{keys[0]}: " if keys else ""


def _said(error: Exception) -> str:
    """What a library says, in one line; of pydantic, the arguments and what is wrong with each."""
    from pydantic import ValidationError

    told = error.__cause__ or error  # albumentations raises its text anew
    if isinstance(told, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, each['loc']))} is {each['input']!r}: {each['msg']}"
            for each in told.errors()
        )
    return " ".join(str(error).split())


def build_nested(value: Any) -> Any:
    """A value of a config with every node in it, at any depth, made the object it describes."""
    if isinstance(value, Mapping):
        if "_target_" in value:
            return build(value)
        return {key: build_nested(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(build_nested(item) for item in value)
    return value
