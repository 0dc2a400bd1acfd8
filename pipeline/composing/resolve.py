"""Implicit choices of a config, made in one place."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection
from typing import Any

from penstock.core import registry
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
    """Normalise images on the device if an augmentation says nothing of it.

    Not where nothing is done with samples, or a step gives floats or puts channels first already.
    """
    augment = config.get("augment")
    if not isinstance(augment, dict) or "device" in augment:
        return
    stacks = [stack for stack in map(augment.get, ("train", "eval")) if isinstance(stack, dict)]
    nodes = [node for stack in stacks for node in stack.values() if isinstance(node, dict)]
    targets = [str(node.get("_target_")) for node in nodes]
    done = any(name in text for text in targets for name in ("Normalize", "ToFloat", "ToTensor"))
    if targets and not done:
        augment["device"] = {"normalize": {"_target_": "batch_transform/normalize"}}
        _LOG.info("images are normalised on the device (augment.device.normalize)")


def _leave_out_annotations(config: dict[str, Any]) -> None:
    """Drop the label files that a task chooses for data that brings its own labels."""
    dataset = config.get("dataset")
    if not isinstance(dataset, dict) or "annotations" not in dataset:
        return
    component = registry.find(str(dataset.get("_target_")))
    if component is None:
        return
    if "annotations" not in inspect.signature(component.target).parameters:
        left_out = dataset.pop("annotations")
        if left_out is not None:
            _LOG.info("%s brings its own labels; no dataset.annotations", component.target_name)


def _order_stream(config: dict[str, Any], chosen: Collection[str]) -> None:
    """Give an IterableDataset the sampler and the scheduler of a stream."""
    node = config.get("dataset")
    if not isinstance(node, dict) or node.get("_target_") != "dataset/torch":
        return
    try:
        found = resolve_class(str(node.get("target")), bases=("torch.utils.data.IterableDataset",))
    except ValueError:  # map-style, or reported with the data set
        return
    if "sampler" not in chosen:
        config["sampler"] = {"_target_": "sampler/sequential"}
        _LOG.info("%s is a stream, read in its own order (sampler=sequential)", found.__qualname__)
    if "scheduler" not in chosen and not (config.get("trainer") or {}).get("max_steps"):
        config["scheduler"] = {"_target_": "scheduler/none"}
        _LOG.info("the length of a stream is unknown, so the rate is constant (scheduler=none)")
