"""Components: find and import everything that registers one."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from penstock.pipeline.config.errors import ConfigError, Problem
from penstock.pipeline.config.libraries import take_classes_of

# A walk over all packages would import torch and the training loop.
_NAMES = """
datasets datasets.storages datasets.annotations datasets.caches datasets.sources
datasets.streams.dataset transforms.decode transforms.cpu transforms.device pipeline.samplers
pipeline.collates pipeline.loader.executors pipeline.loader.settings pipeline.tasks
pipeline.models pipeline.schedulers pipeline.learning.parameters pipeline.training.settings
pipeline.training.loggers pipeline.training.callbacks
"""
LEAVES = tuple(f"penstock.{name}" for name in _NAMES.split())
"""Packages whose modules register components, and single modules that do."""


def register_components(imports: Iterable[str] = ()) -> None:
    """Import the built-in components, installed plug-ins and the user's `imports`.

    A repeated call costs next to nothing.
    """
    load_builtin()
    load_entry_points()
    load_imports(imports)


@cache
def load_builtin() -> None:
    """Import every built-in component."""
    for name in LEAVES:
        leaf = importlib.import_module(name)
        modules = pkgutil.iter_modules(getattr(leaf, "__path__", ()))
        for module in sorted(found.name for found in modules):
            importlib.import_module(f"{name}.{module}")


@cache
def load_entry_points() -> None:
    """Import the plug-ins of installed packages."""
    for entry_point in importlib.metadata.entry_points(group="penstock.components"):
        entry_point.load()


def load_imports(names: Iterable[str]) -> None:
    """Import the user's modules (``my_package.parts``) and files (``./parts.py``).

    An import that fails raises its own exception, with its traceback.

    Raises:
        ConfigError: A module or file is missing, or a file has the name of another module.
    """
    for name in names:
        load = _load_file if _is_file(name) else _load_module
        if problem := load(name):
            raise ConfigError([Problem("imports", problem)])
        take_classes_of(module_of(name))


def module_of(name: str) -> str:
    """Name the module of an item of `imports`; files are imported by their stem."""
    return Path(name).stem if _is_file(name) else name


def _is_file(name: str) -> bool:
    return name.endswith(".py") or "/" in name or "\\" in name


def _load_module(name: str) -> str | None:
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        _search_also(Path.cwd())
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Another missing name is an import inside the module.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return f"no module named {name!r}; give an importable module, or a file such as ./x.py"
    return None


def _load_file(name: str) -> str | None:
    """Import a file by its stem from its folder, so that what it defines can be pickled."""
    path = Path(name).expanduser().resolve()
    stem = path.stem
    if not path.is_file():
        return f"no file {str(path)!r}; paths start at the working directory, {Path.cwd()}"
    if not stem.isidentifier():
        return f"{path.name!r} cannot be imported: rename it to letters, digits and _"
    _search_also(path.parent)
    other = getattr(importlib.import_module(stem), "__file__", None) or "built in"
    if Path(other).resolve() != path:
        return f"{str(path)!r}: another module is named {stem!r} ({other}); rename the file"
    return None


def _search_also(folder: Path) -> None:
    """Append a folder to ``sys.path``, so that its modules hide no others."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        importlib.invalidate_caches()
