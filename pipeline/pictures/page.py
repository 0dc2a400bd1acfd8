"""Write the preview as one picture, and as one HTML page that needs nothing else."""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from penstock.pipeline.pictures.picture import Cell, Legend, Row, font

HTML_MARK = "<!-- a preview by penstock -->"
MARGIN, GAP = 24, 20
_INK, _FAINT, _FAULT = "#1a1c20", "#686e78", "#b01e1e"
_HEADING, _TEXT, _SWATCH = 16, 12, 10
_MONO = "DejaVuSansMono"
_LEAST_COLUMN, _TEXT_COLUMN = 150, 256
_MOST_WIDTH = 1800  # that samples side by side take
_FAULT_LINES, _LINE_LINES = 8, 4

Picture = NDArray[np.uint8]
"""uint8 [H, W, 3], RGB."""


def as_png(picture: Picture, *, software: str | None = None) -> bytes:
    """Encode a picture as a PNG that says what made it."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    about, content = PngInfo(), io.BytesIO()
    if software is not None:
        about.add_text("Software", software)
    Image.fromarray(picture).save(content, "PNG", pnginfo=about, compress_level=3)
    return content.getvalue()


def draw_sheet(
    heading: str, notes: Sequence[str], rows: Sequence[Row], charts: Mapping[str, Picture]
) -> Picture:
    """Draw everything on white.

    What the colours stand for; a row of cells for each sample, columns as wide as their widest
    picture, as many side by side as fit; and the charts, by title, below.
    """
    widths = [max(map(_width, column)) for column in zip(*(r.cells for r in rows), strict=True)]
    samples = []
    for row in rows:
        cells = [_drawn(cell, column) for cell, column in zip(row.cells, widths, strict=True)]
        drawn = _joined(cells, GAP, axis=1)
        title = _text([row.title], drawn.shape[1], 1, colour=_FAINT)
        samples.append(_joined([title, drawn], 8, axis=0))
    beside = _grid(samples, 2 * GAP, _MOST_WIDTH)
    plots = _grid(list(charts.values()), GAP, beside[0].shape[1])
    width = max(part.shape[1] for part in (*beside, *plots))
    parts = [_text([heading], width, 1, size=_HEADING), _text(notes, width, 3, colour=_FAINT)]
    swatches = []
    for name, colour in _legend_of(rows).items():
        swatch = _padded(np.full((_SWATCH, _SWATCH, 3), colour, np.uint8), 3, 6, 3, 0)
        room = min(width - swatch.shape[1], int(font(_TEXT, _MONO).getlength(name)) + 1)
        swatches.append(_joined([swatch, _text([name], room, 1)], 0, axis=1))
    parts.append(_joined(_grid(swatches, _SWATCH, width), 0, axis=0))
    for samples_beside in beside:
        parts += [np.full((1, width, 3), 226, np.uint8), samples_beside]
    return _padded(_joined([*parts, *plots], 8, axis=0), MARGIN, MARGIN, MARGIN, MARGIN)


def _grid(pictures: Sequence[Picture], gap: int, width: int) -> list[Picture]:
    """Put pictures into rows of as many as fit, in columns of one width."""
    widest = max((picture.shape[1] for picture in pictures), default=0)
    across = max(1, (width + gap) // (widest + gap))
    wide = [_padded(picture, 0, widest - picture.shape[1], 0, 0) for picture in pictures]
    return [_joined(wide[i : i + across], gap, axis=1) for i in range(0, len(wide), across)]


def _width(cell: Cell) -> int:
    """Measure a cell's picture, or its text where it has none."""
    if cell.picture is not None:
        return max(cell.picture.shape[1], _LEAST_COLUMN)
    return _TEXT_COLUMN if cell.lines else _LEAST_COLUMN


def _drawn(cell: Cell, width: int) -> Picture:
    """Draw a cell: its picture, and what is said below it."""
    fault = [f"bad sample: {cell.fault}"] if cell.fault else []
    parts = [
        *([cell.picture] if cell.picture is not None else []),
        _text([cell.title], width, 1, colour=_FAINT),
        _text(cell.lines, width, _LINE_LINES),
        _text(fault, width, _FAULT_LINES, colour=_FAULT),
    ]
    drawn = _joined(parts, 2, axis=0)
    return _padded(drawn, 0, width - drawn.shape[1], 0, 0)


def _text(
    texts: Sequence[str], width: int, lines: int, *, size: int = _TEXT, colour: str = _INK
) -> Picture:
    """Write texts, each in at most so many lines, broken between words."""
    from PIL import Image, ImageDraw

    letters = font(size, _MONO if size == _TEXT else f"{_MONO}-Bold")
    room = max(int(width / letters.getlength("x")), 2)
    told: list[str] = []
    for text in texts:
        wrapped = textwrap.wrap("".join(c if c.isprintable() else " " for c in text), room)
        told += wrapped[:lines]
        if len(wrapped) > lines:
            told[-1] = told[-1][: room - 1] + "…"
    image = Image.new("RGB", (width, round(size * 4 / 3) * len(told)), "white")
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(told):
        draw.text((0, number * round(size * 4 / 3)), line, colour, letters)
    return np.asarray(image)


