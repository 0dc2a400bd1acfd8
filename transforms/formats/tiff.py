"""TIFF headers (TIFF 6.0, section 2, and BigTIFF): the first image of the file."""

from __future__ import annotations

import struct

from transforms.formats.header import Header

_WIDTH, _HEIGHT, _PHOTOMETRIC, _ORIENTATION, _SAMPLES = 256, 257, 262, 274, 277
_EXTRA_SAMPLES, _ASSOCIATED, _UNASSOCIATED = 338, 1, 2
_OFFSETS, _SIZES = (273, 324), (279, 325)  # of strips, of tiles
_CODES = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q"}  # BYTE, SHORT, LONG, IFD, LONG8
_PHOTOMETRICS = {0, 1, 2, 3, 5, 6}  # grey (both ways), RGB, palette, CMYK, YCbCr


def read_header(data: bytes) -> Header:
    """Read the first directory and check that every strip or tile is there.

    Args:
        data: A file that begins with ``II*``, ``MM.*`` or their BigTIFF forms.

    Raises:
        ValueError: The file is cut short, makes no sense, or has colours we do not read.
    """
    try:
        order, values, places = _read_directory(data)
    except struct.error:
        raise ValueError("truncated TIFF: it ends within its directory") from None
    if _WIDTH not in values or _HEIGHT not in values:
        raise ValueError("damaged TIFF: no width or height in its directory")
    for offsets, sizes in zip(_OFFSETS, _SIZES, strict=True):
        pairs = zip(values.get(offsets, ()), values.get(sizes, ()), strict=False)
        end = max((offset + size for offset, size in pairs), default=0)
        if end > len(data):
            raise ValueError(f"truncated TIFF: {len(data)} bytes, its pixels reach to {end}")
    photometric = values.get(_PHOTOMETRIC, (1,))[0]
    if photometric not in _PHOTOMETRICS:
        raise ValueError(
            f"TIFF with photometric interpretation {photometric} is not supported; "
            f"convert it to RGB or grey"
        )
    orientation = values.get(_ORIENTATION, (1,))[0]
    return Header(
        "TIFF",
        values[_WIDTH][0],
        values[_HEIGHT][0],
        values.get(_SAMPLES, (1,))[0],
        orientation if 1 <= orientation <= 8 else 1,
        _patches(order, values, places),
    )


def _patches(
    order: str, values: dict[int, tuple[int, ...]], places: dict[int, int]
) -> tuple[tuple[int, bytes], ...]:
    """What keeps libtiff from turning the image and from multiplying its colours by alpha."""
    upright = struct.pack(f"{order}H", 1)
    associated = struct.pack(f"{order}H", _ASSOCIATED)
    patches = []
    if values.get(_ORIENTATION, (1,)) != (1,):
        patches.append((places[_ORIENTATION], upright))
    if values.get(_EXTRA_SAMPLES) == (_UNASSOCIATED,):
        patches.append((places[_EXTRA_SAMPLES], associated))
    return tuple(patches)


def _read_directory(data: bytes) -> tuple[str, dict[int, tuple[int, ...]], dict[int, int]]:
    """Byte order, whole-number values by tag, and the offset of each tag's value."""
    order = "<" if data[:2] == b"II" else ">"
    (version,) = struct.unpack_from(f"{order}H", data, 2)
    big = version == 43
    word, step, inline = ("Q", 20, 8) if big else ("I", 12, 4)
    (directory,) = struct.unpack_from(f"{order}{word}", data, 8 if big else 4)
    (count,) = struct.unpack_from(f"{order}{'Q' if big else 'H'}", data, directory)
    first = directory + (8 if big else 2)
    values: dict[int, tuple[int, ...]] = {}
    places: dict[int, int] = {}
    for entry in range(first, first + step * min(count, 4096), step):
        tag, kind, length = struct.unpack_from(f"{order}HH{word}", data, entry)
        code = _CODES.get(kind)
        if code is None or length == 0:
            continue
        place = entry + step - inline
        if length * struct.calcsize(f"={code}") > inline:
            (place,) = struct.unpack_from(f"{order}{word}", data, place)
        if place + length > len(data):  # also keeps a damaged length from asking for gigabytes
            raise struct.error
        values[tag] = struct.unpack_from(f"{order}{length}{code}", data, place)
        places[tag] = place
    return order, values, places
