"""Finding components: our own leaves, the user's modules and files, installed packages."""

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
from penstock.pipeline.config.targets import take_classes_of

_ROOMS = ("pipeline", "datasets", "transforms")
ENTRY_POINT_GROUP = "penstock.components"

LEAF_PACKAGES = (
    "penstock.datasets",
    "penstock.datasets.storages",
    "penstock.datasets.annotations",
    "penstock.datasets.caches",
    "penstock.datasets.sources",
    "penstock.transforms.decode",
    "penstock.transforms.cpu",
    "penstock.transforms.device",
    "penstock.pipeline.samplers",
    "penstock.pipeline.collates",
    "penstock.pipeline.loader.engines",
    "penstock.pipeline.tasks",
    "penstock.pipeline.models",
    "penstock.pipeline.schedulers",
    "penstock.pipeline.training.loggers",
    "penstock.pipeline.training.callbacks",
)
LEAF_MODULES = (
    "penstock.datasets.streams.dataset",
    "penstock.pipeline.loader.settings",
    "penstock.pipeline.learning.parameters",
    "penstock.pipeline.training.settings",
    "penstock.transforms.cpu.targets",
)


@cache
def load_builtin() -> None:
    """Import every leaf of this project, which registers its components."""
    for name in LEAF_PACKAGES:
        package = importlib.import_module(name)
        for module in sorted(found.name for found in pkgutil.iter_modules(package.__path__)):
            importlib.import_module(f"{name}.{module}")
    for name in LEAF_MODULES:
        importlib.import_module(name)


@cache
def load_entry_points() -> None:
    """Import what installed packages offer under the entry-point group."""
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        entry_point.load()


def load_all(imports: Iterable[str] = ()) -> None:
    """Import everything that registers components; a second call costs next to nothing."""
    load_builtin()
    load_entry_points()
    load_imports(imports)


def load_imports(names: Iterable[str]) -> None:
    """Import the user's modules (``my_package.parts``) and files (``./parts.py``).

    An import that fails raises what it raises, with its own traceback.

    Raises:
        ConfigError: A module or file does not exist, or a file's name is that of another module.
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
        if error.name in _ROOMS:
            return _renamed(name, error.name)
        # The module itself, or a package above it; anything else is a failure inside of it.
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
    try:
        importlib.import_module(stem)
    except ModuleNotFoundError as error:
        if error.name not in _ROOMS:
            raise
        return _renamed(path.name, error.name)
    return None


def _search_also(folder: Path) -> None:
    """Find modules in a folder, last, so that none of them hides a module of someone else's."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        importlib.invalidate_caches()


def _renamed(name: str, room: str) -> str:
    return (
        f"{name} imports {room!r}, which is a part of the package penstock now; write "
        f"`from penstock import register`, or `from penstock.{room}...`"
    )


def _origin_of(stem: str) -> Path | None:
    """Find where a module of this name comes from, loaded or not."""
    loaded = sys.modules.get(stem)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        return Path(file).resolve() if file else Path(f"<{stem}>")
    spec = importlib.util.find_spec(stem)
    if spec is None or spec.origin is None:
        return None
    if spec.origin in ("built-in", "frozen"):
        return Path(f"<{stem}>")
    return Path(spec.origin).resolve()
