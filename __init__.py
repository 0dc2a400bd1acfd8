"""Penstock: config-driven training pipelines for PyTorch; the same batches, however they are run.

From Python and notebooks::

    from penstock import build_loader, compose

    config = compose(["dataset=lmdb", "loader.num_workers=2"])
    for batch in build_loader(config, split="train"):
        batch["image"]  # uint8 [B, H, W, C]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.core.registry import register
    from penstock.pipeline.build import build_loader
    from penstock.pipeline.commands.preview.show import preview
    from penstock.pipeline.config.composition import compose
    from penstock.pipeline.program import train

__all__ = ["build_loader", "compose", "preview", "register", "train"]

# Imported on first use: `--help` and a typo in a config must not wait for torch.
_HOMES = {
    "build_loader": "penstock.pipeline.build",
    "compose": "penstock.pipeline.config.composition",
    "preview": "penstock.pipeline.commands.preview.show",
    "register": "penstock.core.registry",
    "train": "penstock.pipeline.program",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
