"""Types of configured values, from the signatures of components, checked by pydantic."""

from __future__ import annotations

import enum
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from penstock.core import registry
from penstock.core.user_errors import nearest

_WORDS = {
    "a valid boolean": "true or false", "a valid integer": "an integer",
    "a valid number": "a number", "a valid string": "a string", "a valid list": "a list",
    "a valid array": "a list", "a valid tuple": "a list", "a valid dictionary": "a mapping",
    "an object": "a mapping", "Field required": "more values",
}  # fmt: skip
REQUIRED = "???"
"""Stands for the default of an argument that a config must give."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument that a config may give.

    Attributes:
        name: Its name.
        annotation: Its type; Any if it has none.
        default: Its default as YAML writes it, or `REQUIRED`.
    """

    name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether a config must give it."""
        return isinstance(self.default, str) and self.default == REQUIRED


def arguments_of(target: str) -> dict[str, Argument]:
    """List the arguments of a registered component that a config may give, by name."""
    component = registry.find(target)
    assert component is not None, target
    return _arguments(component)


@cache
def _arguments(component: registry.Component) -> dict[str, Argument]:
    defaults = registry.option_node(component)
    injected = registry.GROUPS[component.group].injected
    return {
        parameter.name: Argument(
            parameter.name, annotation_of(component.target, parameter), defaults[parameter.name]
        )
        for parameter in registry.parameters(component.target, injected)
    }


def annotation_of(call: Callable[..., Any], parameter: inspect.Parameter) -> Any:
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
        return pydantic.TypeAdapter(
            annotation, config=pydantic.ConfigDict(arbitrary_types_allowed=True)
        )


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
        found = []
        for each in error.errors(include_url=False):
            said = str(each.get("ctx", {}).get("error", each["msg"]))
            place = "".join(f"{part}: " for part in each["loc"] if _holds(value, part))
            said = said.removeprefix("Input should be ").removeprefix("Value error, ")
            said = _WORDS.get(said, said)
            if not said.startswith("Cannot check"):  # a class, which no config holds
                found.append(place + said)
        return " or ".join(dict.fromkeys(found))
    return None


def _holds(value: Any, name: Any) -> bool:
    """Return whether a part of an error's place is a key of the value, not a name of a type."""
    return (isinstance(value, dict) and name in value) or isinstance(name, int)


def fits(annotation: Any, value: Any) -> bool:
    """Return whether a value has a type, strictly."""
    return complaint(annotation, value) is None


def mistake(argument: Argument, value: Any, key: str) -> str | None:
    """Return what is wrong with a value: what was given, what is expected, what to type.

    A value that is equal to the default is always right.
    """
    default = argument.default
    if not argument.required and type(value) is type(default) and value == default:
        return None
    expected = complaint(argument.annotation, value)
    if expected is None:
        return None
    remedy = next(
        (typed for typed in _candidates(argument, value, key)), ""
    )  # fmt: skip
    return f"{given(value)} given, expected {expected}{remedy and f'; type {remedy}'}"


def _candidates(argument: Argument, value: Any, key: str) -> Iterator[str]:
    """Yield overrides with a similar value that fits."""
    tries: list[Any] = []
    if isinstance(value, str):
        near = nearest(value, literals(argument.annotation))
        tries += [near] if near else []
        tries += [None] if value.lower() in ("none", "nil", "null") else []
        tries += [[value]]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        tries += [int(value)] if value == value // 1 else []
        tries += [[value, value], [value]]
    for each in tries:
        if fits(argument.annotation, each):
            yield f"{key}={shown(each)}"
    if isinstance(value, (bool, int, float, dict)) and fits(argument.annotation, shown(value)):
        yield f"\"{key}='{shown(value)}'\""


def literals(annotation: Any) -> list[str]:
    """List the words that a type accepts by name."""
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if isinstance(value, str)]
    if get_origin(annotation) in (Union, types.UnionType, Annotated):
        return [word for part in get_args(annotation) for word in literals(part)]
    return []


def shown(value: Any) -> str:
    """Write a value as it would be typed."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return value if value else "''"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(shown, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{shown(item)}" for key, item in value.items()) + "}"
    return str(value)


def given(value: Any) -> str:
    """Write a value as an error quotes it: strings in quotes, to tell '3' from 3."""
    return repr(value) if isinstance(value, str) else shown(value)


def holds_component(value: Any) -> bool:
    """Return whether a value is a component, or holds one."""
    if isinstance(value, Mapping):
        return "_target_" in value or any(map(holds_component, value.values()))
    return isinstance(value, list) and any(map(holds_component, value))
