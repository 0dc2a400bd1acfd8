"""Penstock: config-driven training pipelines for PyTorch; the same batches, however they are run.

From Python and notebooks::

    from penstock import build_loader, compose

    config = compose(["dataset=lmdb", "loader.num_workers=2"])
    for batch in build_loader(config, split="train"):
        batch["image"]  # uint8 [B, H, W, C]

`fit` trains in this process and returns the results; `train` is the program ``penstock train``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.core.registry import register
    from penstock.pipeline.build import build_loader
    from penstock.pipeline.commands.preview.show import preview
    from penstock.pipeline.config.compose import compose
    from penstock.pipeline.program import train
    from penstock.pipeline.training.job import train as fit

__all__ = ["build_loader", "compose", "fit", "preview", "register", "train"]

# Imported on first use: `--help` and a typo in a config must not wait for torch.
_HOMES = {
    "build_loader": ("penstock.pipeline.build", "build_loader"),
    "compose": ("penstock.pipeline.config.compose", "compose"),
    "fit": ("penstock.pipeline.training.job", "train"),
    "preview": ("penstock.pipeline.commands.preview.show", "preview"),
    "register": ("penstock.core.registry", "register"),
    "train": ("penstock.pipeline.program", "train"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, attribute = _HOMES[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
