"""What packing says at its end: about the packed thing, and about the data."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets.parts import PartSummary, written_labels
from datasets.protocols import Storage

_MEASURE_S = 0.25
_MEASURE_READS = 2048
_BATCH = 32
_CLASSES = 8
_BALANCED = 1.5
_BAR = 30


def summary_lines(
    summaries: Sequence[PartSummary], class_names: tuple[str, ...] | None, width: int | None = None
) -> list[str]:
    """What the data is: classes, sizes, and what was done with its images.

    Args:
        summaries: All parts.
        class_names: Names by id.
        width: Columns of the terminal; None: those that it has.
    """
    width = width or shutil.get_terminal_size().columns
    lines = []
    done = sum((Counter(summary.done) for summary in summaries), Counter[str]())
    if done:
        parts = ", ".join(f"{count:,} {what}" for what, count in done.most_common())
        lines.append(f"images: {parts}")
    labels = written_labels(summaries)
    if labels is not None and len(labels):
        lines += _class_lines(labels, class_names, width)
    sizes = np.concatenate([summary.sizes for summary in summaries])
    lines += _size_lines(sizes, width)
    bad = sum(len(summary.bad) for summary in summaries)
    decoded = "" if done else " (no image was decoded)"
    lines.append(f"unreadable: {bad:,}{decoded}" if bad else f"unreadable: none{decoded}")
    return lines


def _class_lines(
    labels: NDArray[np.integer], class_names: tuple[str, ...] | None, width: int
) -> list[str]:
    counts = np.bincount(labels) if labels.min() >= 0 else np.unique(labels, return_counts=True)[1]
    if class_names is not None:
        counts = np.pad(counts, (0, max(0, len(class_names) - len(counts))))
    present = counts[counts > 0]
    empty = len(counts) - len(present)
    ratio = present.max() / present.min()
    what = "balanced" if ratio <= _BALANCED and not empty else f"not balanced, {ratio:,.1f} : 1"
    none = f", {empty:,} without any record" if empty else ""
    line = f"classes: {len(present):,}, from {present.min():,} to {present.max():,} records{none}"
    lines = [f"{line} ({what})"]
    order = np.argsort(-counts, kind="stable")
    shown = order if len(order) <= _CLASSES else [*order[: _CLASSES // 2], *order[-_CLASSES // 2 :]]
    names = [_short(class_names[i] if class_names else str(i), width // 3) for i in shown]
    most = max(map(len, names))
    digits = len(f"{counts.max():,}")
    for n, (i, name) in enumerate(zip(shown, names, strict=True)):
        if len(order) > _CLASSES and n == _CLASSES // 2:
            lines.append(f"  ... {len(order) - _CLASSES:,} more")
        lines.append(f"  {name:<{most}}  {counts[i]:>{digits},}")
    return lines


def _size_lines(sizes: NDArray[np.int64], width: int) -> list[str]:
    """A histogram of record sizes, as text."""
    line = (
        f"sizes: {_bytes(sizes.min())} to {_bytes(sizes.max())}, median "
        f"{_bytes(float(np.median(sizes)))}, {_bytes(sizes.sum(dtype=np.int64))} in all"
    )
    if sizes.min() == sizes.max():
        return [line]
    inner = _edges(*(max(float(size), 1.0) for size in np.percentile(sizes, [1, 99])))
    counts = np.bincount(np.searchsorted(inner, sizes, side="right"), minlength=len(inner) + 1)
    for digits in range(1, 5):
        shown = [_bytes(edge, digits) for edge in inner]
        if len({*shown}) == len(shown):
            break
    names = [*(f"< {edge}" for edge in shown), f">= {shown[-1]}"]
    names, counts = _without_empty_ends(names, counts)
    most, digits = max(map(len, names)), len(f"{counts.max():,}")
    bar = max(1, min(_BAR, width - most - digits - 6))
    rows = [
        f"  {name:>{most}}  {count:>{digits},}  {'#' * round(bar * count / counts.max())}".rstrip()
        for name, count in zip(names, counts, strict=True)
    ]
    return [line, *rows]


def _edges(low: float, high: float) -> NDArray[np.float64]:
    """At most eight edges between sizes: by powers of two where they span many, else evenly."""
    steps = np.arange(np.floor(np.log2(low)), np.ceil(np.log2(high)) + 1)
    if len(steps) > 4:
        return 2.0 ** steps[:: -(-len(steps) // 8)][1:]
    step = max((high - low) / 8, 1.0)
    step = float(np.ceil(step / (unit := 10 ** np.floor(np.log10(step)))) * unit)
    return np.arange(np.ceil(low / step), np.floor(high / step) + 2) * step


def _without_empty_ends(names: list[str], counts: NDArray[np.int64]) -> tuple[list[str], NDArray]:
    filled = np.flatnonzero(counts)
    inside = slice(filled[0], filled[-1] + 1)
    return names[inside], counts[inside]


def reads_per_s(storage: Storage) -> float:
    """Random reads per second in one thread, as the page cache stands; a moment of them."""
    rng = np.random.default_rng(0)
    storage.read(rng.integers(0, len(storage), _BATCH))
    done, start = 0, time.perf_counter()
    while (seconds := time.perf_counter() - start) < _MEASURE_S and done < _MEASURE_READS:
        storage.read(rng.integers(0, len(storage), _BATCH))
        done += _BATCH
    return done / seconds


def speed_line(source: Storage, result: Storage) -> str:
    """What packing gives: random reads of source and result."""
    before, after = reads_per_s(source), reads_per_s(result)
    return (
        f"random reads: {before:,.0f}/s from the source, {after:,.0f}/s from the result "
        f"({after / before:.1f} x), one thread, in the page cache"
    )


def folder_bytes(folder: Path) -> int:
    """Size of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _short(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 3] + "..."


def _bytes(size: float, digits: int = 1) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            plain = unit == "B" or (size >= 100 and digits == 1)
            return f"{size:,.0f} {unit}" if plain else f"{size:,.{digits}f} {unit}"
        size /= 1000
    return f"{size:,.{digits}f} TB"
