"""Text on pixels: DejaVu Sans where matplotlib brings it, else OpenCV's ASCII strokes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.commands.preview.palette import Colour

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STROKE_SCALE = 0.034  # of OpenCV's plain strokes, so that capitals are as high as DejaVu's
_LINE = 1.3


def has_font() -> bool:
    """Whether there is a font with letters of other scripts than the Latin one."""
    return _font_file() is not None


@functools.cache
def _font_file() -> Path | None:
    try:
        import matplotlib
        import PIL.ImageFont  # noqa: F401 - whether it is there
    except ImportError:
        return None
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"


def line_height(size: int) -> int:
    """Pixels from one line of text to the next."""
    return round(size * _LINE)


def width_of(text: str, size: int) -> int:
    """Pixels that a line of text takes."""
    return _alpha(_printable(text), size).shape[1]


def cut(text: str, size: int, width: int) -> str:
    """A text with as much of its end replaced by an ellipsis as makes it fit into `width`."""
    text = _printable(text[: max(width, 1)])  # no letter is narrower than a pixel
    if width_of(text, size) <= width:
        return text
    dots = "…" if has_font() else ".."
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        fits = width_of(text[:middle] + dots, size) <= width
        low, high = (middle, high) if fits else (low, middle - 1)
    return text[:low].rstrip() + dots


def wrapped(text: str, size: int, width: int, lines: int) -> list[str]:
    """A text in at most `lines` lines that fit into `width`, broken between words."""
    found: list[str] = []
    words = _printable(text).split(" ")
    while words and len(found) < lines - 1:
        count = len(words)
        while count > 1 and width_of(" ".join(words[:count]), size) > width:
            count -= 1
        found.append(cut(" ".join(words[:count]), size, width))
        words = words[count:]
    if words:
        found.append(cut(" ".join(words), size, width))
    return found


def draw_text(
    canvas: NDArray[np.uint8], x: int, y: int, text: str, size: int, colour: Colour
) -> None:
    """Write a line; `x`, `y` is its upper left corner, and what leaves the canvas is left away."""
    alpha = _alpha(_printable(text), size)
    top, left = max(y, 0), max(x, 0)
    alpha = alpha[top - y : canvas.shape[0] - y, left - x : canvas.shape[1] - x]
    if not alpha.size:
        return
    part = canvas[top : top + alpha.shape[0], left : left + alpha.shape[1]]
    mixed = part + (np.array(colour) - part) * alpha[:, :, None]
    part[...] = np.rint(mixed).astype(np.uint8)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


@functools.lru_cache(maxsize=4096)
def _alpha(text: str, size: int) -> NDArray[np.float32]:
    """How much ink a line of text leaves, float32 [line_height, width], 0..1."""
    file = _font_file()
    if not text:
        return np.zeros((line_height(size), 0), np.float32)
    ink = _strokes(text, size) if file is None else _letters(text, size, str(file))
    alpha = ink.astype(np.float32)
    alpha /= 255
    alpha.setflags(write=False)
    return alpha


def _letters(text: str, size: int, file: str) -> NDArray[np.uint8]:
    from PIL import Image, ImageDraw

    font: Any = _font(file, size)
    image = Image.new("L", (max(1, round(font.getlength(text))), line_height(size)))
    ImageDraw.Draw(image).text((0, line_height(size) * 0.76), text, 255, font=font, anchor="ls")
    return np.array(image)


@functools.cache
def _font(file: str, size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.truetype(file, size, layout_engine=ImageFont.Layout.BASIC)


def _strokes(text: str, size: int) -> NDArray[np.uint8]:
    import cv2

    plain = text.replace("×", "x").replace("·", "-").replace("–", "-")
    plain = plain.encode("ascii", "replace").decode()
    scale, face = size * _STROKE_SCALE, cv2.FONT_HERSHEY_SIMPLEX
    (width, _), _ = cv2.getTextSize(plain, face, scale, 1)
    ink = np.zeros((line_height(size), width + 1), np.uint8)
    cv2.putText(ink, plain, (0, round(size * 1.0)), face, scale, 255, 1, cv2.LINE_AA)
    return ink
