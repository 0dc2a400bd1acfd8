"""What a target takes: the arguments that a config may give it, and their types."""

from __future__ import annotations

import inspect
import json
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from pipeline import registry
from pipeline.config.allowed import family_of
from pipeline.config.notation import decode, reduce

NO_DEFAULT = "???"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument.

    Attributes:
        name: Its name.
        annotation: Its type, reduced to what a config can hold.
        default: Its default as YAML would have it; `NO_DEFAULT` if it is required.
    """

    name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether a config must give it."""
        return isinstance(self.default, str) and self.default == NO_DEFAULT


@dataclass(frozen=True, slots=True)
class Signature:
    """What a target takes.

    Attributes:
        target: As a config names it.
        kind: The registry's group, or the family of the allow-list.
        arguments: By name; the injected ones are not among them.
        injected: Arguments that are given at run time.
        takes_any: It takes any keyword.
        takes_positional: It takes any number of positional arguments (``_args_``).
    """

    target: str
    kind: str
    arguments: dict[str, Argument]
    injected: frozenset[str]
    takes_any: bool
    takes_positional: bool


def signature_of(target: str) -> Signature | str:
    """The signature of a registered component or of a class on the allow-list.

    Returns:
        The signature, or one line that says why a config may not name this target. A class of
        a library is looked up in a cache on disk, so that the library need not be imported.
    """
    component = registry.find(target)
    if component is not None:
        return _registered(target, component.target)
    from pipeline.config.library import describe

    family = family_of(target)
    assert family is not None, target
    described = describe(target, family)
    if isinstance(described, str):
        return described
    arguments = {
        name: Argument(name, decode(notation), default)
        for name, (notation, default) in described["arguments"].items()
        if name not in family.injected
    }
    return Signature(
        target, family.name, arguments, family.injected,
        described["takes_any"], described["takes_positional"],
    )  # fmt: skip


@cache
def _registered(target: str, call: Callable[..., Any]) -> Signature:
    component = registry.find(target)
    assert component is not None and component.target is call
    group = registry.GROUPS[component.group]
    defaults = registry.option_node(component)
    arguments = {
        parameter.name: Argument(
            parameter.name, reduce(annotation_of(call, parameter)), defaults[parameter.name]
        )
        for parameter in registry.parameters(call, group.injected)
    }
    # `*args` and `**kwargs` of our own components stay closed: a typo must not vanish there.
    kinds = {p.kind for p in inspect.signature(call).parameters.values()}
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds
    return Signature(target, component.group, arguments, group.injected, takes_any, False)


def asks_for(signature: Signature, name: str) -> bool | None:
    """Whether a data set has an argument of this name, also one that a config does not show.

    None of what is no data set.
    """
    component = registry.find(signature.target) if signature.kind == "dataset" else None
    return None if component is None else name in inspect.signature(component.target).parameters


def annotation_of(call: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """A parameter's type; Any where there is none, or it cannot be had at run time."""
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
    """What defines the parameters: of a class, the one in its ancestry that has `__init__`."""
    if not inspect.isclass(call):
        return inspect.unwrap(call)
    return next(cls for cls in call.__mro__ if "__init__" in vars(cls))


def _without_unknown_names(annotation: str, names: dict[str, Any]) -> Any:
    """Of ``X | None`` with an unknown X: what no config can hold, or null."""
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


def plain_default(value: Any) -> Any:
    """A library's default as YAML would have it; its repr where YAML has nothing like it."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return repr(value)
