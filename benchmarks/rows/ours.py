"""Penstock, through the config that a user writes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rows import Work

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

LIBRARIES = ("penstock", "simplejpeg", "cv2")
DISTRIBUTIONS = ("simplejpeg", "opencv-python-headless", "torch")

_THREADS = ["loader=threads", "loader.num_workers={workers}"]
_PROCESSES = ["loader=processes", "loader.num_workers={workers}"]
_WHOLE = ["dataset.decode.region=whole"]

# Settings of `pack` by option; the other options read the files as they are.
PACKS: dict[str, list[str]] = {
    "tiled": ["pack.tiled=true"],
    "tiled_processes": ["pack.tiled=true"],
    "tiled_whole": ["pack.tiled=true"],
    "half_raw": ["pack.max_side=500", "pack.quality=90", "pack.raw=0.5"],
    "half_raw_processes": ["pack.max_side=500", "pack.quality=90", "pack.raw=0.5"],
    "half_raw_tiled": ["pack.max_side=500", "pack.quality=90", "pack.raw=0.5", "pack.tiled=true"],
    "raw": ["pack.max_side=500", "pack.raw=1"],
    "raw_processes": ["pack.max_side=500", "pack.raw=1"],
    "short_256": ["pack.short_side=256", "pack.quality=90"],
    "short_256_raw": ["pack.short_side=256", "pack.raw=1"],
}

# Settings of the loader by option; the other options use threads.
LOADERS: dict[str, list[str]] = {
    "processes": _PROCESSES,
    "tiled_processes": _PROCESSES,
    "half_raw_processes": _PROCESSES,
    "raw_processes": _PROCESSES,
    "torch": ["loader=torch", "loader.num_workers={workers}"],
    "whole": [*_THREADS, *_WHOLE],
    "tiled_whole": [*_THREADS, *_WHOLE],
}


def prepare(work: Work, option: str) -> None:
    """Write the photographs as `pack` does with the option's settings."""
    from penstock.pipeline.commands import pack
    from penstock.pipeline.config.compose import configure

    overrides = [*_files(work), f"pack.path={work.prepared}", *PACKS[option]]
    if pack.run(configure(overrides, command="pack")):
        raise SystemExit("pack failed")


def open_batches(work: Work, option: str) -> Callable[[], Iterator[Any]]:
    """Return a function that iterates once over a loader of the config."""
    from penstock import build_loader, compose

    loader = build_loader(compose(overrides_of(work, option)), "train")
    return lambda: iter(loader)


def overrides_of(work: Work, option: str) -> list[str]:
    """Return the overrides that a user would type after ``train.py``."""
    packed = ["dataset=lmdb", f"dataset.storage.path={work.prepared}/train"]
    return [
        *(packed if option in PACKS else _files(work)),
        "dataset.val_fraction=0",
        "augment=imagenet",
        f"augment.image_size={work.size}",
        *(text.format(workers=work.workers) for text in LOADERS.get(option, _THREADS)),
        f"loader.batch_size={work.batch_size}",
    ]


def _files(work: Work) -> list[str]:
    return [
        "dataset=image_folder",
        f"dataset.storage.path={work.photographs}",
        "dataset.storage.labels=null",
        "dataset.val_fraction=0",
    ]
