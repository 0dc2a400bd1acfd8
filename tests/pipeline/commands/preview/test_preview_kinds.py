"""Previews of every kind of sample: with partners, nested, rows of tables, mixed labels."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from penstock.core.sample import BadSample
from penstock.datasets.demo.tables import draw_table
from penstock.pipeline.build import build_dataset, build_loader, open_storage
from penstock.pipeline.commands.preview.charts import Survey
from penstock.pipeline.commands.preview.looks import _titled, look
from penstock.pipeline.commands.preview.show import sampler_of
from penstock.pipeline.config.compose import configure
from penstock.pipeline.pictures.fields import Classes, columns_of, lines_of, table_rows
from penstock.pipeline.pictures.page import cell_html, draw_sheet
from penstock.pipeline.pictures.picture import Cell, Row
from tests.nested_samples import RULES, fields_of
from tests.photographs import scene

INLINE = ["loader=inline", "loader.batch_size=8"]


def looks_of(config, split="train", samples=8, epochs=2):
    dataset = build_dataset(config, split)
    options = SimpleNamespace(split=split, samples=samples, epochs=epochs)
    return dataset, look(config, split, dataset, sampler_of(config, options, dataset), options)


@pytest.fixture
def photographs(tmp_path):
    for number in range(8):
        folder = tmp_path / "photographs" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{number}.png"), scene(70, 60 + number, number)[:, :, ::-1])
    return tmp_path / "photographs"


@pytest.mark.parametrize("sampler", ["random", "weighted"])
def test_partners_are_those_that_the_sampler_puts_beside_a_sample(photographs, sampler):
    given = [
        f"dataset.storage.path={photographs}", "dataset.val_fraction=0", "augment.image_size=24",
        "augment.train.mosaic={_target_: transform/mosaic, height: 60, width: 60, p: 1}",
        "augment.device.normalize=null", f"sampler={sampler}", *INLINE,
    ]  # fmt: skip
    config = configure(given, command="preview")
    _, looks = looks_of(config)
    with build_loader(config) as loader:
        (batch,) = list(loader)
    shown = np.stack([sample["image"] for sample in looks.epochs["epoch 0"]])
    assert (shown == batch["image"].numpy()).all()


def test_nested_fields_are_those_of_the_batch_and_their_excerpts_are_told():
    given = [
        "imports=[tests.nested_samples]", "dataset/storage=nested_graphs", "dataset/decode=raw",
        "dataset.val_fraction=0", "collate=nested", f"collate.rules={RULES}",
        "augment.image_size=16", "augment.train.deep={_target_: transform/nested_shuffle}", *INLINE,
    ]  # fmt: skip
    config = configure(given, command="preview")
    _, looks = looks_of(config, samples=5)
    for original, first, second in zip(looks.originals, *looks.epochs.values(), strict=True):
        drawn = fields_of(original["index"])["graph"]
        assert list(first)[: len(original)] == list(original)
        assert (first["graph"]["edges"] == drawn["edges"]).all()
        moved = first["graph"]["x"] - drawn["x"]
        assert moved.size == 0 or (0 < moved.max() and (moved != second["graph"]["x"]).any())
        lines = lines_of(first, {})
        edges = next(line for line in lines if line.startswith("graph.edges"))
        pairs = [f"{start}–{end}" for start, end in drawn["edges"].T.tolist()]
        assert edges.partition(": ")[2].split() == pairs
        assert f"deep.er.size: {original['index']}" in lines
    survey = Survey()
    survey.add_storage(open_storage(config, "train"), 41)
    assert survey.records == 41


def test_a_nested_field_that_a_step_has_changed_is_not_shown_as_it_was():
    from penstock.pipeline.collates.nested import NestedCollate
    from penstock.pipeline.commands.preview.looks import DeviceSteps

    def doubled(batch):
        return {**batch, "deep": {"x": batch["deep"]["x"] * 2}}

    nested = {"deep": {"x": 1.0}, "other": {"y": 2.0}}
    given = [{**nested, "key": str(i), "index": i, "position": i} for i in range(3)]
    for row in DeviceSteps(NestedCollate(), [doubled])(given, 0):
        assert "deep" not in row and row["other"] == {"y": 2.0}


def table_of(data_dir, split, *more, task="table", samples=600):
    config = configure([f"task={task}", f"data_dir={data_dir}", *more], command="preview")
    dataset, looks = looks_of(config, split, samples=samples)
    storage = open_storage(config, split)
    table = dataset.table
    rows = table_rows(table, storage, looks.originals, config["dataset"]["keys"])
    return looks, rows, table.statistics


@pytest.mark.parametrize("task", ["table", "regression"])
def test_rows_of_a_table_are_told_by_their_columns(data_dir, task):
    looks, rows, statistics = table_of(data_dir, "val", task=task)
    (given,) = looks.epochs.values()
    columns = draw_table("val")
    numeric = {column.name: column for column in statistics.numeric}
    gaps = 0
    for number, (original, sample) in enumerate(zip(looks.originals, given, strict=True)):
        before, after = (
            dict(line.split(": ", 1) for line in rows.lines(each, is_original=each is original))
            for each in (original, sample)
        )
        assert set(before) <= set(after) and ("price" in before) == (task == "regression")
        for name, column in numeric.items():
            value = columns[name][number]
            gaps += value is None
            shown = column.quartiles[1] if value is None else float(value)
            scaled = (shown - column.mean) / column.std
            end = " filled in" if value is None else ""
            assert after[name] == f"{scaled:+.3f}{end}"
            assert before[name] == ("missing" if value is None else f"{value:.6g}")
            if f"{name} is missing" in after:
                assert after[f"{name} is missing"] == str(int(value is None))
        city = columns["city"][number]
        assert before["city"] == city
        known = statistics.categorical[0].values
        said = f"{city}, id {known.index(city) + 1}" if city in known else "unknown, id 0"
        assert after["city"] == said
    assert gaps > 10
    first, city = statistics.numeric[0], statistics.categorical[0]
    told = {line.partition(":")[0]: line for line in columns_of(statistics)}
    span = f"{first.low:,.4g} to {first.high:,.4g}, median {first.quartiles[1]:,.4g}"
    assert told[first.name] == f"{first.name}: number, {span}, {first.missing} missing"
    assert told["city"].startswith(f"city: category, {', '.join(city.values[:6])}, ...")
    assert ("target price" in told) == (task == "regression")


def test_a_wide_table_is_cut_and_a_bad_row_has_no_columns(data_dir):
    looks, rows, statistics = table_of(data_dir, "val", samples=2)
    assert rows.lines(BadSample(0, "k", 0, "gone", "csv"), is_original=True) == []
    wide = type(statistics)(
        rows=1,
        numeric=tuple(replace(statistics.numeric[0], name=f"n{i}") for i in range(40)),
        categorical=statistics.categorical,
        target=None,
    )
    sample = {**looks.originals[0], "features": np.zeros(40)}
    lines = type(rows)(wide, (), rows.records).lines(sample, is_original=True)
    assert len(lines) == 25 and lines[-1] == "… and 18 more columns"
    assert len(columns_of(wide)) == 25 and columns_of(wide)[-1] == "… and 18 more columns"


def test_columns_stand_in_the_page_and_in_the_picture():
    lines = ("home", "<age>: missing", f"{'n' * 99}: {'v' * 99}", "c: 7")
    cell = Cell("original", lines=lines)
    page = cell_html(cell)
    assert "<span>&lt;age&gt;: missing</span>" in page and "<span>c: 7</span>" in page
    with_table, without = (
        draw_sheet("h", [], [Row("k", (one,))], {})
        for one in (cell, Cell("original", lines=("home",)))
    )
    assert (with_table < 128).any(2).sum() > 2 * (without < 128).any(2).sum()


def test_evaluation_is_the_same_in_every_epoch_and_shown_once(photographs):
    config = configure(
        [f"dataset.storage.path={photographs}", "dataset.val_fraction=0.5",
         "augment.image_size=24", *INLINE], command="preview",
    )  # fmt: skip
    _, looks = looks_of(config, "val", samples=4, epochs=3)
    assert list(looks.epochs) == ["every epoch"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": np.array([1, np.nan])}, {"a": np.array([1, np.nan])}, True),
        ({"a": [np.zeros(2), "x"]}, {"a": [np.zeros(2), "x"]}, True),
        ({"a": np.zeros(2)}, {"a": np.zeros(2, np.float32)}, False),
        ({"a": np.zeros(2)}, {"a": np.zeros((2, 1))}, False),
        ({"a": 1}, {"b": 1}, False),
        ({"a": [1, 2]}, {"a": [1]}, False),
        (BadSample(0, "k", 0, "x", "s"), BadSample(0, "k", 0, "x", "s"), True),
        (BadSample(0, "k", 0, "x", "s"), {"a": 1}, False),
    ],
)
def test_epochs_are_alike_if_every_bit_is(one, other, same):
    titles = ["epochs 0 to 1, all alike"] if same else ["epoch 0", "epoch 1"]
    assert list(_titled([[one], [other]], "train")) == titles


@pytest.mark.parametrize(
    ("weight", "other", "said"),
    [
        (0.436, 1, "43.6% cat + 56.4% dog"),
        (1.0, 1, "cat"),
        (0.3, 0, "cat"),
    ],
)
def test_mixed_labels_are_names_with_shares(weight, other, said):
    sample = {"label": 0, "label_other": other, "label_weight": weight, "more": 3}
    assert lines_of(sample, {"label": Classes(("cat", "dog"))}) == (said, "more: 3")
