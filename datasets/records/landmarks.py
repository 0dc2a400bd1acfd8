"""Read landmarks from XML: named points of an object, in one order for all of a data set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

_MOST = 1 << 31


def parse_xml(text: bytes) -> ElementTree.Element:
    """Parse an XML file.

    Raises:
        ValueError: It is none, or declares what annotations have no use for.
    """
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        raise ValueError("declares a document type or entities, which annotations have no use for")
    try:
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, LookupError) as error:
        raise ValueError(f"is no XML: {error}") from None


def ordered_names(points: Iterable[ElementTree.Element]) -> list[str]:
    """The names of points, sorted, each once; numbers by their values."""
    names = {point.get("name", "") for point in points}
    numbers = all(map(str.isdecimal, names))
    return sorted(names, key=lambda name: (int(name) if numbers else 0, name))


def points_by_name(
    points: Iterable[ElementTree.Element], names: Sequence[str], *, first: float = 0.0
) -> list[tuple[float, float, float]]:
    """Read the points of an object, x, y and visibility for each of `names`.

    Args:
        points: Elements with ``name``, ``x``, ``y`` and, where a point may be hidden, ``visible``.
        names: Names in their order; one without an element has visibility 0.
        first: The number of the first pixel.

    Raises:
        ValueError: A name is unknown, or something is no number.
    """
    places = {name: place for place, name in enumerate(names)}
    found = [(0.0, 0.0, 0.0)] * len(names)
    for point in points:
        name = point.get("name", "")
        if name not in places:
            expected = ", ".join(names)
            raise ValueError(f"a {point.tag} is named {name!r}, expected one of {expected}")
        what = f"{point.tag} {name!r}"
        shown = "visible" not in point.keys() or number_of(point, "visible", what) > 0
        x, y = (number_of(point, axis, what) - first for axis in ("x", "y"))
        found[places[name]] = (x, y, 2.0 if shown else 1.0)
    return found


def number_of(element: ElementTree.Element, name: str, what: str) -> float:
    """Read an attribute that is a number, of an element that messages call `what`.

    Raises:
        ValueError: It is none.
    """
    text = element.get(name)
    try:
        number = float(text or "")
    except ValueError:
        number = float("nan")
    if not abs(number) < _MOST:
        raise ValueError(f"{what} has {name} {text!r}, expected a number")
    return number
