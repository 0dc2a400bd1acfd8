"""The registry of components, and the config options made from their signatures.

``@register("sampler", "identity")`` above a class or function adds a component. A config selects it
by ``_target_: sampler/identity``; its arguments are the keys of the option. The framework injects
run-time values (`n`, `seed`, `rng`, ...) by argument name; a config cannot set them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any, TypeVar

from penstock.core.contracts import ModelCapabilities
from penstock.core.user_errors import Problem

T = TypeVar("T", bound=Callable[..., Any])
Rule = Callable[[Mapping[str, Any]], Iterable[Problem]]


@dataclass(frozen=True, slots=True)
class Group:
    """A kind of component.

    Attributes:
        name: The name for `register`, and the part of a ``_target_`` before the slash.
        option_group: The Hydra group of the components' options; None for no options.
        injected: Arguments that the framework sets at run time and a config may not.
        partial: A registered *function* is the component, and later calls pass the injected
            arguments. In other groups a function is a factory and is called once.
        what: One line for ``--help``.
    """

    name: str
    option_group: str | None
    injected: frozenset[str]
    partial: bool
    what: str


def _group(
    name: str, what: str, injected: str = "", *, option: str | None = "", partial: bool = False
) -> Group:
    return Group(name, option if option != "" else name, frozenset(injected.split()), partial, what)


GROUPS: dict[str, Group] = {
    group.name: group
    for group in (
        _group("dataset", "how samples are read", "storage source transform seed split",
               option=None),
        _group("storage", "where records lie", option="dataset/storage"),
        _group("source", "where a stream comes from", "shard num_shards epoch",
               option="dataset/source", partial=True),
        _group("decode", "bytes to arrays", option="dataset/decode"),
        _group("cache", "keeps what was read", "storage decode keys",
               option="dataset/cache", partial=True),
        _group("annotations", "label files beside the data", option="dataset/annotations"),
        _group("writer", "the form that packing writes"),
        _group("task", "losses and metrics", "num_classes class_names table"),
        _group("sampler", "which record is at a position",
               "n index seed batch_size mixed column_of shards"),
        _group("collate", "samples to a batch", "samples", partial=True),
        _group("transform", "changes one sample", "sample rng partners box_limits", partial=True),
        _group("batch_transform", "changes a batch on the device",
               "batch seed split step", partial=True),
        _group("engine", "who computes batches", "compute settings", option="loader"),
        _group("model", "what is trained", "num_classes table task_fields"),
        _group("optimizer", "how weights are updated", "params"),
        _group("scheduler", "how the learning rate moves", "optimizer total_steps total_epochs"),
        _group("logger", "where figures go", "run_dir config"),
        _group("callback", "takes part in training", "model run_dir rank watched higher"),
        _group("settings", "typed settings", option=None),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Component:
    """A registered class or function."""

    group: str
    name: str
    target: Callable[..., Any]
    global_random: bool
    capabilities: Callable[..., Any] | None = None

    @property
    def origin(self) -> str:
        """Where the component is defined: file, line and qualified name."""
        try:
            file = inspect.getsourcefile(self.target) or "?"
            line = inspect.getsourcelines(self.target)[1]
        except (OSError, TypeError):  # defined interactively
            return f"{self.target.__module__}.{self.target.__qualname__}"
        return f"{file}:{line} ({self.target.__qualname__})"

    @property
    def target_name(self) -> str:
        """The name of the component in a config's ``_target_``."""
        return f"{self.group}/{self.name}"

    @property
    def summary(self) -> str:
        """The first line of the docstring, for ``--help``."""
        return (inspect.getdoc(self.target) or "").split("\n", 1)[0].strip()


_components: dict[str, Component] = {}
_modules: dict[str, str] = {}
_checks: dict[tuple[str, str], tuple[Rule, frozenset[str], tuple[str, ...]]] = {}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def register(
    group: str,
    name: str,
    *,
    global_random: bool = False,
    capabilities: Callable[..., Any] | None = None,
) -> Callable[[T], T]:
    """Make a class or function available to configs as option `name` of `group`.

    Args:
        group: One of `GROUPS`.
        name: The option's name, an identifier, unique in its group.
        global_random: The component draws from the global random state of Python, NumPy or
            torch. It runs only in worker processes, which seed these states for every position.
        capabilities: For a model: a function from its arguments to a
            `core.contracts.ModelCapabilities`.

    Raises:
        ValueError: The group is unknown, the name is taken or not an identifier, or a config
            cannot hold a default.
    """
    if group not in GROUPS:
        raise ValueError(f"register: no group named {group!r}; groups: {', '.join(sorted(GROUPS))}")
    if not _NAME.fullmatch(name):
        raise ValueError(f"register: {name!r} is not a name: letters, digits and _, no digit first")

    def add(target: T) -> T:
        component = Component(group, name, target, global_random, capabilities)
        if GROUPS[group].option_group is not None:
            option_node(component)  # fail here, with the component in the traceback
        known = _components.get(component.target_name)
        # A reloaded module or a repeated notebook cell replaces its own component.
        if known is not None and _identity(known.target) != _identity(target):
            raise ValueError(
                f"register: {component.target_name} is taken: {known.origin} and "
                f"{component.origin}; rename one of them"
            )
        _components[component.target_name] = component
        return target

    return add


