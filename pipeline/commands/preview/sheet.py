"""The preview as one picture: the grid of cells, and the charts below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.commands.preview.cells import Cell, Entry, Row
from pipeline.commands.preview.charts import PAD, TEXT, WIDTH, Box, Chart
from pipeline.commands.preview.lettering import (
    cut,
    draw_text,
    line_height,
    width_of,
    wrapped,
)
from pipeline.commands.preview.palette import Colour

MARGIN, GAP = 24, 20
_PAPER: Colour = (255, 255, 255)
_INK: Colour = (26, 28, 32)
_FAINT: Colour = (104, 110, 120)
_FAULT: Colour = (176, 30, 30)
_RULE: Colour = (226, 228, 232)
_COLOURS: dict[str, Colour] = {
    "ink": _INK,
    "faint": _FAINT,
    "grid": _RULE,
    "first": (68, 119, 170),
    "second": (238, 119, 51),
}
_HEADING, _SWATCH = 16, 10
_ROUND = np.hypot(*np.mgrid[0.5:_SWATCH, 0.5:_SWATCH] - _SWATCH / 2) <= _SWATCH / 2
_LEAST_COLUMN, _TEXT_COLUMN = 150, 256
_FAULT_LINES, _LINE_LINES, _MOST_LINES = 8, 4, 14


def draw_sheet(
    heading: str, notes: Sequence[str], rows: Sequence[Row], charts: Sequence[Chart]
) -> NDArray[np.uint8]:
    """Draw everything on white, uint8 [H, W, 3], RGB.

    A row of cells for each sample, columns as wide as their widest picture, and the charts in as
    many columns as fit below.
    """
    widths = [
        max(_width(row.cells[i]) for row in rows)
        for i in range(max(len(row.cells) for row in rows))
    ]
    grid_width = sum(widths) + GAP * (len(widths) - 1)
    across = max(1, min(len(charts), 2), (grid_width + GAP) // (WIDTH + GAP))
    width = 2 * MARGIN + max(grid_width, across * (WIDTH + GAP) - GAP)
    heights = [line_height(TEXT) + 8 + max(map(_height, row.cells, widths)) for row in rows]
    lines = [line for note in notes for line in wrapped(note, TEXT, width - 2 * MARGIN, 3)]
    top = MARGIN + line_height(_HEADING) + 6 + len(lines) * line_height(TEXT) + GAP
    chart_rows = [charts[i : i + across] for i in range(0, len(charts), across)]
    below = sum(GAP + round(max(chart.height for chart in beside)) for beside in chart_rows)
    grid = sum(heights) + GAP * len(heights)
    sheet = np.full((top + grid + below + MARGIN, width, 3), _PAPER, np.uint8)
    heading = cut(heading, _HEADING, width - 2 * MARGIN)
    draw_text(sheet, MARGIN, MARGIN, heading, _HEADING, _INK)
    for number, line in enumerate(lines):
        y = MARGIN + line_height(_HEADING) + 6 + number * line_height(TEXT)
        draw_text(sheet, MARGIN, y, line, TEXT, _FAINT)
    y = top
    for row, height in zip(rows, heights, strict=True):
        sheet[y - 6, MARGIN:-MARGIN] = _RULE
        text = cut(f"{row.key} · position {row.position}", TEXT, width - 2 * MARGIN)
        draw_text(sheet, MARGIN, y, text, TEXT, _FAINT)
        x = MARGIN
        for cell, column in zip(row.cells, widths, strict=False):
            _draw_cell(sheet, x, y + line_height(TEXT) + 8, cell, column)
            x += column + GAP
        y += height + GAP
    for beside in chart_rows:
        for number, chart in enumerate(beside):
            _draw_chart(sheet, MARGIN - PAD + number * (WIDTH + GAP), y, chart)
        y += GAP + round(max(chart.height for chart in beside))
    return sheet


def _width(cell: Cell) -> int:
    """What a cell's picture takes, or its text where it has none."""
    if cell.picture is not None:
        return max(cell.picture.shape[1], _LEAST_COLUMN)
    return _TEXT_COLUMN if cell.lines or cell.entries else _LEAST_COLUMN


def _height(cell: Cell, width: int) -> int:
    picture = 0 if cell.picture is None else cell.picture.shape[0] + 4
    return picture + len(_lines(cell, width)) * line_height(TEXT) + 4


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a line: a text, behind a swatch if it says what a colour stands for."""

    x: int
    text: str
    colour: Colour
    swatch: Colour | None = None
    is_round: bool = False


def _lines(cell: Cell, width: int) -> list[list[_Piece]]:
    """What stands below a cell's picture."""
    found = [[_Piece(0, cut(cell.title, TEXT, width), _FAINT)]]
    if cell.fault:
        told = ["bad sample:", *wrapped(cell.fault, TEXT, width, _FAULT_LINES)]
        return found + [[_Piece(0, line, _FAULT)] for line in told]
    for line in cell.lines[:_MOST_LINES]:
        found += [[_Piece(0, part, _INK)] for part in wrapped(line, TEXT, width, _LINE_LINES)]
    found += [_entry(entry, width) for entry in cell.entries]
    return found + _legend(cell, width)


def _entry(entry: Entry, width: int) -> list[_Piece]:
    """A column's name and its value beside it."""
    middle = round(width * 0.42)
    name = cut(entry.name, TEXT, (middle if entry.value else width) - 8)
    value = cut(entry.value, TEXT, width - middle)
    return [_Piece(0, name, _FAINT), _Piece(middle, value, _FAULT if entry.is_gap else _INK)]


def _legend(cell: Cell, width: int) -> list[list[_Piece]]:
    """Lines of what colours stand for, those of points below those of classes."""
    lines: list[list[_Piece]] = []
    for legend, is_round in ((cell.legend, False), (cell.points, True)):
        x = width
        for name, colour in legend.items():
            text = cut(name, TEXT, width - _SWATCH - 6)
            taken = _SWATCH + 6 + width_of(text, TEXT)
            if x + taken > width:
                lines.append([])
                x = 0
            lines[-1].append(_Piece(x, text, _INK, colour, is_round))
            x += taken + 12
    return lines


def _draw_cell(sheet: NDArray[np.uint8], x: int, y: int, cell: Cell, width: int) -> None:
    if cell.picture is not None:
        height, across = cell.picture.shape[:2]
        sheet[y : y + height, x : x + across] = cell.picture
        y += height + 4
    for line in _lines(cell, width):
        for piece in line:
            left = x + piece.x
            if piece.swatch is not None:
                swatch = sheet[y + 3 : y + 3 + _SWATCH, left : left + _SWATCH]
                swatch[_ROUND if piece.is_round else slice(None)] = piece.swatch
                left += _SWATCH + 6
            draw_text(sheet, left, y, piece.text, TEXT, piece.colour)
        y += line_height(TEXT)


def _draw_chart(sheet: NDArray[np.uint8], left: int, top: int, chart: Chart) -> None:
    for shape in chart.shapes:
        x, y = left + round(shape.x), top + round(shape.y)
        if isinstance(shape, Box):
            right, bottom = left + shape.x + shape.width, top + shape.y + shape.height
            sheet[y : max(round(bottom), y), x : max(round(right), x)] = _COLOURS[shape.role]
            continue
        text = cut(shape.text, TEXT, round(shape.room))
        back = {"start": 0.0, "middle": 0.5, "end": 1.0}[shape.anchor]
        draw_text(
            sheet, x - round(back * width_of(text, TEXT)), y, text, TEXT, _COLOURS[shape.role]
        )
