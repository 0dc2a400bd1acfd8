"""Check the order of augmentation steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from penstock.core.registry import checks
from penstock.core.user_errors import Problem
from penstock.transforms.cpu.stack import ordered_steps

_CROPS = ("transform/center_crop", "transform/random_crop")
_COLOURS = tuple(f"batch_transform/{name}" for name in ("color_jitter", "grayscale", "kornia"))


def _steps(config: Mapping[str, Any], stack: str) -> dict[str, Any]:
    """Return the steps in the order in which they run; empty if the order is invalid."""
    with suppress(ValueError):  # reported with the step
        return {**ordered_steps(config["augment"][stack])}
    return {}


@checks(*_CROPS, needs=("augment.eval",))
def crop_inside_image(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Report a crop larger than the resized image, which would fail in the first validation."""
    resized, short = "", None
    for name, step in _steps(config, "eval").items():
        key, size = f"augment.eval.{name}", step.get("size")
        sides = size if isinstance(size, list | tuple) else [size]
        known = isinstance(short, int) and all(isinstance(side, int) for side in sides)
        if step.get("_target_") in _CROPS and known:
            if min(sides) > short:
                remedy = "augment.eval_size" if "eval_size" in config["augment"] else resized
                text = f"a crop of {size} given, the short side is {short}"
                usual = round(max(sides) * 256 / 224)
                yield Problem(key, f"{text} ({resized}); type {remedy}={usual}")
        is_resize = step.get("_target_") == "transform/resize"
        resized, short = f"{key}.short_side", step.get("short_side") if is_resize else None


@checks(*_COLOURS, needs=("augment.device",))
def colours_before_normalize(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Report colour steps that run after `normalize`; they need values from 0 to 1."""
    normalized = None
    for name, step in _steps(config, "device").items():
        if step.get("_target_") == "batch_transform/normalize":
            normalized = name
        elif normalized and step.get("_target_") in _COLOURS:
            text = f"runs after {normalized!r}, expected values from 0 to 1"
            remedy = f"augment.device.{normalized}._after_={name}"
            yield Problem(f"augment.device.{name}", f"{text}; type {remedy}")
