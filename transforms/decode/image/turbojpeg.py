"""Regions of a JPEG by TurboJPEG 3 (libjpeg-turbo), where this machine has it.

Of the rows above a region it reads the entropy data and nothing else, of the columns beside it too,
and the rows below it does not touch. Its C functions are called by ctypes, which releases the
GIL. Pixels are those of the whole image: what is interpolated at the region's edges is decoded,
too.
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

# Where it may lie: in what `pip install turbojpeg` brings, in this environment (conda), in the
# machine's own folders, in those of libjpeg-turbo's own packages.
_WHEEL = "turbojpeg"
_WHEEL_FOLDERS = ("turbojpeg.libs", ".dylibs", "turbojpeg.dylibs")
_FILES = {"darwin": "libturbojpeg.0.dylib"}
_FOLDERS = ("/opt/libjpeg-turbo/lib64", "/opt/libjpeg-turbo/lib", "/opt/homebrew/lib")

# Of turbojpeg.h.
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
    """Decodes regions; every thread has an instance of the decoder to itself.

    Args:
        path: The shared library.

    Raises:
        OSError: It cannot be loaded.
        AttributeError: It is older than TurboJPEG 3.

    Attributes:
        path: The shared library.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        # Short calls keep the GIL: to give it away and wait for it takes longer than they do.
        self._library = ctypes.PyDLL(path)
        _declare(self._library)
        self._decompress = _declare(ctypes.CDLL(path)).tj3Decompress8
        self._threads = threading.local()

    def decode(
        self, data: bytes, mode: str, box: tuple[int, int, int, int], factor: int = 1
    ) -> NDArray[np.uint8] | None:
        """Decode a region.

        Args:
            data: A baseline JPEG of one scan.
            mode: ``RGB``, ``L`` or ``RGBA``.
            box: x_min, y_min, x_max, y_max, in pixels of the image made smaller; x_min at the
                border of an MCU.
            factor: By how much both sides are smaller: 1, 2, 4 or 8.

        Returns:
            uint8 [h, w, C]; None where the decoder complained, of whatever it was.

        Raises:
            ValueError: The box holds no pixel.
        """
        decoder = self._mine()
        x_min, y_min, x_max, y_max = box
        width, height = x_max - x_min, y_max - y_min
        if width < 1 or height < 1:  # to the library 0 is all that there is
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
            # Some versions stay amid the file whose header they could not read.
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
    """An instance of the decoder, given back with the thread that it belongs to."""

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
    """The first library that can be loaded and gives the right pixels; None without one."""
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
    """Whether it gives the pixels of the decoder that decodes whole images."""
    import simplejpeg

    pixels = (np.arange(48 * 80 * 3, dtype=np.uint32) * 2654435761 >> 24).astype(np.uint8)
    data = simplejpeg.encode_jpeg(pixels.reshape(48, 80, 3), 90, colorsubsampling="420")
    whole = simplejpeg.decode_jpeg(data)
    region = decoder.decode(data, "RGB", (16, 9, 70, 37))
    return region is not None and np.array_equal(region[:, 2:52], whole[9:37, 18:68])
