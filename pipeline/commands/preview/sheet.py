"""The preview as one picture: the grid of cells, and the charts below it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.commands.preview.cells import Cell, Row
from pipeline.commands.preview.charts import TEXT, WIDTH, Box, Chart
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
_LEAST_COLUMN = 150
_FAULT_LINES, _MOST_LINES = 8, 12


def draw_sheet(
    heading: str, notes: Sequence[str], rows: Sequence[Row], charts: Sequence[Chart]
) -> NDArray[np.uint8]:
    """Draw everything on white, uint8 [H, W, 3], RGB.

    A row of cells for each sample, columns as wide as their widest picture, and the charts in as
    many columns as fit below.
    """
    widths = [
        max(_LEAST_COLUMN, *(_width(row.cells[i]) for row in rows))
        for i in range(max(len(row.cells) for row in rows))
    ]
    grid_width = sum(widths) + GAP * (len(widths) - 1)
    across = max(1, (grid_width + GAP) // (WIDTH + GAP))
    width = 2 * MARGIN + max(grid_width, WIDTH)
    heights = [line_height(TEXT) + 8 + max(map(_height, row.cells, widths)) for row in rows]
    lines = [line for note in notes for line in wrapped(note, TEXT, width - 2 * MARGIN, 3)]
    top = MARGIN + line_height(_HEADING) + 6 + len(lines) * line_height(TEXT) + GAP
    chart_rows = [charts[i : i + across] for i in range(0, len(charts), across)]
    below = sum(GAP + round(max(chart.height for chart in line)) for line in chart_rows)
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
    for line in chart_rows:
        for number, chart in enumerate(line):
            _draw_chart(sheet, MARGIN + number * (WIDTH + GAP), y, chart)
        y += GAP + round(max(chart.height for chart in line))
    return sheet


def _width(cell: Cell) -> int:
    return 0 if cell.picture is None else cell.picture.shape[1]


def _height(cell: Cell, width: int) -> int:
    picture = 0 if cell.picture is None else cell.picture.shape[0] + 4
    return picture + len(_texts(cell, width)) * line_height(TEXT) + 4


def _texts(cell: Cell, width: int) -> list[tuple[str, Colour, Colour | None]]:
    """Lines below a cell's picture: the text, its colour, and a swatch's."""
    found: list[tuple[str, Colour, Colour | None]] = [(cell.title, _FAINT, None)]
    if cell.fault:
        lines = ["bad sample:", *wrapped(cell.fault, TEXT, width, _FAULT_LINES)]
        return found + [(line, _FAULT, None) for line in lines]
    found += [(cut(line, TEXT, width), _INK, None) for line in cell.lines[:_MOST_LINES]]
    room = width - _SWATCH - 6
    legend = list(cell.legend.items())
    found += [(cut(name, TEXT, room), _INK, colour) for name, colour in legend[:_MOST_LINES]]
    if len(legend) > _MOST_LINES:
        found.append((f"… and {len(legend) - _MOST_LINES} more classes", _FAINT, None))
    return found


def _draw_cell(sheet: NDArray[np.uint8], x: int, y: int, cell: Cell, width: int) -> None:
    if cell.picture is not None:
        height, across = cell.picture.shape[:2]
        sheet[y : y + height, x : x + across] = cell.picture
        y += height + 4
    for text, colour, swatch in _texts(cell, width):
        left = x
        if swatch is not None:
            sheet[y + 3 : y + 3 + _SWATCH, x : x + _SWATCH] = swatch
            left += _SWATCH + 6
        draw_text(sheet, left, y, text, TEXT, colour)
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
