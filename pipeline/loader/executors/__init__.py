"""Executors compute batches; a file has the name of its ``loader.engine``."""

from __future__ import annotations

import importlib
import pkgutil
from typing import cast

from penstock.core.registry import components, find
from penstock.pipeline.loader.contract import Executor


def executor_named(name: str) -> type[Executor]:
    """Return the class of an executor; raise ValueError for an unknown name."""
    for module in pkgutil.iter_modules(__path__):  # composing a config imports them as well
        importlib.import_module(f"{__name__}.{module.name}")
    component = find(f"engine/{name}")
    if component is None:
        known = ", ".join(known.name for known in components("engine"))
        raise ValueError(f"loader.engine is {name!r}; engines: {known}")
    return cast("type[Executor]", component.target)
