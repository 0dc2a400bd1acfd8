"""Classes of libraries that a config may name, and the arguments that a config gives them.

The allow-list looks at the resolved object, because a path proves nothing:
``torch.nn.functional.importlib.import_module`` resolves to a function outside torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.core import registry
from penstock.pipeline.config.errors import ConfigError, Problem, listing, nearest
from penstock.pipeline.config.places import PARTS_OF, PLACES


@dataclass(frozen=True, slots=True)
class Family:
    """Classes of a library that a config may name.

    Attributes:
        name: Prefix of their paths and of their ``__module__``.
        bases: Dotted paths of accepted base classes.
        injected: Arguments that the run gives; a config may not.
        distribution: The package to install.
        what: The kind of class, for error lines.
    """

    name: str
    bases: tuple[str, ...]
    injected: frozenset[str]
    distribution: str
    what: str


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "torch.optim.lr_scheduler",
            ("torch.optim.lr_scheduler.LRScheduler",),
            frozenset({"optimizer", "total_steps", "total_epochs"}), "torch",
            "learning-rate scheduler",
        ),
        Family("torch.optim", ("torch.optim.Optimizer",), frozenset({"params"}), "torch",
               "optimizer"),
        Family("torch.nn", ("torch.nn.Module",), frozenset(), "torch", "module"),
        Family("torch.utils.data", ("torch.utils.data.Sampler",), frozenset({"data_source"}),
               "torch", "torch sampler"),
        Family(
            "albumentations",
            ("albumentations.BasicTransform", "albumentations.BaseCompose"),
            frozenset(), "albumentations", "transform of albumentations",
        ),
        Family(
            "torchvision.transforms.v2", ("torchvision.transforms.v2.Transform",), frozenset(),
            "torchvision", "transform of torchvision",
        ),
        Family(
            "kornia.augmentation",
            ("kornia.augmentation.AugmentationBase2D",
             "kornia.augmentation.AugmentationBase3D",
             "kornia.augmentation.MixAugmentationBaseV2",
             "kornia.augmentation.container.base.BasicSequentialBase"),
            frozenset(), "kornia", "augmentation of kornia",
        ),
    )
}  # fmt: skip


_own_modules: set[str] = set()


def take_classes_of(module: str) -> None:
    """Let configs name classes of a module, or package, that the user's `imports` name."""
    _own_modules.add(module)


def is_own(path: str) -> bool:
    """Tell whether a dotted path leads into a module that the user's `imports` name."""
    return any(path.startswith(f"{module}.") for module in _own_modules)


def family_of(path: str) -> Family | None:
    """Return the family of a dotted path by its prefix, or of a user's class by its bases."""
    for family in FAMILIES.values():  # torch.optim.lr_scheduler stands before torch.optim
        if path.startswith(f"{family.name}."):
            return family
    if not is_own(path):
        return None
    with suppress(ValueError):
        found = _locate(path)
        for family in FAMILIES.values():
            # A subclass of a library's class has imported the library.
            if inspect.isclass(found) and family.distribution in sys.modules:
                if issubclass(found, tuple(map(_locate, family.bases))):
                    return family
    return None


def resolve_target(target: str) -> Callable[..., Any]:
    """Find the registered component, or the class on the allow-list, that a ``_target_`` names.

    Raises:
        ValueError: There is no such component or class.
    """
    component = registry.find(target)
    if component is not None:
        return component.target
    if "/" in target:
        raise ValueError(f"_target_ {target!r}: no such component is registered; check `imports`")
    family = family_of(target)
    if family is None:
        raise ValueError(
            f"_target_ {target!r} is not on the allow-list: a config may name registered "
            f"components (group/name) and classes of {', '.join(FAMILIES)}; to use something "
            f"else, register it in a module of yours and name that in `imports`"
        )
    found = resolve_class(target, bases=family.bases)
    if not is_own(target) and not f"{found.__module__}.".startswith(f"{family.name}."):
        raise ValueError(
            f"_target_ {target!r} is a class of {found.__module__}, which is not on the "
            f"allow-list; only classes of {family.name} itself can be named there"
        )
    if inspect.isabstract(found) or found in map(_locate, family.bases):
        raise ValueError(f"_target_ {target!r} is only a base class; name one of its subclasses")
    return found


