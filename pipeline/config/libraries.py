"""Classes of libraries that a config may name, and the arguments that a config gives them.

The allow-list looks at the resolved object, because a path proves nothing:
``torch.nn.functional.importlib.import_module`` resolves to a function outside torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.core import registry
from penstock.pipeline.config.errors import nearest
from penstock.pipeline.config.values import (
    REQUIRED,
    Argument,
    annotation_of,
)


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


def _family(
    name: str, bases: str, what: str, distribution: str = "torch", injected: str = ""
) -> tuple[str, Family]:
    paths = tuple(f"{name}.{base}" for base in bases.split())
    return name, Family(name, paths, frozenset(injected.split()), distribution, what)


FAMILIES: dict[str, Family] = dict((
    _family("torch.optim.lr_scheduler", "LRScheduler", "learning-rate scheduler",
            injected="optimizer total_steps total_epochs"),
    _family("torch.optim", "Optimizer", "optimizer", injected="params"),
    _family("torch.nn", "Module", "module"),
    _family("torch.utils.data", "Sampler", "torch sampler", injected="data_source"),
    _family("albumentations", "BasicTransform BaseCompose", "transform of albumentations",
            "albumentations"),
    _family("torchvision.transforms.v2", "Transform", "transform of torchvision", "torchvision"),
    _family("kornia.augmentation", "AugmentationBase2D AugmentationBase3D MixAugmentationBaseV2 "
            "container.base.BasicSequentialBase", "augmentation of kornia", "kornia"),
))  # fmt: skip
"""By prefix; a family inside another stands before it."""

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


def nearest_class(target: str) -> str | None:
    """Find the public class of a family with the closest name."""
    if (family := family_of(target)) is None:
        return None
    module, bases = importlib.import_module(family.name), tuple(map(_locate, family.bases))
    names = [
        f"{family.name}.{name}"
        for name, found in vars(module).items()
        if inspect.isclass(found) and issubclass(found, bases) and found not in bases
    ]
    return nearest(target, names)


def class_arguments(call: Callable[..., Any], injected: frozenset[str]) -> dict[str, Argument]:
    """List the arguments of a library class that a config may give, by name."""
    empty = inspect.Parameter.empty
    return {
        each.name: Argument(
            each.name,
            annotation_of(call, each),
            REQUIRED if each.default is empty else each.default,
        )
        for each in registry.parameters(call, injected)
    }
