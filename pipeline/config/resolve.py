"""Implicit choices of a config, made in one place."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from penstock.core import registry
from penstock.core.user_errors import Problem
from penstock.pipeline.config.libraries import resolve_class
from penstock.pipeline.config.places import PRESETS

_LOG = logging.getLogger("penstock")


def resolve(config: dict[str, Any], chosen: Collection[str] | None) -> None:
    """Make the choices that a config leaves open, and log each.

    Args:
        config: A plain config, not checked yet; changed.
        chosen: The keys that the user typed; None for a saved config.
    """
    _normalize(config)
    if "dataset.annotations" not in (chosen or ()):
        _leave_out_annotations(config)
    top = {key.partition(".")[0] for key in chosen or ()}
    if chosen is not None and not top & {*PRESETS}:  # a preset may have chosen anything
        _order_stream(config, top)


def _normalize(config: dict[str, Any]) -> None:
    """Normalise images on the device if an augmentation with steps does not mention `device`."""
    augment: Any = config.get("augment")
    steps = isinstance(augment, dict) and (augment.get("train") or augment.get("eval"))
    if steps and "device" not in augment:
        augment["device"] = {"normalize": {"_target_": "batch_transform/normalize"}}
        _LOG.info("images are normalised on the device (augment.device.normalize)")


def _leave_out_annotations(config: dict[str, Any]) -> None:
    """Drop the label files that a task chooses for data that brings its own labels."""
    dataset = config.get("dataset")
    component = registry.find(str(registry.value_at(config, "dataset._target_")))
    if component is None or not isinstance(dataset, dict) or "annotations" not in dataset:
        return
    takes = "annotations" in inspect.signature(component.target).parameters
    if not takes and dataset.pop("annotations") is not None:
        _LOG.info("%s brings its own labels; no dataset.annotations", component.target_name)


def _order_stream(config: dict[str, Any], chosen: Collection[str]) -> None:
    """Give an IterableDataset the sampler and the scheduler of a stream."""
    if registry.value_at(config, "dataset._target_") != "dataset/torch":
        return
    target = str(config["dataset"].get("target"))
    try:
        resolve_class(target, bases=("torch.utils.data.IterableDataset",))
    except ValueError:  # map-style, or reported with the data set
        return
    if "sampler" not in chosen:
        config["sampler"] = {"_target_": "sampler/sequential"}
        _LOG.info("%s is a stream, read in its own order (sampler=sequential)", target)
    if "scheduler" not in chosen and not registry.value_at(config, "trainer.max_steps"):
        config["scheduler"] = {"_target_": "scheduler/none"}
        _LOG.info("the length of a stream is unknown, so the rate is constant (scheduler=none)")


def suit_model(config: dict[str, Any], wrong: Collection[str]) -> list[Problem]:
    """Normalise images for the weights of the model, unless the config gives the mean.

    Args:
        config: A checked config; ``mean`` and ``std`` of ``augment.device`` change.
        wrong: Keys that have been reported.

    Returns:
        Mistakes in the arguments of the model.
    """
    node = config.get("model")
    if not isinstance(node, dict) or any(f"{key}.".startswith("model.") for key in wrong):
        return []
    try:
        told = registry.model_capabilities(node)
    except ValueError as error:
        return [Problem("", " ".join(str(error).split()))]
    for name, step in (registry.value_at(config, "augment.device") or {}).items():
        if step and step.get("_target_") == "batch_transform/normalize":
            for argument, value in (("mean", told.mean), ("std", told.std)):
                if step.get(argument) is None and value is not None:
                    step[argument] = list(value)
                    key = f"augment.device.{name}.{argument}"
                    _LOG.info("%s=%s, as the weights of the model expect", key, step[argument])
    weights = node.get("weights") if "weights" in told.begins_with else None
    begun = {"predict", "evaluate", "export"} & config.keys() or registry.value_at(
        config, "trainer.resume"
    )
    if isinstance(weights, str) and not begun and not Path(weights).expanduser().exists():
        text = f"{weights!r} does not exist; type model.weights=<file>, or null for none"
        return [Problem("model.weights", text)]
    return []
