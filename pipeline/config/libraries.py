"""Targets that a config may name: registered components and a short list of classes.

A prefix is no check: ``torch.nn.functional.importlib.import_module`` resolves, and it is no
part of torch. So the object is resolved first, and then it is the object that is looked at:
the module it says it comes from, and the class it descends from. Modules that `imports` name are
the user's own: of these, any class counts that descends from such a class.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.core import registry


@dataclass(frozen=True, slots=True)
class Family:
    """Classes of a library that a config may name.

    Attributes:
        name: The prefix of their paths, and of the ``__module__`` that they must have.
        bases: Dotted paths of classes, of which they must descend from one.
        injected: Arguments that are given at run time and may not stand in a config.
        distribution: The installed distribution that has them.
        what: One word for error lines.
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
            ("kornia.augmentation.base._BasicAugmentationBase",
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
    """Find the family whose prefix a dotted path has, or that a class of the user's descends from.

    The longest prefix wins.
    """
    for family in FAMILIES.values():  # torch.optim.lr_scheduler stands before torch.optim
        if path.startswith(f"{family.name}."):
            return family
    if not is_own(path):
        return None
    with suppress(ValueError):
        found = _locate(path)
        for family in FAMILIES.values():
            # What descends from a library's class has imported the library.
            if inspect.isclass(found) and family.distribution in sys.modules:
                if issubclass(found, tuple(map(_locate, family.bases))):
                    return family
    return None


def resolve_target(target: str) -> Callable[..., Any]:
    """Find the class or function that a ``_target_`` names.

    Args:
        target: ``group/name`` of a registered component, or a dotted path on the allow-list.

    Raises:
        ValueError: Nothing of that name is registered, or the allow-list has no such thing.
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
    """Import the class at a dotted path, which must descend from one of `bases`.

    Args:
        path: Such as ``my_package.MyDataset``.
        bases: Dotted paths of accepted base classes.

    Raises:
        ValueError: There is no such object, or it is not such a class.
    """
    found = _locate(path)
    if not inspect.isclass(found):
        raise ValueError(f"{path!r} is a {type(found).__name__}, expected a class")
    accepted = tuple(_locate(base) for base in bases)
    if not issubclass(found, accepted):
        raise ValueError(f"{path!r} is no subclass of {' or '.join(bases)}")
    return found


def resolve_function(path: str, modules: Collection[str]) -> Callable[..., Any]:
    """Import the function at a dotted path.

    Args:
        path: Such as ``my_package.my_collate``.
        modules: Names of the modules it may be defined in; no other is imported.

    Raises:
        ValueError: The function is not defined in one of `modules`.
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
        raise ValueError(f"{path!r}: {module_name} has no function {name!r}")
    if found.__module__ not in modules:
        raise ValueError(f"{path!r} is defined in {found.__module__}; name that in `imports`")
    return found


def _locate(path: str) -> Any:
    """Find the object at a dotted path: the longest importable module, then attributes of it."""
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{path!r} is no dotted path, such as package.module.Name")
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            # That it is no module is fine; that it lacks something it imports is not.
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