def checks(*targets: str, needs: Iterable[str] = ()) -> Callable[[Rule], Rule]:
    """Register a function that validates each config with one of the targets.

    The function takes the whole config and yields a `Problem` for each mistake. It runs before
    the build, so it may not import libraries. For a source of a mix, the config has the
    ``dataset`` and ``sampler`` of the source.

    Args:
        targets: Each a ``group/name``, a group, or the dotted path of a library class.
        needs: Keys that the function relies on; it is skipped if one of them is invalid.
    """

    def add(rule: Rule) -> Rule:
        _checks[_identity(rule)] = rule, frozenset(targets), tuple(needs)
        return rule

    return add


def checks_of(named: Collection[str]) -> Iterator[tuple[Rule, tuple[str, ...]]]:
    """Yield the checks for any of the given targets, each with its needed keys."""
    names = {*named, *(target.partition("/")[0] for target in named)}
    for rule, targets, needs in _checks.values():
        if not targets.isdisjoint(names):
            yield rule, needs


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key, or None."""
    found: Any = config
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def model_capabilities(node: Mapping[str, Any]) -> ModelCapabilities:
    """Return the capabilities of a model from its config node.

    Raise ValueError if an argument is invalid or a library is missing.
    """
    component = find(str(node.get("_target_")))
    if component is None or component.capabilities is None:
        return ModelCapabilities()
    asked = inspect.signature(component.capabilities).parameters
    told: ModelCapabilities = component.capabilities(**{k: node[k] for k in asked if k in node})
    return told


def _identity(target: Callable[..., Any]) -> tuple[str, str]:
    return target.__module__.replace("__mp_main__", "__main__"), target.__qualname__


def find(target_name: str) -> Component | None:
    """Return the component for a ``_target_`` such as ``group/name``, or None."""
    if target_name not in _components and target_name in _modules:
        importlib.import_module(_modules[target_name])
    return _components.get(target_name)


def modules() -> dict[str, str]:
    """Return the module of each component, by ``group/name``."""
    return {name: component.target.__module__ for name, component in _components.items()}


def expect(modules: Mapping[str, str]) -> None:
    """Let `find` import a component on first use, from what `modules` returned elsewhere."""
    _modules.update(modules)


def components(group: str | None = None) -> Iterator[Component]:
    """Yield registered components, of one group or of all, by name."""
    for name in sorted(_components):
        if group is None or _components[name].group == group:
            yield _components[name]


def name_of(made: Any) -> str:
    """Return ``group/name (Class)`` for a component's result, or only its class or function."""
    target = made.func if isinstance(made, functools.partial) else made
    own = target if inspect.isroutine(target) else type(target)
    names = [c.target_name for c in components() if c.target is own]
    return f"{names[0]} ({own.__qualname__})" if names else own.__qualname__


def parameters(target: Callable[..., Any], injected: frozenset[str]) -> list[inspect.Parameter]:
    """Return the named parameters that are not injected, so that a config may set them."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    signature = inspect.signature(target)
    return [p for p in signature.parameters.values() if p.kind in named and p.name not in injected]


def option_node(component: Component) -> dict[str, Any]:
    """Return the config option for a component's signature; required arguments are ``???``.

    Raise ValueError for a default that a config cannot hold.
    """
    node: dict[str, Any] = {"_target_": component.target_name}
    for parameter in parameters(component.target, GROUPS[component.group].injected):
        if parameter.default is inspect.Parameter.empty:
            node[parameter.name] = "???"
        else:
            where = f"{component.target_name}: default of {parameter.name}"
            node[parameter.name] = _plain(parameter.default, where)
    return node


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value.name if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item, where) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item, where) for key, item in value.items()}
    raise ValueError(
        f"{where} is a {type(value).__name__}, which no config can hold; use None, a number, "
        f"a string, a list or a dict"
    )
