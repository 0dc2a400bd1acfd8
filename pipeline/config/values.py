"""Arguments: their types, reduced to what a config can hold and put in words, and their values."""

from __future__ import annotations

import collections.abc
import enum
import inspect
import json
import numbers
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from penstock.core import registry
from penstock.pipeline.config.errors import Problem, nearest
from penstock.pipeline.config.interpolation import is_unresolved

NO_DEFAULT = "???"
"""Stands for the default of an argument that is required."""
NOTHING = type("NOTHING", (), {})
"""Stands for what no config can hold: a tensor, a function, an open file."""

_WORDS = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
_LISTS = (
    list, set, frozenset, collections.abc.Sequence, collections.abc.MutableSequence,
    collections.abc.Iterable, collections.abc.Collection, collections.abc.Set,
)  # fmt: skip
_NUMBERS = (numbers.Number, numbers.Real)
_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "multiple_of": "a multiple of"}


def reduce(annotation: Any) -> Any:
    """Reduce an annotation to what YAML can write; `NOTHING` where nothing is left.

    Classes that no config can hold are dropped from unions: of ``float | Tensor`` stays
    ``float``. What pydantic knows and we do not (its own constrained types, say) is kept.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any or annotation is None or annotation is type(None):
        return annotation
    if isinstance(annotation, type) and origin is None:
        return _reduce_class(annotation)
    if origin is Annotated:
        inner = reduce(arguments[0])
        return inner if inner is NOTHING else Annotated[(inner, *arguments[1:])]
    if origin in (Union, types.UnionType):
        kept = [part for part in map(reduce, arguments) if part is not NOTHING]
        return Union[tuple(kept)] if kept else NOTHING  # noqa: UP007 - built at run time
    if origin in (tuple, *_LISTS, *_DICTS):
        return _reduce_container(origin, arguments)
    if isinstance(annotation, typing.TypeVar) or origin is collections.abc.Callable:
        return NOTHING
    if isinstance(annotation, (str, typing.ForwardRef)):  # a name that stands for a type
        return Any
    if isinstance(origin, type) and not _known_to_pydantic(origin):
        return NOTHING
    return annotation


def _reduce_class(annotation: type) -> Any:
    if annotation in _WORDS:
        return annotation
    if annotation in _NUMBERS:
        return float
    if issubclass(annotation, enum.Enum):
        return Literal[tuple(member.name for member in annotation)]
    if issubclass(annotation, PurePath):
        return str
    if annotation is tuple or annotation in _LISTS:
        return list[Any]
    if annotation in _DICTS:
        return dict[str, Any]
    return annotation if _known_to_pydantic(annotation) else NOTHING


def _known_to_pydantic(annotation: type) -> bool:
    import pydantic

    if annotation is object or annotation is type:
        return False
    try:
        pydantic.TypeAdapter(annotation)
    except pydantic.errors.PydanticUserError:
        return False
    return True


def _reduce_container(origin: Any, arguments: tuple[Any, ...]) -> Any:
    parts = [part if part is Ellipsis else reduce(part) for part in arguments]
    if NOTHING in parts:
        return NOTHING
    if origin is tuple:
        return tuple.__class_getitem__(tuple(parts))
    if origin in _DICTS:
        return dict.__class_getitem__(tuple(parts))
    return list[parts[0]]  # type: ignore[valid-type]


def words(annotation: Any) -> str:
    """Put a reduced annotation in words: ``an integer >= 1 or null``."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is type(None):
        return "null"
    if isinstance(annotation, type) and annotation in _WORDS:
        return _WORDS[annotation]
    if origin is Literal:
        return " or ".join(word(value) for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(words, arguments)))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return f"a list of {_plural(arguments[0])}"
    if origin is tuple:
        return "[" + ", ".join(map(words, arguments)) + "]"
    if origin is list:
        return "a list" if arguments[0] is Any else f"a list of {_plural(arguments[0])}"
    if origin is dict:
        return "a mapping" if arguments[1] is Any else f"a mapping to {words(arguments[1])}"
    if origin is Annotated:
        bounds = [
            f" {sign} {getattr(mark, name)}"
            for mark in _marks(arguments[1:])
            for name, sign in _BOUNDS.items()
            if getattr(mark, name, None) is not None
        ]
        return words(arguments[0]) + " and".join(bounds)
    return getattr(annotation, "__name__", str(annotation))


def _plural(annotation: Any) -> str:
    singular = words(annotation)
    for scalar in (int, float, str):
        singular = singular.replace(_WORDS[scalar], _WORDS[scalar].split()[1] + "s")
    return singular


def _marks(marks: typing.Iterable[Any]) -> typing.Iterator[Any]:
    """Yield the marks of an Annotated, and those inside of a pydantic Field."""
    for mark in marks:
        yield mark
        yield from getattr(mark, "metadata", ())


def word(value: Any) -> str:
    """Write a plain value as YAML does, without quotes."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def literals(annotation: Any) -> list[str]:
    """List the words that an annotation accepts by name."""
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if isinstance(value, str)]
    if get_origin(annotation) in (Union, types.UnionType):
        return [word for part in get_args(annotation) for word in literals(part)]
    return []


def annotation_of(call: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Evaluate a parameter's type; Any where there is none, or it cannot be had at run time."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    names = vars(sys.modules[_home(call).__module__])
    try:
        return eval(annotation, {**vars(typing), **names})  # what typing.get_type_hints does
    except (NameError, AttributeError, TypeError):  # a name imported for type checkers alone
        return _without_unknown_names(annotation, names)


def _home(call: Callable[..., Any]) -> Any:
    """Find what defines the parameters: of a class, the one in its ancestry that has `__init__`."""
    if not inspect.isclass(call):
        return inspect.unwrap(call)
    return next(cls for cls in call.__mro__ if "__init__" in vars(cls))


def _without_unknown_names(annotation: str, names: dict[str, Any]) -> Any:
    """Replace the unknown X of ``X | None``: what no config can hold, or null."""
    parts = [part.strip() for part in annotation.split("|")]
    if len(parts) < 2 or "[" in annotation:
        return Any
    known: list[Any] = []
    for part in parts:
        try:
            known.append(eval(part, {**vars(typing), **names}))
        except (NameError, AttributeError, TypeError):
            known.append(registry.Component)  # stands for a class that no config can hold
    return typing.Union[tuple(known)]  # noqa: UP007 - built at run time


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument.

    Attributes:
        name: Its name.
        annotation: Its type, reduced to what a config can hold.
        default: Its default as YAML would have it; `NO_DEFAULT` if it is required.
        what: What the docstring says of it.
    """

    name: str
    annotation: Any
    default: Any
    what: str = ""

    @property
    def required(self) -> bool:
        """Tell whether a config must give it."""
        return isinstance(self.default, str) and self.default == NO_DEFAULT


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