def _legend_of(rows: Sequence[Row]) -> Legend:
    """Gather what the colours of all pictures stand for."""
    cells = (cell for row in rows for cell in row.cells)
    return {name: colour for cell in cells for name, colour in cell.legend.items()}


def _joined(pictures: Sequence[Picture], gap: int, *, axis: int) -> Picture:
    """Put pictures below (axis 0) or beside (axis 1) one another; empty ones are left out."""
    some = [picture for picture in pictures if picture.size]
    if not some:
        return np.zeros((0, 0, 3), np.uint8)
    other = max(picture.shape[1 - axis] for picture in some)
    filled = []
    for number, picture in enumerate(some):
        after = gap if number < len(some) - 1 else 0
        missing = other - picture.shape[1 - axis]
        below, right = (after, missing) if axis == 0 else (missing, after)
        filled.append(_padded(picture, 0, right, below, 0))
    return np.concatenate(filled, axis)


def _padded(picture: Picture, top: int, right: int, bottom: int, left: int) -> Picture:
    return np.pad(picture, ((top, bottom), (left, right), (0, 0)), constant_values=255)


_STYLE = """
:root { color-scheme: light dark; }
* { box-sizing: border-box; }
body { margin: 24px; font: 14px/1.45 system-ui, sans-serif; background: Canvas; color: CanvasText; }
h1 { font-size: 20px; } h2 { font-size: 16px; }
h1, h2, h3, li, figcaption { overflow-wrap: anywhere; }
h3 { font: 12px/1.4 ui-monospace, monospace; } h3, .title, ul { opacity: 0.75; }
ul { list-style: none; margin: 4px 0 0; padding: 0; }
main { display: flex; flex-wrap: wrap; gap: 0 40px; }
section { border-top: 1px solid #8884; max-width: 100%; }
.cells { display: flex; flex-wrap: wrap; gap: 20px; align-items: flex-start; }
figure { margin: 0 0 16px; max-width: 100%; }
img { display: block; max-width: 100%; height: auto; border-radius: 2px; margin-bottom: 6px; }
figcaption { font-size: 13px; } figcaption span { display: block; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 12px; }
.legend i { display: inline-block; width: 10px; height: 10px; margin-right: 5px; }
.fault { color: #d03030; border: 1px solid; border-radius: 4px; padding: 8px; }
pre { overflow: auto; font: 12px/1.5 ui-monospace, monospace; }
"""
# Nothing may be loaded, whatever the data says: only pictures within the page, and its own style.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_page(
    heading: str,
    notes: Sequence[str],
    rows: Sequence[Row],
    charts: Mapping[str, Picture],
    config: str,
) -> str:
    """Write the page.

    Args:
        heading: What is shown.
        notes: Remarks below it.
        rows: The samples.
        charts: What the data is like, by title.
        config: The config as YAML.
    """
    width = max((_width(cell) for row in rows for cell in row.cells), default=_TEXT_COLUMN)
    keys = ((escape(name), f"background:rgb{colour}") for name, colour in _legend_of(rows).items())
    legend = "".join(f'<li><i style="{look}"></i>{name}</li>' for name, look in keys)
    remarks = "".join(f"<li>{escape(note)}</li>" for note in notes)
    samples = "\n".join(
        f'<section><h3>{escape(row.title)}</h3><div class="cells">\n'
        + "\n".join(map(cell_html, row.cells))
        + "</div></section>"
        for row in rows
    )
    plots = "\n".join(_image(chart, title) for title, chart in charts.items())
    about = f'<h2>The data</h2><div class="cells">\n{plots}\n</div>' if charts else ""
    return f"""<!DOCTYPE html>
{HTML_MARK}
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(heading)}</title><style>{_STYLE}figure {{ width: {width}px; }}</style></head>
<body><h1>{escape(heading)}</h1>
<ul>{remarks}</ul>
<ul class="legend">{legend}</ul>
<main>{samples}</main>
{about}
<details open><summary>Config</summary><pre>{escape(config)}</pre></details>
</body></html>
"""


def cell_html(cell: Cell) -> str:
    """Write a cell of the page."""
    parts = [_image(cell.picture, cell.title)] if cell.picture is not None else []
    parts.append(f'<figcaption><span class="title">{escape(cell.title)}</span>')
    parts += [f"<span>{escape(line)}</span>" for line in cell.lines]
    if cell.fault:
        parts.append(f'<div class="fault">bad sample: {escape(cell.fault)}</div>')
    return f"<figure>{''.join(parts)}</figcaption></figure>"


def _image(picture: Picture, title: str) -> str:
    height, width = picture.shape[:2]
    data = base64.b64encode(as_png(picture)).decode()
    return (
        f'<img width="{width}" height="{height}" alt="{escape(title)}" '
        f'src="data:image/png;base64,{data}">'
    )
