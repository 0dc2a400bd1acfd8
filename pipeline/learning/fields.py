"""Read from a config which fields its tasks learn, and the classes of these fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.core.registry import model_capabilities
from penstock.pipeline.config.libraries import resolve_target

ClassesOf = Callable[[str], "tuple[str, ...] | None"]
"""Names of the classes of a field; None for a field without classes."""


def tasks_of(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the tasks inside ``task=multi`` by name; a single task has none."""
    return {name: task for name, task in (config["task"].get("tasks") or {}).items() if task}


def field_of(task: Mapping[str, Any]) -> str:
    """Return a task's `field`, else the `field` of its class, else ``label``."""
    of_class = getattr(resolve_target(task["_target_"]), "field", "label")
    return str(task.get("field") or of_class)


def task_field(config: Mapping[str, Any]) -> str:
    """Return the field that the task of a config learns."""
    return field_of(config["task"])


def task_classes(config: Mapping[str, Any], classes_of: ClassesOf) -> dict[str, list[str]]:
    """Return the class names of each field that the tasks of a config learn."""
    fields = [field_of(task) for task in tasks_of(config).values()] or [task_field(config)]
    return {field: list(names) for field in fields if (names := classes_of(field)) is not None}


def without_weights(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's node with random initial weights, for loading a checkpoint."""
    return {**node, **model_capabilities(node).begins_with}
