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

ENTRY_POINT_GROUP = "penstock.components"

# A walk over all packages would import torch and the training loop.
LEAVES = (
    "penstock.datasets",
    "penstock.datasets.storages",
    "penstock.datasets.annotations",
    "penstock.datasets.caches",
    "penstock.datasets.sources",
    "penstock.datasets.streams.dataset",
    "penstock.transforms.decode",
    "penstock.transforms.cpu",
    "penstock.transforms.device",
    "penstock.pipeline.samplers",
    "penstock.pipeline.collates",
    "penstock.pipeline.loader.executors",
    "penstock.pipeline.loader.settings",
    "penstock.pipeline.tasks",
    "penstock.pipeline.models",
    "penstock.pipeline.schedulers",
    "penstock.pipeline.learning.parameters",
    "penstock.pipeline.training.settings",
    "penstock.pipeline.training.loggers",
    "penstock.pipeline.training.callbacks",
)
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
        for module in sorted(
            found.name for found in pkgutil.iter_modules(getattr(leaf, "__path__", ()))
        ):
            importlib.import_module(f"{name}.{module}")


@cache
def load_entry_points() -> None:
    """Import the plug-ins of installed packages."""
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        entry_point.load()


def load_imports(names: Iterable[str]) -> None:
    """Import the user's modules (``my_package.parts``) and files (``./parts.py``).

    An import that fails raises its own exception, with its traceback.

    Raises:
        ConfigError: A module or file is missing, or a file has the name of another module.
    """
    problems = []
    for name in names:
        problem = _load(name)
        if problem is not None:
            problems.append(Problem("imports", problem))
        take_classes_of(module_of(name))
    if problems:
        raise ConfigError(problems)


def module_of(name: str) -> str:
    """Name the module of an item of `imports`; files are imported by their stem."""
    return Path(name).stem if _is_file(name) else name


def _is_file(name: str) -> bool:
    return name.endswith(".py") or "/" in name or "\\" in name


def _load(name: str) -> str | None:
    if _is_file(name):
        return _load_file(Path(name).expanduser())
    top = name.partition(".")[0]
    if importlib.util.find_spec(top) is None and any(Path().glob(f"{top}*")):
        _search_also(Path.cwd())
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Another missing name is an import inside the module.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        file = Path(*name.split(".")).with_suffix(".py")
        remedy = f"type imports=[{file}]" if file.exists() else "or the path of a file, ./x.py"
        return f"no module named {name!r}; an importable module is needed, {remedy}"
    return None


def _load_file(path: Path) -> str | None:
    """Import a file by its stem from its folder, so that what it defines can be pickled."""
    path = path.resolve()
    if not path.is_file():
        return f"no file {str(path)!r}; paths start at the working directory, {Path.cwd()}"
    stem = path.stem
    if not stem.isidentifier():
        return f"{path.name!r} cannot be imported: rename it to letters, digits and _"
    other = _origin_of(stem)
    if other is not None and other != path:
        return f"{str(path)!r}: another module is named {stem!r} ({other}); rename the file"
    _search_also(path.parent)
    importlib.import_module(stem)
    return None


def _search_also(folder: Path) -> None:
    """Append a folder to ``sys.path``, so that its modules hide no others."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        importlib.invalidate_caches()


def _origin_of(stem: str) -> Path | None:
    """Return the file of the module of this name, loaded or not."""
    spec = None
    if (loaded := sys.modules.get(stem)) is not None:
        origin = getattr(loaded, "__file__", None)
    else:
        spec = importlib.util.find_spec(stem)
        origin = spec.origin if spec else None
    return Path(origin or f"<{stem}>").resolve() if loaded or spec else None
