"""How records are prepared on their way, by the settings of packing."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.commands.pack import PackSettings
    from transforms.recode import Recode


def make_recode(config: dict[str, Any], settings: PackSettings) -> Recode:
    """How records are prepared; images are decoded as the config says, but whole.

    Raises:
        ValueError: The decoder does not go with the settings, or a program is missing.
    """
    from pipeline.config.objects import build
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
