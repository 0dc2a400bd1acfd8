"""Penstock, through the config that a user writes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rows import Work

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

LIBRARIES = ("pipeline", "simplejpeg", "albumentations")
DISTRIBUTIONS = ("simplejpeg", "albumentations", "torch")

# Overrides by option; those of a packed option come after `pack`'s.
LOADERS: dict[str, list[str]] = {
    "threads": ["loader=ring", "loader.processes=0"],
    "processes": ["loader=ring", "loader.processes={workers}"],
    "torch": ["loader=torch"],
    "whole": ["loader=ring", "loader.processes=0", "dataset.decode.region=whole"],
    "tiled": ["loader=ring", "loader.processes=0"],
    "tiled_whole": ["loader=ring", "loader.processes=0", "dataset.decode.region=whole"],
}
PACKS: dict[str, list[str]] = {
    "tiled": ["pack.tiled=true"],
    "tiled_whole": ["pack.tiled=true"],
}


def prepare(work: Work, option: str) -> None:
    """Write the photographs as `pack` does with the option's settings."""
    from pipeline.commands import pack
    from pipeline.config.command_line import configure

    overrides = [*_files(work), f"pack.path={work.prepared}", *PACKS[option]]
    if pack.run(configure(overrides, command="pack")):
        raise SystemExit("pack failed")


def open_batches(work: Work, option: str) -> Callable[[], Iterator[Any]]:
    """A loader of the config; an epoch is an iteration over it."""
    from pipeline import build_loader, compose

    # The start method of processes imports this module's package again.
    loader = build_loader(compose(overrides_of(work, option)), "train")
    return lambda: iter(loader)


def overrides_of(work: Work, option: str) -> list[str]:
    """What a user would type behind ``train.py``."""
    packed = ["dataset=lmdb", f"dataset.storage.path={work.prepared}/train"]
    return [
        *(packed if option in PACKS else _files(work)),
        "dataset.val_fraction=0",
        "augment=imagenet",
        f"augment.image_size={work.size}",
        *(text.format(workers=work.workers) for text in LOADERS[option]),
        f"loader.num_workers={work.workers}",
        f"loader.batch_size={work.batch_size}",
    ]


def _files(work: Work) -> list[str]:
    return [
        "dataset=image_folder",
        f"dataset.storage.path={work.photographs}",
        "dataset.storage.labels=null",
        "dataset.val_fraction=0",
    ]
