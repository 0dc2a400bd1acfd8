"""Registered components, made as the framework makes them."""

from __future__ import annotations

from typing import Any

from penstock import compose
from penstock.core.registry import components, find


def names_of(group: str) -> list[str]:
    """Return the names of the built-in components of a group."""
    compose([])  # registers them
    return [
        each.name for each in components(group) if each.target.__module__.startswith("penstock.")
    ]


def component(group: str, name: str) -> Any:
    """Return the class or function that is registered as a component."""
    compose([])
    found = find(f"{group}/{name}")
    assert found is not None, f"no {group} has the name {name}"
    return found.target


def storage_at(form: str, path: Any) -> Any:
    """Return the storage of a form at a path, with its default options."""
    return component("storage", form)(str(path))
