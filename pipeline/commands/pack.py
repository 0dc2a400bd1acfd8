"""``python -m pipeline pack``: copy a data set into one file that is quick to read."""

from __future__ import annotations

import functools
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from pipeline.registry import register

if TYPE_CHECKING:
    from datasets.protocols import Storage
    from transforms.recode import Recode


@register("settings", "pack")
@dataclass(frozen=True, slots=True, kw_only=True)
class PackSettings:
    """Where to pack to, and how images are prepared; by default files stay byte for byte.

    Images that are encoded anew are JPEG: 4:2:0, or grey; upright, without alpha or metadata.
    FFCV's usual preparation is ``max_side=500 quality=90 raw=0.5``.

    Args:
        path: The folder to make; it gets ``train`` and ``val``. It must not exist,
            or be empty.
        to: The form to write: a storage's name. ``writer.<argument>`` are its own arguments.
        max_side: Shrink images whose longer side has more pixels to it (area interpolation).
        short_side: The same for the shorter side.
        quality: Encode all images anew at this JPEG quality, 1 .. 100. Null: only those that
            another option changes, at 95.
        tiled: Write tiled JPEG, of which a crop is decoded alone. ``true`` encodes anew;
            ``lossless`` keeps the coefficients and so the pixels, by the program jpegtran, and
            leaves alone what is no upright JPEG of one or three components.
        overviews: Tiled files carry copies of 1/2, 1/4 and 1/8 of the size for decode=scaled,
            about a third more bytes; for photographs much larger than the crop.
        raw: Share of the images, 0 .. 1, spread evenly, that are stored as decoded pixels, in
            the mode of ``dataset.decode``: quickest to read, several times the bytes.
    """

    path: str
    to: str = "lmdb"
    max_side: Annotated[int, Ge(1)] | None = None
    short_side: Annotated[int, Ge(1)] | None = None
    quality: Annotated[int, Ge(1), Le(100)] | None = None
    tiled: bool | Literal["lossless"] = False
    overviews: bool = False
    raw: Annotated[float, Ge(0), Le(1)] = 0.0

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        shrinking = [name for name in ("max_side", "short_side") if getattr(self, name)]
        if len(shrinking) > 1:
            raise ValueError("pack: max_side and short_side both say the size; give one of them")
        if self.overviews and not self.tiled:
            raise ValueError("pack.overviews: only tiled files carry them; add pack.tiled=true")
        if self.tiled == "lossless":
            for name in (*shrinking, *(["quality"] if self.quality else [])):
                raise ValueError(
                    f"pack.tiled=lossless keeps every pixel, pack.{name} changes them; give "
                    f"pack.tiled=true, or leave {name} out"
                )
        if self.raw == 1:
            for name in ("quality", "tiled", "overviews"):
                if getattr(self, name):
                    raise ValueError(
                        f"pack.raw=1 writes no JPEG, so pack.{name} has no use; leave it out"
                    )

    @property
    def changes_images(self) -> bool:
        """Whether anything is asked for but a copy."""
        return bool(self.max_side or self.short_side or self.quality or self.tiled or self.raw)


def run(config: dict[str, Any]) -> int:
    """Write both splits of ``dataset.storage`` as ``pack.to`` under ``pack.path``."""
    from datasets.writing import write_storage
    from pipeline.build import build, build_settings, open_storage
    from pipeline.cores import usable_cores

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
        recode = make_recode(config, settings) if settings.changes_images else None
        start = time.perf_counter()
        destination = target / split
        summaries = write_storage(
            build(config["writer"]), destination, storage, recode=recode, threads=usable_cores()
        )
        seconds = time.perf_counter() - start
        print(
            f"{split}: {len(storage):,} records, {_size(storage)}{_written_bytes(destination)} in "
            f"{seconds:.1f} s ({len(storage) / seconds:,.0f} records/s) -> {destination}"
        )
        if recode is not None:
            counts = sum((Counter(summary.done) for summary in summaries), Counter[str]())
            parts = ", ".join(f"{count:,} {what}" for what, count in counts.most_common())
            print(f"  images: {parts or 'none'}")
        written.append(destination)
    # A folder of both splits is opened as one; a split alone by its own name.
    path, rest = (target, "") if len(written) > 1 else (written[0], " dataset.val_fraction=0")
    print(f"train on it: python train.py dataset={settings.to} dataset.storage.path={path}{rest}")
    return 0


def make_recode(config: dict[str, Any], settings: PackSettings) -> Recode:
    """How records are prepared; images are decoded as the config says, but whole.

    Raises:
        ValueError: The decoder does not go with the settings, or a program is missing.
    """
    from pipeline.build import build
    from transforms.formats.jpeg_lossless import find_jpegtran, tile_losslessly
    from transforms.recode import DEFAULT_QUALITY, Recode

    node = config["dataset"]["decode"]
    if node["_target_"] not in ("decode/image", "decode/scaled"):
        raise ValueError(
            f"pack: images are to be changed, but dataset/decode is {node['_target_']}, which "
            f"decodes none; give dataset/decode=image, or leave the options out"
        )
    encodes = settings.raw < 1 and (
        settings.max_side or settings.short_side or settings.quality or settings.tiled is True
    )
    if encodes and node["mode"] == "RGBA":
        raise ValueError(
            "pack: dataset.decode.mode=RGBA, but a JPEG holds no alpha; give mode RGB or L, or "
            "pack.raw=1"
        )
    tile = None
    if settings.tiled == "lossless":
        tile = functools.partial(
            tile_losslessly,
            jpegtran=find_jpegtran(),
            overview_quality=DEFAULT_QUALITY if settings.overviews else None,
        )
    return Recode(
        decode=build(node),
        max_side=settings.max_side,
        short_side=settings.short_side,
        quality=settings.quality,
        tiled=settings.tiled is True,
        overviews=settings.overviews,
        tile_losslessly=tile,
        raw=settings.raw,
    )


def _size(storage: Storage) -> str:
    """How large the records were, where their index says it."""
    if "size_bytes" not in storage.index.columns:
        return ""
    return f"{int(storage.index.column('size_bytes').sum(dtype='int64')) / 1e6:,.1f} MB as "


def _written_bytes(folder: Path) -> str:
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{size / 1e6:,.1f} MB"
