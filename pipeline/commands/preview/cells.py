"""What a preview is made of: rows of cells, each a picture with lines of text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline.commands.preview.palette import Colour

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Legend = dict[str, Colour]
"""Colours by what they stand for."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A column of a table, in one row.

    Attributes:
        name: The column.
        value: What stands there.
        is_gap: The record has no value there.
    """

    name: str
    value: str
    is_gap: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """One look at one sample.

    Attributes:
        title: ``original`` or the epoch.
        picture: uint8 [H, W, 3], RGB; None where there is nothing to be drawn.
        lines: What is said below it.
        entries: Columns of a table, below the lines.
        legend: The classes that are drawn.
        points: The keypoints that are drawn, by name.
        fault: Why there is no sample.
    """

    title: str
    picture: NDArray[np.uint8] | None = None
    lines: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = ()
    legend: Legend = field(default_factory=dict)
    points: Legend = field(default_factory=dict)
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One record: the original, and what epochs make of it.

    Attributes:
        key: The record's name in its storage.
        position: Where it stands in the epoch.
        cells: The looks at it.
    """

    key: str
    position: int
    cells: tuple[Cell, ...]
