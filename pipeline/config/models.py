"""What a model says of its arguments before it is made: whether they are right, and its pixels."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from penstock.core import registry
from penstock.core.contracts import ModelCapabilities
from penstock.pipeline.config.errors import Problem


def model_capabilities(node: Mapping[str, Any]) -> ModelCapabilities:
    """Ask a model what its arguments say of it.

    Args:
        node: The model's part of a config.

    Raises:
        ValueError: They are wrong, or a library that it needs is missing.
    """
    component = registry.find(str(node.get("_target_")))
    if component is None or component.capabilities is None:
        return ModelCapabilities()
    asked = inspect.signature(component.capabilities).parameters
    told: ModelCapabilities = component.capabilities(**{k: node[k] for k in asked if k in node})
    return told


def without_weights(node: Mapping[str, Any]) -> dict[str, Any]:
    """A model's part of a config with weights that are drawn: a checkpoint has all of them."""
    return {**node, **model_capabilities(node).begins_with}


def suit_model(config: dict[str, Any], wrong: Collection[str]) -> list[Problem]:
    """Normalise images as the model's weights want it, where the config leaves that open.

    Args:
        config: A config that was checked; ``mean`` and ``std`` of ``augment.device`` are changed.
        wrong: Keys that have been reported.

    Returns:
        What is wrong with the model's arguments.
    """
    node = config.get("model")
    if not isinstance(node, dict) or any(f"{key}.".startswith("model.") for key in wrong):
        return []
    try:
        told = model_capabilities(node)
    except ValueError as error:
        return [Problem("", " ".join(str(error).split()))]
    for step in ((config.get("augment") or {}).get("device") or {}).values():
        if step and step.get("_target_") == "batch_transform/normalize":
            for name, value in (("mean", told.mean), ("std", told.std)):
                if step.get(name) is None and value is not None:
                    step[name] = list(value)
    weights = node.get("weights") if "weights" in told.begins_with else None
    begun = "predict" in config or "evaluate" in config or config["trainer"].get("resume")
    if isinstance(weights, str) and not begun and not Path(weights).expanduser().exists():
        text = f"{weights!r} does not exist; type model.weights=<file>, or null for none"
        return [Problem("model.weights", text)]
    return []
