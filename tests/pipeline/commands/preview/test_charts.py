"""What the charts count, and that both ways of drawing them show it."""

from __future__ import annotations

import re

import cv2
import numpy as np
import pytest
from matplotlib.text import Text

from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.table import Table
from penstock.pipeline.commands.preview.charts import (
    WIDTH,
    Survey,
    bars,
    bin_edges,
    drawn_counts,
    histogram,
    make_charts,
    share_text,
)
from penstock.pipeline.pictures.fields import Classes
from penstock.pipeline.pictures.page import draw_sheet
from penstock.pipeline.pictures.picture import Cell, Row, rendered
from penstock.pipeline.samplers.random import SequentialSampler
from penstock.pipeline.samplers.weighted import WeightedSampler
from tests.photographs import scene

LABELS = np.repeat([0, 1, 2], [900, 90, 10])


def index():
    return Table([str(i) for i in range(1000)], {"label": LABELS}, ["a", "b", "c"])


def texts(figure):
    rendered(figure)
    return [found.get_text() for found in figure.findobj(Text)]


def bars_of(figure):
    return figure.axes[0].patches


def test_the_balance_is_what_the_sampler_draws():
    sampler = WeightedSampler(1000, index(), seed=1, num_samples=70_001)
    found, draws = drawn_counts(index(), sampler, 3)
    assert draws == 70_001
    expected = np.bincount(LABELS[sampler.indices(0, 0, 70_001)], minlength=3)
    assert (found == expected).all()
    assert np.abs(found / draws - 1 / 3).max() < 0.02
    charts, _ = make_charts(
        type("Data", (), {"index": index()})(), sampler, Survey(), {"label": Classes("abc")}
    )
    said = texts(charts["Classes"])
    assert "1,000 records; 70,001 draws of epoch 0" in said
    assert {"10 · 1.0%", f"{found[2]:,} · {found[2] / draws:.1%}"} <= {*said}


def test_of_many_classes_the_extremes_are_shown():
    chart = bars("Classes", "all", [f"c{i}" for i in range(100)], {"n": list(range(100))})
    shown = [text for text in dict.fromkeys(texts(chart)) if re.fullmatch(r"c\d+", text)]
    assert shown == [f"c{i}" for i in [*range(99, 87, -1), *range(11, -1, -1)]]
    assert "all; 76 in between are not shown" in texts(chart)


def test_bars_are_as_long_as_their_values():
    chart = bars("Classes", "", ["a", "b", "none"], {"n": [10, 5, 0]})
    widths = [bar.get_width() for bar in bars_of(chart)]
    assert widths[0] == 2 * widths[1] and widths[2] == 0


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0%"), (1, "100.0%"), (0.385, "38.5%"), (0.001, "0.1%"), (0.0007, "0.07%"),
     (1 / 128_000, "0.0008%")],
)  # fmt: skip
def test_shares_of_many_classes_are_told_from_nothing(share, text):
    assert share_text(share) == text


@pytest.mark.parametrize(
    "values",
    [
        [1, 1, 1, 2, 3],
        [64, 112, 90, 91],
        list(range(1000)),
        [0.5, 0.75, 2.25],
        [1e-9, 1e9],
        [-3, 3],
        [0.3, 0.6, 0.9],
    ],
)
def test_every_value_of_a_histogram_is_in_a_bin(values):
    edges = bin_edges(values)
    assert np.histogram(values, edges)[0].sum() == len(values)
    assert 2 <= len(edges) <= 26
    chart = histogram("Sizes", "", values)
    counts, _ = np.histogram(values, edges)
    assert [bar.get_height() for bar in bars_of(chart)] == counts.tolist()


def test_a_value_that_all_share_is_told_in_words():
    survey = Survey()
    for _ in range(70):
        survey.add({"image": np.zeros((480, 640, 3), np.uint8)})
    charts, (said,) = make_charts(None, None, survey, {})
    assert not charts
    assert said.startswith("of the 70 samples shown, all: widths in pixels 640; heights in pixel")


