"""How it runs: configuration, samplers, collates, the loader and training.

From Python and notebooks::

    from pipeline import compose, build_loader

    config = compose(["dataset=lmdb", "loader.num_workers=2"])
    for batch in build_loader(config, split="train"):
        batch["image"]  # uint8 [B, H, W, C]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.build import build_loader
    from pipeline.config.compose import compose
    from pipeline.registry import register

__all__ = ["build_loader", "compose", "register"]

# Imported on first use: `--help` and a typo in a config must not wait for torch.
_HOMES = {
    "build_loader": "pipeline.build",
    "compose": "pipeline.config.compose",
    "register": "pipeline.registry",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
