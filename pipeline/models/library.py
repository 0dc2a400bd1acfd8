"""What models out of libraries share: the import, names, classes and files of weights."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Collection
from typing import Any

BEGINS_WITH = {"pretrained": False, "weights": None}
"""Arguments that say which weights such a model begins with, as they are for none."""


def import_library(name: str, *, model: str, package: str | None = None) -> Any:
    """Import a library.

    Args:
        name: Its module.
        model: The model that needs it, which is what the extra is called too.
        package: What is installed; None: as the module.

    Raises:
        ValueError: It is missing, or cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = package or name
        raise ValueError(
            f"model {model}: the package {error.name or package} is missing (the extra {model}); "
            f"run: pip install {package}"
        ) from error
    except (ImportError, RuntimeError, OSError) as error:  # such as of another torch's operators
        said = " ".join(str(error).split())
        raise ValueError(
            f"model {model}: {name} cannot be imported: {said}; install versions that go together: "
            f"pip install --upgrade {package or name}"
        ) from error


def refuse_unknown(name: str, names: Collection[str], *, model: str) -> None:
    """Refuse a name that a library does not have.

    Raises:
        ValueError: It has no such; near ones are named.
    """
    if name in names:
        return
    near = difflib.get_close_matches(name.lower(), names, n=4, cutoff=0.5) or sorted(names)[:4]
    raise ValueError(
        f"model.name: {name!r} is none of the {len(names):,} models of {model}; near ones are "
        f"{', '.join(near)}; type model.name={near[0]}"
    )


def refuse_both(pretrained: bool, weights: str | None, *, model: str) -> None:
    """Refuse two places to begin from."""
    if pretrained and weights is not None:
        raise ValueError(
            f"model.pretrained: true given, and model.weights={weights} too, and model {model} "
            f"begins with one of them; type model.pretrained=false"
        )


def require_classes(num_classes: int | None, *, model: str, task: str = "classification") -> int:
    """Take the number of classes.

    Raises:
        ValueError: The data has none.
    """
    if not num_classes:
        raise ValueError(
            f"model {model}: its outputs are scores of classes, and the data of task={task} has "
            f"none; set dataset.storage.labels or dataset.annotations.classes, or choose another "
            f"model"
        )
    return num_classes


def in_a_line(error: Exception) -> str:
    """Say what a library raised in one line of some length."""
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) < 240 else f"{said[:236]} ..."
