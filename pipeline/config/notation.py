"""Annotations as JSON and as words, reduced to what a config can hold."""

from __future__ import annotations

import collections.abc
import enum
import types
import typing
from pathlib import PurePath
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types

NOTHING = type("NOTHING", (), {})
"""What no config can hold: a tensor, a function, an open file."""

_SCALARS: dict[Any, str] = {int: "int", float: "float", str: "str", bool: "bool"}
_WORDS = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
_LISTS = (
    list, set, frozenset, collections.abc.Sequence, collections.abc.MutableSequence,
    collections.abc.Iterable, collections.abc.Collection, collections.abc.Set,
)  # fmt: skip
_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def reduce(annotation: Any) -> Any:
    """An annotation made of what YAML can write; `NOTHING` where nothing is left.

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
    return annotation


def _reduce_class(annotation: type) -> Any:
    if annotation in _SCALARS:
        return annotation
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


def encode(annotation: Any) -> Any:
    """A reduced annotation as JSON; what has no notation becomes "any"."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is type(None):
        return "null"
    if annotation is NOTHING:
        return "nothing"
    if annotation in _SCALARS if isinstance(annotation, type) else False:
        return _SCALARS[annotation]
    if origin is Literal:
        return ["literal", *arguments]
    if origin in (Union, types.UnionType):
        return ["union", *map(encode, arguments)]
    if origin is tuple:
        return ["tuple", *("..." if part is Ellipsis else encode(part) for part in arguments)]
    if origin in (list, dict):
        return [origin.__name__, *map(encode, arguments)]
    if origin is Annotated:
        bounds = {
            name: getattr(mark, name)
            for mark in arguments[1:]
            for name in _BOUNDS
            if isinstance(mark, getattr(annotated_types, name.capitalize()))
        }
        return ["annotated", encode(arguments[0]), bounds]
    return "any"


def decode(notation: Any) -> Any:
    """The annotation of `encode`."""
    if isinstance(notation, str):
        scalars: dict[str, Any] = {name: scalar for scalar, name in _SCALARS.items()}
        return {**scalars, "null": None, "nothing": NOTHING, "any": Any, "...": ...}[notation]
    kind, *parts = notation
    if kind == "literal":
        return Literal[tuple(parts)]
    if kind == "annotated":
        marks = [getattr(annotated_types, k.capitalize())(v) for k, v in parts[1].items()]
        return Annotated[(decode(parts[0]), *marks)] if marks else decode(parts[0])
    decoded = tuple(map(decode, parts))
    if kind == "union":
        return Union[decoded]  # noqa: UP007 - built at run time
    return {"tuple": tuple, "list": list, "dict": dict}[kind][decoded]  # type: ignore[index]


def words(annotation: Any) -> str:
    """A reduced annotation for an error line: ``an integer >= 1 or null``."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is type(None):
        return "null"
    if isinstance(annotation, type) and annotation in _WORDS:
        return _WORDS[annotation]
    if origin is Literal:
        return " or ".join(_word(value) for value in arguments)
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
    """Marks of an Annotated, and those inside of a pydantic Field."""
    for mark in marks:
        yield mark
        yield from getattr(mark, "metadata", ())


def _word(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def literals(annotation: Any) -> list[str]:
    """The words that an annotation accepts by name."""
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if isinstance(value, str)]
    if get_origin(annotation) in (Union, types.UnionType):
        return [word for part in get_args(annotation) for word in literals(part)]
    return []
