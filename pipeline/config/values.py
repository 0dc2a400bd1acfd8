"""Checks of a value against the type that its argument has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

from penstock.core import registry
from penstock.pipeline.config.errors import Problem, nearest
from penstock.pipeline.config.interpolation import is_unresolved
from penstock.pipeline.config.notation import NOTHING, literals, words
from penstock.pipeline.config.signatures import Argument


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
    """Write a value as an error line names it: strings in quotes, to tell '3' from 3."""
    return repr(value) if isinstance(value, str) else shown(value)


def holds_component(value: Any) -> bool:
    """Tell whether a value is a component, or holds one."""
    if isinstance(value, dict):
        return "_target_" in value or any(map(holds_component, value.values()))
    return isinstance(value, list) and any(map(holds_component, value))


def mistake(argument: Argument, value: Any, key: str) -> str | None:
    """Find what is wrong with a value: what was given, what is accepted, what to type.

    Args:
        argument: What takes the value.
        value: The plain value.
        key: Its full key.

    Returns:
        One line, or None. A value that is equal to the default is always right.
    """
    default = argument.default
    if not argument.required and type(value) is type(default) and value == default:
        return None
    if argument.annotation is NOTHING:
        if value is None:
            return None
        return f"{given(value)} given, accepts a component: a mapping with _target_"
    complaint = _complaint(argument.annotation, value)
    if complaint is None:
        return None
    return f"{given(value)} given, accepts {complaint}{_remedy(argument, value, key)}"


def fits(annotation: Any, value: Any) -> bool:
    """Tell whether a value has a type, strictly."""
    return _complaint(annotation, value) is None


def _complaint(annotation: Any, value: Any) -> str | None:
    """Tell what would be accepted instead; None if the value is right."""
    import pydantic

    if annotation is Any:
        return None
    try:
        _adapter(annotation).validate_json(json.dumps(value), strict=True)
    except pydantic.ValidationError as error:
        # What a validator of the user's says is worth more than the name of the type.
        said = [e["msg"] for e in error.errors() if e["type"] in ("value_error", "assertion_error")]
        return words(annotation) + (f" ({said[0]})" if said else "")
    return None


@cache
def _adapter(annotation: Any) -> Any:
    import pydantic

    return pydantic.TypeAdapter(annotation)


def _remedy(argument: Argument, value: Any, key: str) -> str:
    if isinstance(value, str):
        near = nearest(value, literals(argument.annotation))
        if near is not None:
            return f"; type {key}={near}"
        if value in ("None", "none", "nil", "NULL") and fits(argument.annotation, None):
            return f"; type {key}=null"
    if value == {} and fits(argument.annotation, "{}"):
        return f"; for the text type \"{key}='{{}}'\""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # A single number where two are wanted, an integer where a whole float was given.
        if (
            isinstance(value, float)
            and value.is_integer()
            and fits(argument.annotation, int(value))
        ):
            return f"; type {key}={int(value)}"
        if fits(argument.annotation, [value, value]):
            return f"; type {key}=[{value},{value}]"
        if fits(argument.annotation, str(value)):
            return f"; type \"{key}='{value}'\""
    example = argument.default
    if argument.required or example is None:
        example = _example(argument.annotation)
    return "" if example is None else f"; type for example {key}={shown(example)}"


def _example(annotation: Any) -> Any:
    """Find some value of the type."""
    for value in (*literals(annotation), 1, 0.5, "text", True, [1], [1, 1], *get_args(annotation)):
        if isinstance(value, (int, float, str, bool, list)) and fits(annotation, value):
            return value
    return None


def wrong_settings(settings: Mapping[str, Any], key: str, target: str) -> Iterator[Problem]:
    """Find what settings say of themselves.

    Args:
        settings: Their values, each of which has the right type or could not be resolved.
        key: The key at which they stand.
        target: Their name in the registry.
    """
    values = {name: value for name, value in settings.items() if name != "_target_"}
    if any(map(is_unresolved, values.values())):
        return
    component = registry.find(target)
    assert component is not None
    try:
        component.target(**values)
    except ValueError as error:
        text = " ".join(str(error).split())
        yield Problem("" if text.startswith(key) else key, text)
