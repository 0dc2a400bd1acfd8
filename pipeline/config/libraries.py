"""Classes of libraries that a config may name, and the arguments that a config gives them.

The allow-list looks at the resolved object, because a path proves nothing:
``torch.nn.functional.importlib.import_module`` resolves to a function outside torch.
"""

from __future__ import annotations

import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.core import registry
from penstock.pipeline.config.errors import nearest


@dataclass(frozen=True, slots=True)
class Family:
    """Classes of a library that a config may name.

    Attributes:
        name: Prefix of their paths and of their ``__module__``.
        bases: Dotted paths of accepted base classes.
        injected: Arguments that the run gives; a config may not.
    """

    name: str
    bases: tuple[str, ...]
    injected: frozenset[str]


FAMILIES = {
    name: Family(name, tuple(f"{name}.{base}" for base in bases.split()), frozenset(given.split()))
    for name, bases, given in (
        ("torch.optim.lr_scheduler", "LRScheduler", "optimizer total_steps total_epochs"),
        ("torch.optim", "Optimizer", "params"),
        ("torch.nn", "Module", ""),
        ("torch.utils.data", "Sampler", "data_source"),
        ("albumentations", "BasicTransform BaseCompose", ""),
        ("torchvision.transforms.v2", "Transform", ""),
        ("kornia.augmentation", "AugmentationBase2D AugmentationBase3D MixAugmentationBaseV2 "
         "container.base.BasicSequentialBase", ""),
    )
}  # fmt: skip
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
            is_loaded = inspect.isclass(found) and family.name.partition(".")[0] in sys.modules
            if is_loaded and issubclass(found, tuple(map(_locate, family.bases))):
                return family
    return None


def resolve_target(target: str) -> Callable[..., Any]:
    """Find the registered component, or the class on the allow-list, that a ``_target_`` names.

    Raises:
        ValueError: There is no such component or class.
    """
    if (component := registry.find(target)) is not None:
        return component.target
    if (family := family_of(target)) is None:
        raise ValueError(
            f"_target_ {target!r} is not on the allow-list: registered components (group/name) "
            f"and classes of {', '.join(FAMILIES)}; register your own in a module of `imports`"
        )
    found = resolve_class(target, bases=family.bases)
    is_inside = is_own(target) or f"{found.__module__}.".startswith(f"{family.name}.")
    if not is_inside or inspect.isabstract(found) or found in map(_locate, family.bases):
        raise ValueError(f"_target_ {target!r} is not a class of {family.name} to use itself")
    return found


def resolve_class(path: str, bases: Collection[str]) -> type:
    """Import the class at a dotted path, a subclass of one of `bases`, which are paths too.

    Raises:
        ValueError: There is no such class.
    """
    found = _locate(path)
    if not inspect.isclass(found) or not issubclass(found, tuple(map(_locate, bases))):
        raise ValueError(f"{path!r} is not a subclass of {' or '.join(bases)}")
    return found


def _locate(path: str) -> Any:
    """Find the object at a dotted path: the longest importable module, then attributes of it."""
    try:
        return pkgutil.resolve_name(path)
    except AttributeError as error:
        near = nearest(str(error.name), dir(error.obj))
        remedy = f"; did you mean {near}?" if near else ""
        raise ValueError(f"{path!r} not found: {error}{remedy}") from error
    except ModuleNotFoundError as error:
        if error.name != path.partition(".")[0]:  # an import inside of a module
            raise
        raise ValueError(f"{path!r} not found: {error}") from error


def missing_package(target: str) -> str | None:
    """Return a line that says how to install the library of a class, or None if it is there."""
    family = family_of(target)
    package = family.name.partition(".")[0] if family else ""
    if not package or is_own(target) or importlib.util.find_spec(package):
        return None
    return f"{target!r}: the package {package} is missing; run: pip install 'penstock[{package}]'"
