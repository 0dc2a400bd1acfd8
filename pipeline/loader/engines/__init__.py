"""Engines compute batches: one per file, named as in ``loader.engine``, and what they share."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from penstock.core.registry import components, find


def engine_named(name: str) -> Any:
    """The class of an engine.

    Raises:
        ValueError: There is none of this name.
    """
    if find(f"engine/{name}") is None:  # without a config, which finds every leaf
        for module in pkgutil.iter_modules(__path__):
            importlib.import_module(f"{__name__}.{module.name}")
    component = find(f"engine/{name}")
    if component is None:
        known = ", ".join(known.name for known in components("engine"))
        raise ValueError(f"loader.engine is {name!r}; engines: {known}")
    return component.target
