"""``python -m pipeline pack``: copy a data set into one file that is quick to read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.registry import register


@register("settings", "pack")
@dataclass(frozen=True, slots=True, kw_only=True)
class PackSettings:
    """Where to pack to.

    Args:
        path: The folder to make; it gets ``train`` and ``val``. It must not exist.
        to: The storage to write.
    """

    path: str
    to: Literal["lmdb"] = "lmdb"


def run(config: dict[str, Any]) -> int:
    """Write both splits of ``dataset.storage`` as ``pack.to`` under ``pack.path``."""
    from datasets.storages.lmdb import write_lmdb
    from pipeline.build import build_settings, open_storage

    settings: PackSettings = build_settings(config["pack"])
    target = Path(settings.path)
    if target.exists():
        raise ValueError(f"pack.path: {target} exists already; name a folder that does not")
    for split in ("train", "val"):
        storage = open_storage(config, split)
        if not len(storage):
            print(f"{split}: no records, nothing written")
            continue
        start = time.perf_counter()
        destination = target / split
        write_lmdb(destination, storage)
        seconds = time.perf_counter() - start
        size = sum(file.stat().st_size for file in destination.rglob("*") if file.is_file())
        print(
            f"{split}: {len(storage):,} records, {size / 1e6:.1f} MB in {seconds:.1f} s "
            f"({len(storage) / seconds:,.0f} records/s) -> {destination}"
        )
    print(f"train on it: python train.py dataset={settings.to} dataset.storage.path={target}")
    return 0
