"""Tiling a JPEG that is there: restart markers put in, every coefficient as it was.

libjpeg-turbo's ``jpegtran`` does it, a program of its own (Debian: ``libjpeg-turbo-progs``);
of the libraries for Python that are at hand none writes restart markers without encoding anew.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from typing import TYPE_CHECKING

from transforms.formats.jpeg import read_header
from transforms.formats.jpeg_pixels import decode_whole
from transforms.formats.jpeg_tiles import TILE_WIDTH, add_overviews, add_table

if TYPE_CHECKING:
    from transforms.formats.header import JpegScan

_TIMEOUT_S = 120


def find_jpegtran() -> str:
    """The program's path.

    Raises:
        ValueError: It is not on PATH.
    """
    path = shutil.which("jpegtran")
    if path is None:
        raise ValueError(
            "pack.tiled=lossless: no program jpegtran on PATH; install libjpeg-turbo-progs "
            "(Debian, Ubuntu) or libjpeg-turbo (conda, brew), or give pack.tiled=true"
        )
    return path


def tile_losslessly(
    data: bytes, *, jpegtran: str, overview_quality: int | None = None
) -> bytes | None:
    """Cut an image file into tiles of about 64 columns, or into rows of units.

    The pixels of the result are compared with those of the file.

    Args:
        data: The file.
        jpegtran: The program.
        overview_quality: JPEG quality of overviews behind the file; None: none.

    Returns:
        A baseline JPEG with a table of tiles, without metadata (colour profile, EXIF, comments);
        None for what is no JPEG of one or three components, or not upright.

    Raises:
        ValueError: The file is damaged, or the program fails.
    """
    import numpy as np

    if data[:3] != b"\xff\xd8\xff":
        return None
    header = read_header(data)
    if header.components not in (1, 3) or header.orientation != 1 or header.padding:
        return None
    # The units of a progressive file are seen once it is a baseline file.
    scan = header.scan or read_header(_transcode(data, jpegtran)).scan
    if scan is None:
        return None
    tiled = _transcode(data, jpegtran, "-restart", f"{tile_units(scan)}B")
    tiled = add_table(tiled)
    before = decode_whole(data, header, "RGB")
    if not np.array_equal(before, decode_whole(tiled, read_header(tiled), "RGB")):
        raise ValueError("its pixels differ after jpegtran; pack it with pack.tiled=true")
    if overview_quality is None:
        return tiled
    planes = before if header.components == 3 else before[..., :1]
    return add_overviews(tiled, planes, quality=overview_quality)


def tile_units(scan: JpegScan) -> int:
    """Units between two markers: what divides a row and is nearest to 64 columns, or the row."""
    units = -(-scan.width // scan.unit_width)
    wanted = TILE_WIDTH // scan.unit_width
    near = [n for n in range(wanted // 2, 2 * wanted + 1) if n and units % n == 0]
    return min(near, key=lambda n: abs(math.log(n / wanted)), default=units)


def _transcode(data: bytes, jpegtran: str, *options: str) -> bytes:
    done = subprocess.run(
        [jpegtran, "-copy", "none", "-optimize", *options],
        input=data,
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode or done.stderr:
        cause = done.stderr.decode(errors="replace").strip().replace("\n", "; ")
        raise ValueError(f"damaged JPEG: jpegtran says {cause or done.returncode!r}")
    return done.stdout
