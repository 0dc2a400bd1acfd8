"""Decode regions of a JPEG by TurboJPEG 3 (libjpeg-turbo), if it is installed.

For rows above the region and columns beside it, TurboJPEG only reads the entropy data; it skips
the rows below. Decoding releases the GIL. Pixels equal the pixels of the whole image, because
TurboJPEG also decodes the context for interpolation at the region's edges.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# Places of the library: the wheel of `pip install turbojpeg`, this environment (conda), the
# system's folders, the folders of libjpeg-turbo's own packages.
_WHEEL = "turbojpeg"
_WHEEL_FOLDERS = ("turbojpeg.libs", ".dylibs", "turbojpeg.dylibs")
_FILES = {"darwin": "libturbojpeg.0.dylib"}
_FOLDERS = ("/opt/libjpeg-turbo/lib64", "/opt/libjpeg-turbo/lib", "/opt/homebrew/lib")

# Constants of turbojpeg.h.
_DECOMPRESS = 1
_STOP_ON_WARNING = 0
_FORMATS = {"RGB": 0, "L": 6, "RGBA": 7}


class _Region(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("x", "y", "w", "h")]


class _Scale(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("num", "denom")]


_SIGNATURES = {
    "tj3Init": (ctypes.c_void_p, [ctypes.c_int]),
    "tj3Destroy": (None, [ctypes.c_void_p]),
    "tj3Set": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]),
    "tj3DecompressHeader": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]),
    "tj3SetScalingFactor": (ctypes.c_int, [ctypes.c_void_p, _Scale]),
    "tj3SetCroppingRegion": (ctypes.c_int, [ctypes.c_void_p, _Region]),
    "tj3Decompress8": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p] + 2 * [ctypes.c_int],
    ),
}


class RegionDecoder:
    """Decode regions; every thread has its own instance of the C decoder.

    Raises:
        OSError: The library cannot be loaded.
        AttributeError: The library is older than TurboJPEG 3.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        # Short calls keep the GIL, since releasing it takes longer than the calls.
        self._library = ctypes.PyDLL(path)
        _declare(self._library)
        self._decompress = _declare(ctypes.CDLL(path)).tj3Decompress8
        self._threads = threading.local()

    def decode(
        self, data: bytes, mode: str, box: tuple[int, int, int, int], factor: int = 1
    ) -> NDArray[np.uint8] | None:
        """Decode a region of a baseline JPEG of one scan, uint8 [h, w, C].

        The box is in pixels of the image shrunk by a factor of 1, 2, 4 or 8, with x_min at the
        border of an MCU. The result is None if the decoder reports any error or warning.
        """
        decoder = self._mine()
        x_min, y_min, x_max, y_max = box
        width, height = x_max - x_min, y_max - y_min
        if width < 1 or height < 1:  # to the library, 0 means everything
            raise ValueError(f"region {box}, expected at least one pixel")
        channels = 1 if mode == "L" else len(mode)
        image = np.empty((height, width, channels), np.uint8)
        library = self._library
        failed = (
            library.tj3DecompressHeader(decoder, data, len(data))
            or library.tj3SetScalingFactor(decoder, _Scale(1, factor))
            or library.tj3SetCroppingRegion(decoder, _Region(x_min, y_min, width, height))
            or self._decompress(
                decoder, data, len(data), image.ctypes.data, width * channels, _FORMATS[mode]
            )
        )
        if failed:
            # Some versions keep reading a file after an error in its header.
            self._threads.instance = None
            return None
        return image

    def _mine(self) -> int:
        mine: _Instance | None = getattr(self._threads, "instance", None)
        if mine is None:
            mine = self._threads.instance = _Instance(self._library)
        return mine.handle


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class _Instance:
    """An instance of the C decoder, destroyed with its thread."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._destroy = library.tj3Destroy
        self.handle: int = library.tj3Init(_DECOMPRESS)
        if not self.handle:
            raise MemoryError("TurboJPEG: no memory for another decoder")
        library.tj3Set(self.handle, _STOP_ON_WARNING, 1)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._destroy(self.handle)


@functools.cache
def region_decoder() -> RegionDecoder | None:
    """Return a decoder with the first library that loads and decodes correctly, or None."""
    for path in _paths():
        try:
            decoder = RegionDecoder(path)
        except (OSError, AttributeError):
            continue
        if _is_right(decoder):
            return decoder
    return None


def _paths() -> Iterator[str]:
    spec = importlib.util.find_spec(_WHEEL)
    if spec is not None and spec.origin is not None:
        beside = Path(spec.origin).parent
        for folder in _WHEEL_FOLDERS:
            yield from map(str, sorted((beside / folder).glob("*turbojpeg*")))
    name = _FILES.get(sys.platform, "libturbojpeg.so.0")
    yield str(Path(sys.prefix, "lib", name))
    yield name
    yield from (str(Path(folder, name)) for folder in _FOLDERS)


def _is_right(decoder: RegionDecoder) -> bool:
    """Return whether a decoder gives the same pixels as simplejpeg."""
    import simplejpeg

    pixels = (np.arange(48 * 80 * 3, dtype=np.uint32) * 2654435761 >> 24).astype(np.uint8)
    data = simplejpeg.encode_jpeg(pixels.reshape(48, 80, 3), 90, colorsubsampling="420")
    whole = simplejpeg.decode_jpeg(data)
    region = decoder.decode(data, "RGB", (16, 9, 70, 37))
    return region is not None and np.array_equal(region[:, 2:52], whole[9:37, 18:68])
