"""Colours that tell classes apart, and what can be read on them."""

from __future__ import annotations

import colorsys

Colour = tuple[int, int, int]

# Paul Tol's "bright" and "vibrant" schemes, which the colour-blind can tell apart.
_FIRST: tuple[Colour, ...] = (
    (238, 102, 119), (68, 119, 170), (204, 187, 68), (34, 136, 51), (170, 51, 119),
    (102, 204, 238), (238, 119, 51), (0, 153, 136), (187, 187, 187), (51, 34, 136),
)  # fmt: skip
_GOLDEN = 0.618033988749895


def class_colour(number: int) -> Colour:
    """The colour of a class id, RGB: the same in every picture."""
    if 0 <= number < len(_FIRST):
        return _FIRST[number]
    # Hues a golden section apart stay far from their neighbours, however many there are.
    hue = number * _GOLDEN % 1
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.55 + 0.3 * (number % 2), 0.75 + 0.2 * (hue < 0.5))
    return round(red * 255), round(green * 255), round(blue * 255)


def ink_on(colour: Colour) -> Colour:
    """Black or white, whichever can be read on a colour (relative luminance, WCAG 2.2)."""
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (part / 255 for part in colour)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)


def hex_of(colour: Colour) -> str:
    """A colour as HTML writes it."""
    return "#{:02x}{:02x}{:02x}".format(*colour)
