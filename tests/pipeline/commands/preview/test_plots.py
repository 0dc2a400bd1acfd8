"""What the charts count, and that both ways of drawing them show it."""

from __future__ import annotations

import re

import cv2
import numpy as np
import pytest

from datasets.memory_index import MemoryIndex
from datasets.sample import BadRecord, Record
from pipeline.commands.preview.cells import Cell, Row
from pipeline.commands.preview.charts import Box, Text, bars, bin_edges, histogram, share_text
from pipeline.commands.preview.overlays import Classes
from pipeline.commands.preview.page import _svg
from pipeline.commands.preview.plots import make_charts
from pipeline.commands.preview.sheet import draw_sheet
from pipeline.commands.preview.survey import Survey, class_counts, drawn_counts, survey_storage
from pipeline.samplers.sequential import SequentialSampler
from pipeline.samplers.weighted import WeightedSampler
from tests.photographs import scene

LABELS = np.repeat([0, 1, 2], [900, 90, 10])


def index():
    return MemoryIndex([str(i) for i in range(1000)], {"label": LABELS}, ["a", "b", "c"])


def texts(chart):
    return [shape.text for shape in chart.shapes if isinstance(shape, Text)]


def test_the_balance_is_what_the_sampler_draws():
    assert class_counts(index(), 3).tolist() == [900, 90, 10]
    sampler = WeightedSampler(1000, index(), seed=1, num_samples=70_001)
    found, draws = drawn_counts(index(), sampler, 3)
    assert draws == 70_001
    expected = np.bincount(LABELS[sampler.indices(0, 0, 70_001)], minlength=3)
    assert (found == expected).all()
    assert np.abs(found / draws - 1 / 3).max() < 0.02
    (chart,) = make_charts(
        type("Data", (), {"index": index()})(), sampler, Survey(), {"label": Classes("abc")}
    )
    assert "1,000 records; 70,001 draws of epoch 0" in texts(chart)
    share = f"{found[2] / draws:.1%}"
    assert f"1.0% → {share}" in texts(chart)


def test_of_many_classes_the_extremes_are_shown():
    chart = bars("Classes", "", [f"c{i}" for i in range(100)], {"n": list(range(100))})
    shown = [text for text in texts(chart) if re.fullmatch(r"c\d+", text)]
    assert shown == [f"c{i}" for i in [*range(99, 87, -1), *range(11, -1, -1)]]
    assert "… 76 classes in between …" in texts(chart)


def test_bars_are_as_long_as_their_values():
    chart = bars("Classes", "", ["a", "b", "none"], {"n": [10, 5, 0]})
    widths = [shape.width for shape in chart.shapes if isinstance(shape, Box)]
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
    edges = bin_edges(min(values), max(values), whole=values == np.rint(values).tolist())
    assert np.histogram(values, edges)[0].sum() == len(values)
    assert 2 <= len(edges) <= 26
    chart = histogram("Sizes", "", values, "pixels")
    columns = [shape for shape in chart.shapes if isinstance(shape, Box) and shape.role == "first"]
    assert len(columns) == len(edges) - 1
    heights = np.array([column.height for column in columns])
    counts, _ = np.histogram(values, edges)
    assert heights / heights.max() == pytest.approx(counts / counts.max())


def test_a_value_that_all_share_is_told_in_words():
    chart = histogram("Widths", "of 70 records", [640] * 70, "pixels")
    assert texts(chart)[-1] == "all 640 pixels"


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
    survey = survey_storage(Records(), 1000, {"jpg": "image"})
    good = [i for i in range(100) if i % 10]
    assert survey.sizes == [(20 + i, 16) for i in good]
    assert survey.boxes == [i % 3 for i in good]
    assert survey.lengths == {"tokens": good}
    assert survey.box_labels[0] == sum(i % 3 for i in good if i % 2 == 0)
    assert survey_storage(Records(), 7).records <= 7


def test_a_chart_is_the_same_in_the_page_and_in_the_picture():
    chart = bars("T", "", ["<a>", "b"], {"n": [4, 2]})
    svg = _svg(chart)
    assert "&lt;a&gt;" in svg and "<a>" not in svg
    row = Row("k", 0, (Cell("original", np.zeros((20, 20, 3), np.uint8)),))
    sheet = draw_sheet("heading", [], [row], [chart])
    blue = (sheet == (68, 119, 170)).all(-1)
    lengths = np.unique(blue.sum(1))
    widths = [round(float(w)) for w in re.findall(r'rect class="first"[^>]* width="([\d.]+)"', svg)]
    assert sorted(widths) == lengths[lengths > 0].tolist()


def test_a_sheet_has_room_for_all_that_is_on_it():
    picture = np.full((50, 200, 3), 9, np.uint8)
    cells = (Cell("original", picture, ("x" * 300,)), Cell("epoch 0", fault="cause " * 99))
    sheet = draw_sheet("h" * 500, ["note " * 200], [Row("k" * 400, 7, cells)] * 3, [])
    assert sheet.shape[1] == 2 * 24 + 440
    assert (sheet[:, :20] == 255).all() and (sheet[:, -20:] == 255).all()
    assert (sheet[-20:] == 255).all()
    assert ((sheet == 9).all(-1)).sum() == 3 * 50 * 200


def test_a_sequential_sampler_leaves_the_balance_as_it_is():
    found, draws = drawn_counts(index(), SequentialSampler(1000), 3)
    assert found.tolist() == [900, 90, 10] and draws == 1000


def test_sources_of_a_mix_are_counted_by_name_and_as_drawn():
    sources = np.repeat([0, 1], [300, 100])
    columns = {"label": np.zeros(400, int), "source": sources}
    mixed = MemoryIndex([str(i) for i in range(400)], columns, ["a"])
    data = type("Data", (), {"index": mixed})()
    sampler = WeightedSampler(400, mixed, seed=1, weights="source", num_samples=50)
    classes = {"label": Classes(("a",)), "source": Classes(("web", "own"))}
    chart, _ = make_charts(data, sampler, Survey(), classes)
    assert {"Sources", "web", "own", "75.0% → 0%", "25.0% → 100.0%"} <= {*texts(chart)}
    assert len(make_charts(data, sampler, Survey(), {"label": Classes(("a",))})) == 1


def test_surveys_of_sources_are_joined_and_their_box_classes_united():
    first, second = Survey(total=5), Survey(total=7)
    for survey in (first, second):
        survey.add({"boxes": np.zeros((2, 4)), "box_labels": np.array([0, 1]), "scores": [1, 2, 3]})
    joined = Survey()
    joined.join(first, None)
    joined.join(second, np.array([1, 2]))
    assert (joined.records, joined.total, joined.boxes) == (2, 12, [2, 2])
    assert joined.box_labels == {0: 1, 1: 2, 2: 1}
    assert joined.lengths == {"scores": [3, 3]}
