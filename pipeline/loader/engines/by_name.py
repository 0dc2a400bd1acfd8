"""The engines there are, by their names in ``loader.engine``."""

from __future__ import annotations

from typing import Any

from pipeline.loader.engines import auto as _auto  # noqa: F401 - registers itself
from pipeline.loader.engines import inline as _inline  # noqa: F401 - registers itself
from pipeline.loader.engines import ring as _ring  # noqa: F401 - registers itself
from pipeline.loader.engines import torch as _torch  # noqa: F401 - registers itself
from pipeline.registry import components, find


def engine_named(name: str) -> Any:
    """The class of an engine.

    Raises:
        ValueError: There is none of this name.
    """
    component = find(f"engine/{name}")
    if component is None:
        known = ", ".join(known.name for known in components("engine"))
        raise ValueError(f"loader.engine is {name!r}; engines: {known}")
    return component.target