class Records:
    """A storage of images that cannot all be read."""

    def __len__(self):
        return 100

    def read(self, indices):
        return [
            BadRecord(i, str(i), "gone")
            if i % 10 == 0
            else Record(
                i,
                str(i),
                {
                    "jpg": cv2.imencode(".jpg", scene(16, 20 + i))[1].tobytes(),
                    "boxes": np.zeros((i % 3, 4), np.float32),
                    "box_labels": np.full(i % 3, i % 2),
                    "tokens": np.arange(i),
                },
            )
            for i in indices.tolist()
        ]


def test_a_survey_reads_headers_and_labels_and_decodes_nothing():
    survey = Survey()
    survey.add_storage(Records(), 1000, {"jpg": "image"})
    good = [i for i in range(100) if i % 10]
    assert survey.figures["Widths in pixels"] == [20 + i for i in good]
    assert survey.figures["Heights in pixels"] == [16] * len(good)
    assert survey.figures["Boxes in an image"] == [i % 3 for i in good]
    assert survey.figures["Lengths of tokens"] == good
    assert survey.box_labels[0] == sum(i % 3 for i in good if i % 2 == 0)
    few = Survey()
    few.add_storage(Records(), 7)
    assert few.records <= 7 and few.total == 100


def test_a_chart_stands_on_the_sheet_as_it_was_drawn():
    chart = bars("<T>", "", ["$a$ <b>", "b"], {"n": [4, 2]})
    assert "$a$ <b>" in texts(chart)
    picture = rendered(chart)
    row = Row("k", (Cell("original", np.zeros((20, 20, 3), np.uint8)),))
    sheet = draw_sheet("heading", [], [row], {"<T>": picture})
    assert (sheet[-24 - len(picture) : -24, 24 : 24 + WIDTH] == picture).all()
    blue = (sheet == (68, 119, 170)).all(-1).sum(1)
    assert blue.max() == pytest.approx(2 * np.unique(blue[blue > 0])[0], abs=2)


def test_a_sheet_has_room_for_all_that_is_on_it():
    picture = np.full((50, 200, 3), 9, np.uint8)
    cells = (Cell("original", picture, ("x" * 300,)), Cell("epoch 0", fault="cause " * 99))
    sheet = draw_sheet("h" * 500, ["note " * 200], [Row("k" * 400, cells)] * 3, {})
    assert sheet.shape[1] == 2 * 24 + 3 * (200 + 20 + 150) + 2 * 40, "side by side"
    assert (sheet[:, :20] == 255).all() and (sheet[:, -20:] == 255).all()
    assert (sheet[-20:] == 255).all()
    assert ((sheet == 9).all(-1)).sum() == 3 * 50 * 200


def test_a_sequential_sampler_leaves_the_balance_as_it_is():
    found, draws = drawn_counts(index(), SequentialSampler(1000), 3)
    assert found.tolist() == [900, 90, 10] and draws == 1000


def test_sources_of_a_mix_are_counted_by_name_and_as_drawn():
    sources = np.repeat([0, 1], [300, 100])
    columns = {"label": np.zeros(400, int), "source": sources}
    mixed = Table([str(i) for i in range(400)], columns, ["a"])
    data = type("Data", (), {"index": mixed})()
    sampler = WeightedSampler(400, mixed, seed=1, weights="source", num_samples=50)
    classes = {"label": Classes(("a",)), "source": Classes(("web", "own"))}
    charts, _ = make_charts(data, sampler, Survey(), classes)
    assert list(charts) == ["Sources", "Classes"]
    said = {*texts(charts["Sources"])}
    assert {"Sources", "web", "own", "300 · 75.0%", "0 · 0%", "50 · 100.0%"} <= said
    charts, _ = make_charts(data, sampler, Survey(), {"label": Classes(("a",))})
    assert list(charts) == ["Classes"]


def test_box_classes_of_sources_are_united():
    survey, fields = Survey(), {"boxes": np.zeros((2, 4)), "box_labels": np.array([0, 1])}
    survey.add({**fields, "scores": [1, 2, 3]})
    survey.add({**fields, "scores": [1, 2, 3]}, np.array([1, 2]))
    assert survey.records == 2 and survey.box_labels == {0: 1, 1: 2, 2: 1}
    assert survey.figures == {"Boxes in an image": [2, 2], "Lengths of scores": [3, 3]}
