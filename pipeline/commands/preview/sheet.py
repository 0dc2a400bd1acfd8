"""The preview as one picture: the grid of cells, and the charts below it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.commands.preview.cells import Cell, Row
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
    return 0 if cell.picture is None else cell.picture.shape[1]


def _height(cell: Cell, width: int) -> int:
    picture = 0 if cell.picture is None else cell.picture.shape[0] + 4
    lines = len(_texts(cell, width)) + len(_legend(cell, width))
    return picture + lines * line_height(TEXT) + 4


def _texts(cell: Cell, width: int) -> list[tuple[str, Colour]]:
    """Lines below a cell's picture, and their colours."""
    found = [(cell.title, _FAINT)]
    if cell.fault:
        lines = ["bad sample:", *wrapped(cell.fault, TEXT, width, _FAULT_LINES)]
        return found + [(line, _FAULT) for line in lines]
    return found + [(cut(line, TEXT, width), _INK) for line in cell.lines[:_MOST_LINES]]


def _legend(cell: Cell, width: int) -> list[list[tuple[int, str, Colour]]]:
    """Lines of what colours stand for: where each begins, its name, its colour."""
    lines: list[list[tuple[int, str, Colour]]] = []
    x = width
    for name, colour in cell.legend.items():
        text = cut(name, TEXT, width - _SWATCH - 6)
        taken = _SWATCH + 6 + width_of(text, TEXT)
        if x + taken > width:
            lines.append([])
            x = 0
        lines[-1].append((x, text, colour))
        x += taken + 12
    return lines


def _draw_cell(sheet: NDArray[np.uint8], x: int, y: int, cell: Cell, width: int) -> None:
    if cell.picture is not None:
        height, across = cell.picture.shape[:2]
        sheet[y : y + height, x : x + across] = cell.picture
        y += height + 4
    for text, colour in _texts(cell, width):
        draw_text(sheet, x, y, text, TEXT, colour)
        y += line_height(TEXT)
    for line in _legend(cell, width):
        for start, text, colour in line:
            left = x + start
            sheet[y + 3 : y + 3 + _SWATCH, left : left + _SWATCH] = colour
            draw_text(sheet, left + _SWATCH + 6, y, text, TEXT, _INK)
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
