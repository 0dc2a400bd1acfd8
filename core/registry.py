"""The registry of components, and the config options made from their signatures.

``@register("sampler", "identity")`` above a class or function adds a component. A config selects it
by ``_target_: sampler/identity``; its arguments are the keys of the option. The framework injects
run-time values (`n`, `seed`, `rng`, ...) by argument name.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.core.contracts import ModelCapabilities
from penstock.core.user_errors import Problem

T = TypeVar("T", bound=Callable[..., Any])
Rule = Callable[[Mapping[str, Any]], Iterable[Problem]]


@dataclass(frozen=True, slots=True)
class Group:
    """A kind of component.

    Attributes:
        option_group: The Hydra group of the components' options; None for no options.
        injected: Arguments that the framework sets at run time and a config may not.
        partial: A registered *function* is the component, not a factory of it.
    """

    option_group: str | None
    injected: frozenset[str]
    partial: bool = False


def _group(option_group: str | None, injected: str = "", *, partial: bool = False) -> Group:
    return Group(option_group, frozenset(injected.split()), partial)


GROUPS: dict[str, Group] = {
    "dataset": _group(None, "storage source transform seed split"),
    "storage": _group("dataset/storage"),
    "source": _group("dataset/source", "shard num_shards epoch", partial=True),
    "decode": _group("dataset/decode"),
    "cache": _group("dataset/cache", "storage decode keys", partial=True),
    "annotations": _group("dataset/annotations"),
    "writer": _group("writer"),
    "task": _group("task", "num_classes class_names table"),
    "sampler": _group("sampler", "n index seed batch_size mixed column_of shards"),
    "collate": _group("collate", "samples", partial=True),
    "transform": _group("transform", "sample rng partners box_limits", partial=True),
    "batch_transform": _group("batch_transform", "batch seed split step", partial=True),
    "engine": _group("loader", "compute settings"),
    "model": _group("model", "num_classes table task_fields"),
    "optimizer": _group("optimizer", "params"),
    "scheduler": _group("scheduler", "optimizer total_steps total_epochs"),
    "logger": _group("logger", "run_dir config"),
    "callback": _group("callback", "model run_dir rank watched higher"),
    "settings": _group(None),
}


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
        """The file and qualified name of the class or function."""
        try:
            file = inspect.getfile(self.target)
        except (OSError, TypeError):  # defined interactively
            file = self.target.__module__
        return f"{file} ({self.target.__qualname__})"

    @property
    def target_name(self) -> str:
        """The name of the component in a config's ``_target_``."""
        return f"{self.group}/{self.name}"


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
        capabilities: For a model: a function from its arguments to a `ModelCapabilities`.
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

    The function takes the whole config, or a mix's source, and yields a `Problem` for each mistake.

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
    """Return the capabilities of a model from its config node, or raise ValueError."""
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


def parameters(target: Callable[..., Any], injected: frozenset[str]) -> list[inspect.Parameter]:
    """Return the named parameters that are not injected, so that a config may set them."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    signature = inspect.signature(target)
    return [p for p in signature.parameters.values() if p.kind in named and p.name not in injected]


def option_node(component: Component) -> dict[str, Any]:
    """Return the config option for a component's signature; required arguments are ``???``."""
    node: dict[str, Any] = {"_target_": component.target_name}
    for parameter in parameters(component.target, GROUPS[component.group].injected):
        if parameter.default is inspect.Parameter.empty:
            node[parameter.name] = "???"
        else:
            try:
                node[parameter.name] = json.loads(json.dumps(parameter.default))
            except TypeError as error:
                raise ValueError(
                    f"{component.target_name}: no config can hold the default of "
                    f"{parameter.name}: {error}; use None, a number, a string, a list or a dict"
                ) from None
    return node
