"""Lay out tables as all commands print and write them."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

_WIDE = 200  # columns of a file or a pipe


def table_lines(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Collection[str] = (),
    width: int | None = None,
) -> list[str]:
    """Lay out a table.

    Args:
        heads: Of the columns.
        rows: A cell for each of the heads.
        numbers: Heads of columns that are set to the right.
        width: Columns of letters that it fits in; None: those of the terminal.

    Returns:
        Its lines, the heads first.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in heads:
        table.add_column(head, justify="right" if head in numbers else "left")
    for cells in rows:
        table.add_row(*cells)
    width = width or (Console().width if sys.stdout.isatty() else _WIDE)
    text = io.StringIO()
    Console(file=text, width=width, markup=False, emoji=False).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def csv_bytes(rows: Iterable[Iterable[Any]]) -> bytes:
    """Write rows as CSV."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")
