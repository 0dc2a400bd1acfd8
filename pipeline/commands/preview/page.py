"""The preview as one HTML page that needs nothing else: no network, no script, no other file."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

from pipeline.commands.preview.cells import Cell, Entry, Row
from pipeline.commands.preview.charts import TEXT, WIDTH, Box, Chart
from pipeline.commands.preview.files import HTML_MARK
from pipeline.commands.preview.palette import hex_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Encode = Callable[[NDArray[np.uint8]], bytes]

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1a1c20; --faint: #646a74;
  --rule: #e2e4e8; --panel: #f6f7f9; --fault: #b01e1e; --first: #4477aa; --second: #ee7733; }
@media (prefers-color-scheme: dark) { :root { --paper: #15171b; --ink: #e8eaee; --faint: #9aa1ac;
  --rule: #2e3239; --panel: #1d2026; --fault: #ff8a80; --first: #6aa1d8; --second: #f0924f; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 24px; background: var(--paper); color: var(--ink);
  font: 14px/1.45 system-ui, sans-serif; }
h1 { font-size: 20px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 28px 0 12px; }
h1, h2, h3, p, li, figcaption { overflow-wrap: anywhere; }
p, .notes { color: var(--faint); margin: 0 0 4px; } .notes { padding-left: 18px; }
main { display: grid; grid-template-columns: minmax(0, 1fr); gap: 24px; }
section.sample { border-top: 1px solid var(--rule); padding: 12px 0 16px; }
h3 { font: 12px/1.4 ui-monospace, monospace; color: var(--faint); margin: 0 0 8px; }
.cells { display: flex; flex-wrap: wrap; gap: 20px; align-items: flex-start; }
figure { margin: 0; width: var(--cell); max-width: 100%; }
figure img { display: block; max-width: 100%; height: auto; border-radius: 2px; }
figcaption { margin-top: 6px; font-size: 13px; }
figcaption span { display: block; } .title { color: var(--faint); }
.fault { color: var(--fault); border: 1px solid currentColor; border-radius: 4px; padding: 8px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 12px; list-style: none; margin: 4px 0 0;
  padding: 0; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px;
  margin-right: 5px; border: 1px solid var(--faint); }
.legend i.point { border-radius: 50%; }
figcaption table { border-collapse: collapse; margin-top: 2px; width: 100%; }
th, td { padding: 1px 8px 1px 0; text-align: left; vertical-align: top; font-weight: normal;
  overflow-wrap: anywhere; } th { color: var(--faint); width: 45%; }
td { font-variant-numeric: tabular-nums; } td.gap { color: var(--fault); }
.charts { display: flex; flex-wrap: wrap; gap: 20px; align-items: flex-start; }
.charts svg { width: 440px; max-width: 100%; height: auto; background: var(--panel);
  border-radius: 6px; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg text.faint { fill: var(--faint); }
rect.grid { fill: var(--rule); } rect.first { fill: var(--first); }
rect.second { fill: var(--second); }
pre { background: var(--panel); border-radius: 6px; padding: 12px; margin: 0; overflow: auto;
  font: 12px/1.5 ui-monospace, monospace; }
aside summary { cursor: pointer; font-size: 16px; font-weight: bold; margin-bottom: 12px; }
@media (min-width: 1500px) { main { grid-template-columns: minmax(0, 1fr) 380px; }
  aside { position: sticky; top: 24px; align-self: start; }
  aside pre { max-height: calc(100vh - 100px); } }
"""
_GAP = ' class="gap"'
# Nothing may be loaded, whatever the data says: only pictures within the page, and its own style.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_page(
    heading: str,
    notes: Sequence[str],
    rows: Sequence[Row],
    charts: Sequence[Chart],
    config: str,
    *,
    size: int,
    encode: Encode,
) -> str:
    """Write the page.

    Args:
        heading: What is shown.
        notes: Remarks below it.
        rows: The samples.
        charts: What the data is like.
        config: The config as YAML.
        size: Width of a cell in pixels.
        encode: Makes a PNG of a picture.
    """
    remarks = "".join(f"<li>{escape(note)}</li>" for note in notes)
    samples = "\n".join(_sample(row, encode) for row in rows)
    plots = "\n".join(_svg(chart) for chart in charts)
    about = f'<h2>The data</h2><div class="charts">\n{plots}\n</div>' if charts else ""
    return f"""<!DOCTYPE html>
{HTML_MARK}
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(heading)}</title><style>{_STYLE}:root {{ --cell: {size}px; }}</style></head>
<body><h1>{escape(heading)}</h1>
<ul class="notes">{remarks}</ul>
<main><div>
{samples}
{about}</div>
<aside><details open><summary>Config</summary><pre>{escape(config)}</pre></details></aside></main>
</body></html>
"""


def _sample(row: Row, encode: Encode) -> str:
    cells = "\n".join(_cell(cell, encode) for cell in row.cells)
    title = f"{escape(row.key)} · position {row.position}"
    return f'<section class="sample"><h3>{title}</h3><div class="cells">\n{cells}</div></section>'


def _cell(cell: Cell, encode: Encode) -> str:
    picture = ""
    if cell.picture is not None:
        height, width = cell.picture.shape[:2]
        data = base64.b64encode(encode(cell.picture)).decode()
        picture = (
            f'<img width="{width}" height="{height}" alt="{escape(cell.title)}" '
            f'src="data:image/png;base64,{data}">'
        )
    lines = "".join(f"<span>{escape(line)}</span>" for line in cell.lines)
    lines += _table(cell.entries)
    fault = f'<div class="fault">bad sample: {escape(cell.fault)}</div>' if cell.fault else ""
    legend = "".join(
        f'<li><i{kind} style="background:{hex_of(colour)}"></i>{escape(name)}</li>'
        for kind, named in (("", cell.legend), (' class="point"', cell.points))
        for name, colour in named.items()
    )
    keys = f'<ul class="legend">{legend}</ul>' if legend else ""
    return (
        f'<figure>{picture}<figcaption><span class="title">{escape(cell.title)}</span>'
        f"{lines}{keys}{fault}</figcaption></figure>"
    )


def _table(entries: Sequence[Entry]) -> str:
    rows = "".join(
        f"<tr><th>{escape(entry.name)}</th>"
        f"<td{_GAP if entry.is_gap else ''}>{escape(entry.value)}</td></tr>"
        for entry in entries
    )
    return f"<table>{rows}</table>" if rows else ""


def _svg(chart: Chart) -> str:
    shapes = []
    for shape in chart.shapes:
        if isinstance(shape, Box):
            shapes.append(
                f'<rect class="{shape.role}" x="{shape.x:.1f}" y="{shape.y:.1f}" '
                f'width="{max(shape.width, 0):.1f}" height="{max(shape.height, 0):.1f}"/>'
            )
            continue
        # Half of the font's size is about what a letter takes.
        most = max(int(shape.room / (TEXT * 0.56)), 1)
        text = shape.text if len(shape.text) <= most else shape.text[: most - 1] + "…"
        shapes.append(
            f'<text class="{shape.role}" x="{shape.x:.1f}" y="{shape.y + TEXT:.1f}" '
            f'text-anchor="{shape.anchor}"><title>{escape(shape.text)}</title>'
            f"{escape(text)}</text>"
        )
    height = round(chart.height)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(chart.title)}">'
        f"{''.join(shapes)}</svg>"
    )
