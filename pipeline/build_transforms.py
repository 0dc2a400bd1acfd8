"""Config to what is done to whole batches, and where: by workers, or on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pipeline.config.objects import build

if TYPE_CHECKING:
    from datasets.protocols import BatchTransform, RowTransform

Config = Mapping[str, Any]
Split = Literal["train", "val"]


def build_device_transforms(
    config: Config, split: Split, device: Any = None
) -> list[BatchTransform]:
    """What happens to batches of a split on the device, in order: ``augment.device``.

    Each step is told the seed, its name and the split: what is random leaves evaluation alone.
    Neighbours that move the pixels of rows are joined.

    Args:
        config: The config.
        split: The split.
        device: What `pipeline.build.build_loader` was told; what its workers do is left out.
    """
    return _divided(config, split, device)[1]


def build_worker_steps(config: Config, split: Split, device: Any) -> RowTransform | None:
    """The steps of ``augment.device`` that workers do; None: none.

    On the CPU these are the first ones, as far as they only move pixels: there they would take
    the training loop's own time. On any other device that does all of them.

    Args:
        config: The config.
        split: The split.
        device: Where batches will be used; None: that is not known.
    """
    return _divided(config, split, device)[0]


def _divided(
    config: Config, split: Split, device: Any
) -> tuple[RowTransform | None, list[BatchTransform]]:
    from transforms.cpu.stack import ordered_steps
    from transforms.row_steps import RowSteps, joined_steps

    nodes = ordered_steps(config["augment"].get("device") or {})
    seed = config["seed"]
    steps = joined_steps(
        [build(node, seed=seed, split=split, step=name) for name, node in nodes.items()]
    )
    on_cpu = device is not None and str(device).partition(":")[0] == "cpu"
    if on_cpu and steps and isinstance(steps[0], RowSteps):
        return steps[0], steps[1:]
    return None, steps
