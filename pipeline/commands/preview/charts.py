"""Chart what the data is like as a whole: classes, sizes, numbers of boxes, lengths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.core.contracts import Storage
from penstock.core.sample import STATED_SIZE, BadRecord, BadSample
from penstock.datasets.mix import SOURCE, united
from penstock.pipeline.pictures.fields import (
    OWN,
    Classes,
    pixel_counts,
    renamed,
    share_text,
    shortened,
)  # fmt: skip
from penstock.pipeline.pictures.picture import blank_figure, channels_last, points_of
from penstock.transforms.decode.image.header import read_header

WIDTH = 440
_COLOURS = ("#4477aa", "#ee7733")
_FAINT, _RULE = "#686e78", "#e2e4e8"
_LETTERS = points_of(12)
_MOST_BARS, _MOST_BINS, _MOST_HISTOGRAMS = 24, 24, 12
_MOST_LETTERS = 24
_READ = 64
_MOST_DRAWS = 5_000_000
_NUMBERS = (int, float, np.integer, np.floating)
_NO_SERIES = ("image", STATED_SIZE)
_TURNED = 5  # from this EXIF orientation on, height and width change places


@dataclass(slots=True)
class Survey:
    """Figures of some records, none of which was decoded.

    Attributes:
        records: How many were looked at.
        total: How many there are; None: nobody knows.
        figures: Numbers by what they are: widths, numbers of boxes, values and lengths of fields.
        box_labels: Number of boxes by class id.
        pixels: Number of pixels by class id, in the masks of the samples that are shown.
    """

    records: int = 0
    total: int | None = None
    figures: dict[str, list[float]] = field(default_factory=dict)
    box_labels: Counter[int] = field(default_factory=Counter)
    pixels: Counter[int] = field(default_factory=Counter)

    def add(self, fields: Mapping[str, Any], box_ids: NDArray[np.int64] | None = None) -> None:
        """Count one record's fields, or a sample's.

        Args:
            fields: By name.
            box_ids: The class id here of each of the record's, int64 [C]; None: they are the same.
        """
        self.records += 1
        if (size := _size_of(fields.get("image"))) is not None:
            self._note("Widths in pixels", size[0])
            self._note("Heights in pixels", size[1])
            self._note("Aspects, width by height", round(size[0] / size[1], 3))
        boxes = fields.get("boxes", fields.get("boxes_normalized"))
        if boxes is not None:
            self._note("Boxes in an image", len(boxes))
            labels = np.asarray(fields.get("box_labels", ())).reshape(-1).tolist()
            self.box_labels.update(united(number, box_ids) for number in labels)
        for name, value in fields.items():
            if isinstance(value, _NUMBERS) and name not in OWN | {"label"}:
                self._note(f"Values of {name}", float(value))
            if _is_series(value) and not name.startswith("box_") and name not in _NO_SERIES:
                self._note(f"Lengths of {name}", len(value))

    def add_storage(
        self,
        storage: Storage,
        records: int,
        keys: Mapping[str, str | None] | None = None,
        box_ids: NDArray[np.int64] | None = None,
    ) -> None:
        """Count records spread evenly over a storage.

        Args:
            storage: Where they lie.
            records: How many, at most.
            keys: New field names by field name.
            box_ids: See `add`.
        """
        count = len(storage)
        self.total = (self.total or 0) + count
        chosen = np.unique(np.linspace(0, count - 1, min(records, count)).astype(np.int64))
        for start in range(0, len(chosen), _READ):
            for record in storage.read(chosen[start : start + _READ]):
                if not isinstance(record, BadRecord):
                    self.add(renamed(record, keys), box_ids)

    def add_masks(self, samples: Sequence[Any]) -> None:
        """Count the pixels of each class in the masks of samples; bad ones have none."""
        for sample in samples:
            if isinstance(sample, BadSample) or "mask" not in sample:
                continue
            if np.ndim(sample["mask"]) == 2:
                self.pixels += pixel_counts(sample["mask"])

    @property
    def note(self) -> str:
        """What was looked at."""
        if self.total is None:
            return f"of the {self.records:,} samples shown"
        some = f"{self.records:,} of " if self.records < self.total else ""
        return f"of {some}{self.total:,} records"

    def _note(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)


def _is_series(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, _NUMBERS) for item in value)
    return isinstance(value, np.ndarray) and value.ndim == 1


def _size_of(image: Any) -> tuple[int, int] | None:
    """Measure width and height of an image, of a file from its header; None where it has none."""
    if isinstance(image, np.ndarray):
        shape = channels_last(image).shape
        return (shape[1], shape[0]) if len(shape) in (2, 3) else None
    try:
        header = read_header(bytes(image))
    except (ValueError, TypeError):
        return None
    size = header.width, header.height
    return size[::-1] if header.orientation >= _TURNED else size


def drawn_counts(
    index: Any, sampler: Any, count: int, column: str = "label"
) -> tuple[NDArray[np.int64], int]:
    """Count what a sampler draws in epoch 0, by class id: int64 [count], and the draws.

    The first 5 million draws of an epoch that is longer.
    """
    labels = np.asarray(index.column(column))
    draws = min(len(sampler), _MOST_DRAWS)
    return _counted(labels[sampler.indices(0, 0, draws)], count), draws


def _counted(labels: NDArray[Any], count: int) -> NDArray[np.int64]:
    return np.bincount(labels[(labels >= 0) & (labels < count)], minlength=count)


def make_charts(
    dataset: Any, sampler: Any, survey: Survey, classes: Mapping[str, Classes]
) -> tuple[dict[str, Any], list[str]]:
    """Chart what is known.

    Args:
        dataset: The split.
        sampler: Which record stands at a position; None for a stream.
        survey: Figures of some records.
        classes: Names by field.

    Returns:
        Figures by title, and remarks: what all records share makes no chart.
    """
    charts: dict[str, Any] = {}
    if sampler is not None:
        balances = [("Classes", "label", classes.get("label", Classes()).names)]
        if sources := classes.get(SOURCE, Classes()).names:
            balances.insert(0, ("Sources", SOURCE, sources))
        for title, column, names in balances:
            if (chart := _balance(title, dataset.index, sampler, names, column)) is not None:
                charts[title] = chart
    for title, name, counted, note in (
        ("Boxes by class", "box_labels", survey.box_labels, survey.note),
        ("Pixels by class", "mask", survey.pixels, "of the samples shown"),
    ):
        if counted:
            known = classes.get(name, Classes())
            ids = sorted({*counted, *range(len(known.names or ()))})
            named = [known.name(number) for number in ids]
            charts[title] = bars(title, note, named, {title: [counted[number] for number in ids]})
    alike = []
    for title, values in list(survey.figures.items())[:_MOST_HISTOGRAMS]:
        there = [value for value in values if np.isfinite(value)]
        lack = f", {len(values) - len(there):,} without" if len(there) < len(values) else ""
        if len({*there}) > 1:
            charts[title] = histogram(title, survey.note + lack, there)
        elif there and len(values) > 1:
            alike.append(f"{title.lower()} {there[0]:,.4g}{lack}")
    return charts, [f"{survey.note}, all: {'; '.join(alike)}"] if alike else []


def _balance(
    title: str, index: Any, sampler: Any, names: Sequence[str] | None, column: str
) -> Any | None:
    """Chart the classes in the data, beside those that the sampler draws."""
    labels = np.asarray(index.column(column)) if column in index.columns else np.zeros(0)
    if not len(labels) or labels.dtype.kind not in "iu" or labels.max() < 0:
        return None
    count = len(names) if names else int(labels.max()) + 1
    drawn, draws = drawn_counts(index, sampler, count, column)
    note = f"{len(index):,} records; {draws:,} draws of epoch 0"
    if draws < len(sampler):
        note += f" of {len(sampler):,}"
    both = {"in the data": _counted(labels, count), "drawn by the sampler": drawn}
    return bars(title, note, names or tuple(map(str, range(count))), both)


def bars(title: str, note: str, names: Sequence[str], series: Mapping[str, ArrayLike]) -> Any:
    """Draw horizontal bars, one for each name and series, with their values and shares.

    Of many names only those with the most and the least of the first series are shown.

    Args:
        title: What is shown.
        note: A remark below the title.
        names: Of the bars.
        series: One or two, by name: a value for each of the names.

    Returns:
        A figure.
    """
    rows = list(range(len(names)))
    if len(rows) > _MOST_BARS:
        order = np.argsort(-np.asarray(next(iter(series.values()))), kind="stable").tolist()
        rows = order[: _MOST_BARS // 2] + order[-(_MOST_BARS // 2) :]
        note += f"; {len(names) - _MOST_BARS:,} in between are not shown"
    thick = 0.8 / len(series)
    figure, axes = _figure(title, note, 90 + (20 + 12 * (len(series) > 1)) * len(rows))
    for number, (name, given) in enumerate(series.items()):
        values = np.asarray(given, float)
        places = np.arange(len(rows)) + (number - (len(series) - 1) / 2) * thick
        drawn = axes.barh(places, values[rows], thick, color=_COLOURS[number], label=name)
        shares = values[rows] / (values.sum() or 1)
        said = [f"{v:,.0f} · {share_text(s)}" for v, s in zip(values[rows], shares, strict=True)]
        axes.bar_label(drawn, said, padding=4, color=_FAINT, fontsize=_LETTERS)
    shown = [shortened(names[row], _MOST_LETTERS) for row in rows]
    axes.set_yticks(range(len(rows)), shown, parse_math=False)
    axes.margins(x=0.3, y=0.01)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    if len(series) > 1:
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=_LETTERS)
    return figure


def histogram(title: str, note: str, values: Sequence[float]) -> Any:
    """Draw a histogram in bins of a round width.

    Args:
        title: What is shown.
        note: A remark below the title.
        values: At least two that differ.

    Returns:
        A figure.
    """
    from matplotlib.ticker import StrMethodFormatter

    figure, axes = _figure(title, note, 250)
    low, high = min(values), max(values)
    edges = bin_edges(values)
    axes.hist(values, edges, color=_COLOURS[0], edgecolor="white")
    axes.set_xlabel(
        f"{low:,.4g} to {high:,.4g}, median {np.median(values):,.4g}", fontsize=_LETTERS
    )
    axes.locator_params(axis="x", nbins=6, integer=edges[0] % 1 == 0.5)
    axes.locator_params(axis="y", nbins=3, integer=True)
    for axis, places in ((axes.xaxis, ".5g"), (axes.yaxis, ".0f")):
        axis.set_major_formatter(StrMethodFormatter("{x:," + places + "}"))
    axes.grid(axis="y", color=_RULE)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_RULE)
    return figure


def bin_edges(values: Sequence[float]) -> NDArray[np.float64]:
    """Choose edges of some 24 bins; where there are few whole numbers, one for each."""
    low, high = min(values), max(values)
    if high - low < _MOST_BINS and np.equal(values, np.rint(values)).all():
        return np.arange(low, high + 2) - 0.5
    return np.histogram_bin_edges(values, _MOST_BINS)


def _figure(title: str, note: str, height: int) -> tuple[Any, Any]:
    """Make a figure of `WIDTH` pixels with one axes, and a title and a note above it."""
    figure = blank_figure(WIDTH, height, layout="constrained")
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=_LETTERS, length=0)
    head = {"x": 0.01, "ha": "left", "fontsize": _LETTERS, "parse_math": False}
    figure.suptitle(title, fontweight="bold", **head)
    axes.set_title(note, loc="left", fontsize=_LETTERS, color=_FAINT)
    return figure, axes
