"""Objects from nodes without the framework's own builder, and as strict as it must be."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from typing import Any

from penstock.core.registry import find
from penstock.pipeline.config.components import load_builtin

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
load_builtin()  # a stack asks the registry which steps it may run together


def build_step(node: dict[str, Any], **injected: Any) -> Any:
    arguments = {
        key: _nested(value) for key, value in node.items() if key not in ("_target_", "_after_")
    }
    component = find(node["_target_"])
    if component is None:
        module, _, name = node["_target_"].rpartition(".")
        return getattr(importlib.import_module(module), name)(**arguments)
    accepted = inspect.signature(component.target).parameters
    arguments |= {key: value for key, value in injected.items() if key in accepted}
    if inspect.isclass(component.target):
        return component.target(**arguments)
    return functools.partial(component.target, **arguments)


def _nested(value: Any) -> Any:
    if isinstance(value, dict):
        return build_step(value)
    if isinstance(value, list):
        return [_nested(item) for item in value]
    return value