def resolve_class(path: str, bases: Collection[str]) -> type:
    """Import the class at a dotted path, a subclass of one of `bases`, which are paths too.

    Raises:
        ValueError: There is no such class.
    """
    found = _locate(path)
    if not inspect.isclass(found):
        raise ValueError(f"{path!r} is a {type(found).__name__}, expected a class")
    accepted = tuple(_locate(base) for base in bases)
    if not issubclass(found, accepted):
        raise ValueError(f"{path!r} is not a subclass of {' or '.join(bases)}")
    return found


def resolve_function(path: str, modules: Collection[str]) -> Callable[..., Any]:
    """Import the function at a dotted path, which must be defined in one of `modules`.

    Raises:
        ValueError: There is no such function.
    """
    module_name, _, name = path.rpartition(".")
    if module_name not in modules:
        raise ValueError(
            f"{path!r}: functions are taken from the data set's module and those named in "
            f"`imports` alone ({', '.join(sorted(modules)) or 'none'}); add "
            f"imports=[{module_name or '<module>'}]"
        )
    found = getattr(importlib.import_module(module_name), name, None)
    if not isinstance(found, types.FunctionType):
        raise ValueError(f"{path!r}: no function {name!r} in {module_name}")
    if found.__module__ not in modules:
        raise ValueError(f"{path!r} is defined in {found.__module__}; name that in `imports`")
    return found


def _locate(path: str) -> Any:
    """Find the object at a dotted path: the longest importable module, then attributes of it."""
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{path!r} is not a dotted path such as package.module.Name")
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            # Only a missing module of this name is fine; a missing import inside it is an error.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            continue
        return _descend(found, parts[length:], path)
    raise ValueError(f"{path!r}: no module named {parts[0]!r}")


def _descend(found: Any, names: list[str], path: str) -> Any:
    for name in names:
        if not hasattr(found, name):
            raise ValueError(f"{path!r}: {getattr(found, '__name__', found)!r} has no {name!r}")
        found = getattr(found, name)
    return found


def refuse_library_mistakes(config: Mapping[str, Any]) -> None:
    """Raise `ConfigError` with all problems that `check_libraries` finds."""
    if problems := check_libraries(config):
        raise ConfigError(problems)


def check_libraries(config: Mapping[str, Any]) -> list[Problem]:
    """Compare the arguments of every library class in a plain config with its signature."""
    return list(_walk(config, ""))


def _walk(value: Any, key: str) -> Iterator[Problem]:
    if isinstance(value, Mapping):
        target = value.get("_target_")
        if isinstance(target, str) and "/" not in target:
            yield from _check_node(value, key, target)
        items = list(value.items())
    else:
        items = list(enumerate(value)) if isinstance(value, (list, tuple)) else []
    for name, item in items:
        yield from _walk(item, f"{key}.{name}" if key else str(name))


def _check_node(node: Mapping[str, Any], key: str, target: str) -> Iterator[Problem]:
    family = family_of(target)
    if missing := missing_package(target):
        yield Problem(f"{key}._target_", missing)
        return
    try:
        call = resolve_target(target)
    except ValueError as error:
        near = family and nearest(target, _names(family))
        remedy = f"; did you mean {near}? type {key}._target_={near}" if near else ""
        yield Problem(f"{key}._target_", f"{error}{remedy}")
        return
    assert family is not None
    yield from _check_arguments(node, key, call, family.injected)


def missing_package(target: str) -> str | None:
    """Return a line that says how to install the library of a class, or None if it is there."""
    family = family_of(target)
    if not family or is_own(target) or _installed(family.distribution):
        return None
    name = family.distribution
    package = f"'penstock[{name}]'" if name in ("kornia", "torchvision") else name
    return f"{target!r}: the package {name} is missing; run: pip install {package}"


