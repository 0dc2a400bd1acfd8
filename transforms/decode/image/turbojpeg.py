"""Decode regions of a JPEG by TurboJPEG 3 (libjpeg-turbo), if it is installed.

Pixels equal the pixels of the whole image, because TurboJPEG also decodes the context for
interpolation at the region's edges. Decoding releases the GIL.
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

from penstock.core.sample import Box

# Constants of turbojpeg.h.
_DECOMPRESS = 1
_STOP_ON_WARNING = 0
_FORMATS = {"RGB": 0, "L": 6, "RGBA": 7}


class _Region(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("x", "y", "w", "h")]


_HANDLE, _FILE, _INT = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_int
_ARGUMENTS = {
    "tj3Init": [_INT],
    "tj3Destroy": [_HANDLE],
    "tj3Set": [_HANDLE, _INT, _INT],
    "tj3DecompressHeader": [_HANDLE, *_FILE],
    "tj3SetCroppingRegion": [_HANDLE, _Region],
    "tj3Decompress8": [_HANDLE, *_FILE, ctypes.c_void_p, _INT, _INT],
}


class RegionDecoder:
    """Decode regions; raise OSError or AttributeError for a library older than TurboJPEG 3."""

    def __init__(self, path: str) -> None:
        self.path = path
        # Short calls keep the GIL, since releasing it takes longer than the calls.
        self._library = _declared(ctypes.PyDLL(path))
        self._decompress = _declared(ctypes.CDLL(path)).tj3Decompress8
        self._threads = threading.local()

    def decode(self, data: bytes, mode: str, box: Box) -> NDArray[np.uint8] | None:
        """Decode a region that begins at an MCU, uint8 [h, w, C]; None on error or warning."""
        if not hasattr(self._threads, "instance"):
            self._threads.instance = _Instance(self._library)
        handle, library = self._threads.instance.handle, self._library
        width, height = box[2] - box[0], box[3] - box[1]
        assert width > 0 and height > 0, "to the library, 0 means everything"
        channels = 1 if mode == "L" else len(mode)
        image = np.empty((height, width, channels), np.uint8)
        failed = (
            library.tj3DecompressHeader(handle, data, len(data))
            or library.tj3SetCroppingRegion(handle, _Region(box[0], box[1], width, height))
            or self._decompress(
                handle, data, len(data), image.ctypes.data, width * channels, _FORMATS[mode]
            )
        )
        if failed:
            # Some versions keep reading a file after an error in its header.
            del self._threads.instance
            return None
        return image


class _Instance:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._destroy = library.tj3Destroy
        self.handle = library.tj3Init(_DECOMPRESS)
        library.tj3Set(self.handle, _STOP_ON_WARNING, 1)

    def __del__(self) -> None:
        self._destroy(self.handle)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, arguments in _ARGUMENTS.items():
        getattr(library, name).argtypes = arguments
    library.tj3Init.restype = _HANDLE
    return library


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
    """Yield the places of the library: the wheel ``turbojpeg``, this environment, the system."""
    spec = importlib.util.find_spec("turbojpeg")
    if spec is not None and spec.origin is not None:
        wheel = Path(spec.origin).parent
        yield from map(str, [*wheel.glob("turbojpeg.libs/*"), *wheel.glob("*dylibs/*turbojpeg*")])
    name = "libturbojpeg.0.dylib" if sys.platform == "darwin" else "libturbojpeg.so.0"
    yield str(Path(sys.prefix, "lib", name))
    yield name


def _is_right(decoder: RegionDecoder) -> bool:
    """Return whether a decoder gives the same pixels as simplejpeg."""
    import simplejpeg

    pixels = (np.arange(48 * 80 * 3, dtype=np.uint32) * 2654435761 >> 24).astype(np.uint8)
    data = simplejpeg.encode_jpeg(pixels.reshape(48, 80, 3), 90, colorsubsampling="420")
    whole = simplejpeg.decode_jpeg(data)
    region = decoder.decode(data, "RGB", (16, 9, 70, 37))
    return region is not None and np.array_equal(region[:, 2:52], whole[9:37, 18:68])
