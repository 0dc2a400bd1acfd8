"""Types of configured values, from the signatures of components, checked by pydantic."""

from __future__ import annotations

import enum
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from penstock.core import registry
from penstock.core.user_errors import nearest

REQUIRED = "???"
"""Stands for the default of an argument that a config must give."""
ABSENT = object()
"""Stands for the default of an argument that a config leaves out unless it is given."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument that a config may give.

    Attributes:
        annotation: Its type; Any if it has none.
        default: Its default as YAML writes it, or `REQUIRED`, or `ABSENT`.
    """

    annotation: Any
    default: Any


def arguments_of(target: str) -> dict[str, Argument]:
    """List the arguments of a registered component that a config may give, by name."""
    component = registry.find(target)
    assert component is not None, target
    return _arguments(component)


@cache
def _arguments(component: registry.Component) -> dict[str, Argument]:
    found = class_arguments(component.target, registry.GROUPS[component.group].injected)
    defaults = registry.option_node(component)
    return {name: Argument(each.annotation, defaults[name]) for name, each in found.items()}


def class_arguments(call: Callable[..., Any], injected: frozenset[str]) -> dict[str, Argument]:
    """List the arguments of a class or function that a config may give, by name."""
    found = {each.name: each for each in registry.parameters(call, injected)}
    defaults = {n: REQUIRED if p.default is p.empty else p.default for n, p in found.items()}
    return {n: Argument(_annotation_of(call, p), defaults[n]) for n, p in found.items()}


def _annotation_of(call: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Evaluate a parameter's type, or the type of its default; Any for an unknown name."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        kind = type(parameter.default)
        return kind if kind is bool else float if kind in (int, float) else Any
    if isinstance(annotation, str):
        home = inspect.unwrap(call)
        if inspect.isclass(home):
            home = next(cls for cls in home.__mro__ if "__init__" in vars(cls))
        try:
            annotation = eval(annotation, {**vars(typing), **vars(sys.modules[home.__module__])})
        except (NameError, AttributeError, TypeError):
            return Any
    return _as_written(annotation)


def _as_written(annotation: Any) -> Any:
    """Replace an enum by the names of its members, as YAML writes them."""
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        return Literal[tuple(member.name for member in annotation)]
    if get_origin(annotation) in (Union, types.UnionType):
        return Union[tuple(map(_as_written, get_args(annotation)))]  # noqa: UP007 - at run time
    return annotation


@cache
def _adapter(annotation: Any) -> Any:
    import pydantic

    try:
        return pydantic.TypeAdapter(annotation)
    except pydantic.errors.PydanticUserError:  # it brings its own config
        config = pydantic.ConfigDict(arbitrary_types_allowed=True)
        return pydantic.TypeAdapter(annotation, config=config)


def complaint(annotation: Any, value: Any) -> str | None:
    """Return what a type expects in place of a value, by pydantic; None if the value fits.

    The check is strict: ``'3'`` is not an integer, and ``1`` is not a string.
    """
    import pydantic

    if annotation is Any:
        return None
    try:
        _adapter(annotation).validate_json(json.dumps(value), strict=True)
    except pydantic.ValidationError as error:
        said = [each["msg"] for each in error.errors() if each["type"] != "is_instance_of"]
        text = " or ".join(text.removeprefix("Input should be ") for text in dict.fromkeys(said))
        return text.replace("Field required", "more values")
    return None


def mistake(argument: Argument, value: Any, key: str) -> str | None:
    """Return what is wrong with a value: what was given, what is expected, what to type.

    A value that is equal to the default is always right.
    """
    is_default = type(value) is type(argument.default) and value == argument.default
    if is_default or (expected := complaint(argument.annotation, value)) is None:
        return None
    text = f"{given(value)} given, expected {expected}"
    if type(value) is int and complaint(argument.annotation, str(value)) is None:
        return f"""{text}; type '{key}="{value}"'"""
    meant = (nearest(shown(value), _words(argument.annotation)), [value], [value, value])
    for each in (*meant, argument.default):
        if each not in (None, REQUIRED, ABSENT) and complaint(argument.annotation, each) is None:
            return f"{text}; type {key}={shown(each)}"
    return text


def _words(annotation: Any) -> list[str]:
    """List the words that a type accepts by name."""
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if isinstance(value, str)]
    if get_origin(annotation) in (Union, types.UnionType, Annotated):
        return [word for part in get_args(annotation) for word in _words(part)]
    return []


def shown(value: Any) -> str:
    """Write a value as it would be typed."""
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(shown, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{shown(item)}" for key, item in value.items()) + "}"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value) or "''"


def given(value: Any) -> str:
    """Write a value as an error quotes it: strings in quotes, to tell '3' from 3."""
    return repr(value) if isinstance(value, str) else shown(value)


def holds_component(value: Any) -> bool:
    """Return whether a value is a component, or holds one."""
    if isinstance(value, Mapping):
        return "_target_" in value or any(map(holds_component, value.values()))
    return isinstance(value, list) and any(map(holds_component, value))
