"""``python -m pipeline pack``: copy a data set into one file that is quick to read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from pipeline.registry import register


@register("settings", "pack")
@dataclass(frozen=True, slots=True, kw_only=True)
class PackSettings:
    """Where to pack to.

    Args:
        path: The folder to make; it gets ``train`` and ``val``. It must not exist,
            or be empty.
        to: The storage to write.
        tiled: Encode images anew as tiled JPEG, of which a crop is decoded alone: 4:2:0, or
            grey. Images are turned upright first; alpha and what quality takes is lost.
        quality: JPEG quality of tiled images, 1 .. 100.
    """

    path: str
    to: Literal["lmdb"] = "lmdb"
    tiled: bool = False
    quality: Annotated[int, Ge(1), Le(100)] = 95


def run(config: dict[str, Any]) -> int:
    """Write both splits of ``dataset.storage`` as ``pack.to`` under ``pack.path``."""
    from datasets.storages.lmdb import write_lmdb
    from datasets.tiled_storage import TiledStorage
    from pipeline.build import build_settings, open_storage

    settings: PackSettings = build_settings(config["pack"])
    target = Path(settings.path)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ValueError(f"pack.path: {target} exists already; name a folder that does not")
    written = []
    for split in ("train", "val"):
        storage = open_storage(config, split)
        if not len(storage):
            print(f"{split}: no records, nothing written")
            continue
        if settings.tiled:
            storage = TiledStorage(storage, tiled_recode(config, settings.quality))
        start = time.perf_counter()
        destination = target / split
        write_lmdb(destination, storage)
        seconds = time.perf_counter() - start
        size = sum(file.stat().st_size for file in destination.rglob("*") if file.is_file())
        print(
            f"{split}: {len(storage):,} records, {size / 1e6:.1f} MB in {seconds:.1f} s "
            f"({len(storage) / seconds:,.0f} records/s) -> {destination}"
        )
        written.append(destination)
    # A folder of both splits is opened as one; a split alone by its own name.
    path, rest = (target, "") if len(written) > 1 else (written[0], " dataset.val_fraction=0")
    print(f"train on it: python train.py dataset={settings.to} dataset.storage.path={path}{rest}")
    return 0


def tiled_recode(config: dict[str, Any], quality: int) -> Callable[[bytes], bytes]:
    """How to encode an image file as tiled JPEG; decoded as the config says, but whole."""
    from pipeline.build import build
    from transforms.formats.jpeg_tiles import write_tiled
    from transforms.formats.sniff import read_header

    node = config["dataset"]["decode"]
    if node["_target_"] != "decode/image" or node["mode"] == "RGBA":
        raise ValueError(
            f"pack.tiled: expected dataset.decode=image with mode RGB or L, got {node}; "
            f"a tiled JPEG holds no alpha, leave pack.tiled out"
        )
    decode = build(node)

    def recode(data: bytes) -> bytes:
        image, header = decode.decode(data), read_header(data)
        if header.format == "JPEG" and header.components == 1:
            image = image[..., :1]  # decoded in colour, its planes are equal
        return write_tiled(image, quality=quality)

    return recode
