"""Which fields the tasks of a config are about, and the classes that these have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.config.allowed import resolve_target

ClassesOf = Callable[[str], "tuple[str, ...] | None"]
"""Names of the classes of a field; None where it has none."""


def tasks_of(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The tasks of a task that holds several, by name; none where it is one."""
    return {name: task for name, task in (config["task"].get("tasks") or {}).items() if task}


def field_of(task: Mapping[str, Any]) -> str:
    """The field whose classes a task is about: its own or its class's ``field``, or ``label``."""
    of_class = getattr(resolve_target(task["_target_"]).call, "field", "label")
    return str(task.get("field") or of_class)


def task_field(config: Mapping[str, Any]) -> str:
    """The field whose classes the task of a config is about."""
    return field_of(config["task"])


def task_classes(config: Mapping[str, Any], classes_of: ClassesOf) -> dict[str, list[str]]:
    """Names of the classes that a config's task, or each of its tasks, is about, by field."""
    fields = [field_of(task) for task in tasks_of(config).values()] or [task_field(config)]
    return {field: list(names) for field in fields if (names := classes_of(field)) is not None}
