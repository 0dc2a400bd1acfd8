"""Settings check themselves where they are made; they are light enough to be made by the check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline import registry
from pipeline.config.errors import Problem
from pipeline.config.values import is_unresolved


def wrong_settings(settings: Mapping[str, Any], key: str, target: str) -> Iterator[Problem]:
    """What settings say of themselves.

    Args:
        settings: Their values, each of which has the right type or could not be resolved.
        key: The key at which they stand.
        target: Their name in the registry.
    """
    values = {name: value for name, value in settings.items() if name != "_target_"}
    if any(map(is_unresolved, values.values())):
        return
    component = registry.find(target)
    assert component is not None
    try:
        component.target(**values)
    except ValueError as error:
        text = " ".join(str(error).split())
        yield Problem("" if text.startswith(key) else key, text)
