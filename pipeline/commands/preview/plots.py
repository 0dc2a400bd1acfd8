"""Which charts a preview has: classes in the data and as drawn, sizes, boxes, lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from datasets.mix_index import SOURCE
from pipeline.commands.preview.charts import Chart, bars, histogram, words
from pipeline.commands.preview.overlays import Classes
from pipeline.commands.preview.survey import Survey, class_counts, drawn_counts

_MOST_LENGTHS, _MOST_NUMBERS = 3, 6


def make_charts(
    dataset: Any, sampler: Any, survey: Survey, classes: Mapping[str, Classes]
) -> list[Chart]:
    """Charts of what is known.

    Args:
        dataset: The split.
        sampler: Which record stands at a position; None for a stream.
        survey: Figures of some records.
        classes: Names by field.
    """
    charts = []
    names = classes.get("label", Classes()).names
    index = getattr(dataset, "index", None)
    if index is not None and sampler is not None:
        sources = classes.get(SOURCE, Classes()).names
        charts += _balance("Sources", index, sampler, sources, SOURCE) if sources else []
        charts += _balance("Classes", index, sampler, names, "label")
    note = _note(survey)
    if survey.box_labels:
        box_classes = classes.get("box_labels", Classes())
        ids = sorted(survey.box_labels)
        if box_classes.names is not None:
            ids = sorted({*ids, *range(len(box_classes.names))})
        counts = [survey.box_labels[number] for number in ids]
        named = [box_classes.name(number) for number in ids]
        charts.append(bars("Boxes by class", note, named, {"boxes": counts}))
    if survey.boxes:
        charts.append(histogram("Boxes in an image", note, survey.boxes, "boxes"))
    if survey.sizes:
        charts += _sizes(survey.sizes, note)
    for name, numbers in list(survey.numbers.items())[:_MOST_NUMBERS]:
        there = [number for number in numbers if np.isfinite(number)]
        lack = f"{note}, {len(numbers) - len(there):,} without" if len(there) < len(numbers) else ""
        if len(set(there)) > 1:
            charts.append(histogram(f"Values of {name}", lack or note, there, ""))
    for name, lengths in list(survey.lengths.items())[:_MOST_LENGTHS]:
        if len(set(lengths)) > 1:
            charts.append(histogram(f"Lengths of {name}", note, lengths, ""))
    return charts


def _sizes(sizes: Sequence[tuple[int, int]], note: str) -> list[Chart]:
    if len(sizes) > 1 and len(set(sizes)) == 1:
        width, height = sizes[0]
        return [words("Sizes", note, f"all {width:,} × {height:,} pixels")]
    widths, heights = np.array(sizes, float).T
    ratios = np.round(widths / heights, 3).tolist()
    return [
        histogram("Widths", note, widths.tolist(), "pixels"),
        histogram("Heights", note, heights.tolist(), "pixels"),
        histogram("Aspects, width by height", note, ratios, ""),
    ]


def _balance(
    title: str, index: Any, sampler: Any, names: Sequence[str] | None, column: str
) -> list[Chart]:
    """Classes in the data, beside those that the sampler draws."""
    if column not in index.columns or not len(index):
        return []
    labels = index.column(column)
    if labels.dtype.kind not in "iu":
        return []
    count = len(names) if names else int(labels.max()) + 1
    counts = class_counts(index, count, column)
    if counts is None or not counts.any():
        return []
    drawn, draws = drawn_counts(index, sampler, count, column)
    told = names or tuple(map(str, range(count)))
    both = {"in the data": counts.tolist(), "drawn by the sampler": drawn.tolist()}
    note = f"{len(index):,} records; {draws:,} draws of epoch 0"
    if draws < len(sampler):
        note += f" of {len(sampler):,}"
    return [bars(title, note, told, both)]


def _note(survey: Survey) -> str:
    if survey.total is None:
        return f"of the {survey.records:,} samples shown"
    if survey.records < survey.total:
        return f"of {survey.records:,} of {survey.total:,} records"
    return f"of {survey.records:,} records"