def _installed(distribution: str) -> bool:
    return importlib.util.find_spec(distribution) is not None


def _names(family: Family) -> list[str]:
    """List the public classes of a family."""
    module, bases = importlib.import_module(family.name), tuple(map(_locate, family.bases))
    return [
        f"{family.name}.{name}"
        for name, found in vars(module).items()
        if inspect.isclass(found) and issubclass(found, bases) and found not in bases
    ]


def _check_arguments(
    node: Mapping[str, Any], key: str, call: Callable[..., Any], injected: frozenset[str]
) -> Iterator[Problem]:
    target, parameters = node["_target_"], inspect.signature(call).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    named = {each.name: each for each in registry.parameters(call, injected)}
    beside = registry.find(PLACES[key].beside or "") if key in PLACES else None
    other = {"_target_", "_after_"} | set(
        inspect.signature(beside.target).parameters if beside else ()
    )
    given = PARTS_OF["model/module"]["module"].given if key == "model.module" else ()
    positional = node.get("_args_", ())
    filled = {*list(named)[: len(positional)], *node, *given}
    if (
        positional
        and inspect.Parameter.VAR_POSITIONAL not in kinds
        and len(positional) > len(named)
    ):
        yield Problem(
            f"{key}._args_", f"{len(positional)} values given, {target} takes {len(named)}"
        )
    for name, value in node.items():
        full = f"{key}.{name}"
        if name in named:
            expected = _expected(named[name], value)
            if expected:
                yield Problem(full, f"{value!r} given, {target} expects {expected}"
                              f"{_example(named[name], full, value)}")  # fmt: skip
        elif name in injected and name in parameters:
            yield Problem(full, f"{value!r} given, but the run gives {name}; type ~{full}")
        elif name not in other and name != "_args_" and inspect.Parameter.VAR_KEYWORD not in kinds:
            near = nearest(name, set(named) - set(node))
            remedy = f"did you mean {near}? type {key}.{near}={value}" if near else f"type ~{full}"
            yield Problem(full, f"{value!r} given, unknown argument of {target}; {remedy} "
                          f"(arguments: {listing(named)})")  # fmt: skip
    for name, parameter in named.items():
        if parameter.default is inspect.Parameter.empty and name not in filled:
            yield Problem(f"{key}.{name}", f"missing, {target} requires it; type {key}.{name}=...")


_WORDS = {"bool": "true or false", "int": "an integer", "float": "a number"}


def _expected(parameter: inspect.Parameter, value: Any) -> str | None:
    """Name the expected type if `value` has another; None where the signature leaves it open."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        text = ""
    else:
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    if text.startswith("tuple[") and "|" not in text and isinstance(value, (bool, int, float, str)):
        return "a list"
    plain = text in _WORDS
    kind = text if plain else type(parameter.default).__name__
    if kind not in _WORDS:
        return None
    if not plain and kind == "int":  # `momentum=0`
        kind = "float"
    accepted: Any = {"bool": bool, "int": int, "float": (int, float)}[kind]
    if isinstance(value, accepted) and (kind == "bool" or not isinstance(value, bool)):
        return None
    if isinstance(value, Mapping) or (value == parameter.default and value is not None):
        return None
    admits = any(word in text for word in (type(value).__name__, "Any", "Literal", "Enum"))
    closed = plain or (isinstance(value, (str, bool)) and not admits)
    return _WORDS[kind] if closed else None


def _example(parameter: inspect.Parameter, full: str, value: Any) -> str:
    """End a line with a value that builds: the number in quotes, else the default."""
    with suppress(ValueError):
        if (
            isinstance(value, str)
            and parameter.default is not True
            and parameter.default is not False
        ):
            return f"; type {full}={float(value):g}"
    if parameter.default is inspect.Parameter.empty:
        return ""
    default = parameter.default
    shown = (
        f"[{','.join(map(str, default))}]" if isinstance(default, tuple) else str(default).lower()
    )
    return f"; type for example {full}={shown}"
