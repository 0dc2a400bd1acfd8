"""Tables: what numbers are scaled by, what ids stand for, and what is refused."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path

import numpy as np
import pytest

from penstock.core.sample import Record
from penstock.transforms.decode.table import TableDecoder
from penstock.transforms.table_statistics import TableStatistics

NAN = math.nan
ROWS = [
    {"age": 10.0, "city": "Rome", "code": 7, "flat": 3, "label": 1},
    {"age": NAN, "city": "Rome", "code": 7, "flat": 3, "label": 0},
    {"age": 20.0, "city": None, "code": 9, "flat": 3, "label": 1},
    {"age": 60.0, "city": "Oslo", "code": 7, "flat": 3, "label": 1},
]


def columns_of(rows):
    return {
        name: [row.get(name) for row in rows] for name in dict.fromkeys(n for r in rows for n in r)
    }


def fitted(rows=ROWS, *, chunk: int = 2, **arguments) -> TableDecoder:
    decoder = TableDecoder(**arguments)
    chunks = [columns_of(rows[n : n + chunk]) for n in range(0, len(rows), chunk)]
    decoder.learn(decoder.fit(chunks, where="table"))
    return decoder


def decoded(decoder: TableDecoder, **changes):
    fields = {**ROWS[0], **changes}
    before = copy.deepcopy(fields)
    sample = decoder(Record(3, "k", fields))
    assert fields == before
    return sample


def test_numbers_are_scaled_filled_in_and_marked_where_they_lack():
    decoder = fitted(categorical=["code"])
    mean, std = 30.0, math.sqrt((400 + 100 + 900) / 3)
    sample = decoded(decoder)
    assert sample["features"].dtype == np.float32 and sample["categories"].dtype == np.int64
    assert np.allclose(sample["features"], [(10 - mean) / std, 0, 0])
    assert np.allclose(decoded(decoder, age=None)["features"], [(20 - mean) / std, 0, 1])
    assert decoder.num_features == 3 and decoder.num_categories == (3, 3)
    assert (sample["index"], sample["key"], sample["label"]) == (3, "k", 1)
    assert set(sample) == {"features", "categories", "index", "key", "label"}


@pytest.mark.parametrize(
    ("scaling", "wanted"),
    [("min_max", 0.2), ("robust", 0.0), ("none", 20.0), ("standard", -10 / math.sqrt(1400 / 3))],
)
def test_each_scaling_is_what_its_name_says(scaling, wanted):
    decoder = fitted(scaling=scaling, indicators=False)
    assert decoded(decoder, age=20.0)["features"][0] == pytest.approx(wanted, rel=1e-6)
    assert decoder.num_features == 3  # age, code, flat


@pytest.mark.parametrize(("policy", "fill", "wanted"), [("mean", 0, 30), ("median", 0, 20),
                                                       ("constant", -5.0, -5)])  # fmt: skip
def test_what_stands_for_a_missing_number(policy, fill, wanted):
    decoder = fitted(scaling="none", missing=policy, fill=fill)
    assert decoded(decoder, age=NAN)["features"][0] == wanted


def test_ids_are_by_frequency_and_the_unknown_is_zero():
    decoder = fitted(categorical=["code"])
    assert decoded(decoder)["categories"].tolist() == [1, 1]
    assert decoded(decoder, city="Oslo", code=9)["categories"].tolist() == [2, 2]
    assert decoded(decoder, city="Paris", code=8)["categories"].tolist() == [0, 0]
    assert decoded(decoder, city=None, code=9.0)["categories"].tolist() == [0, 2]
    rare = fitted(min_count=2)
    assert decoded(rare, city="Oslo")["categories"].tolist() == [0]
    assert fitted(max_categories=1).num_categories == (2,)


def test_the_target_keeps_its_units_and_is_no_feature():
    decoder = fitted(target="age")
    sample = decoded(decoder)
    assert sample["target"] == 10.0 and "age" not in sample and len(sample["features"]) == 2
    assert decoder.statistics is not None and decoder.statistics.target is not None
    assert decoder.statistics.target.mean == 30
    with pytest.raises(ValueError, match="its target 'age' is missing"):
        decoded(decoder, age=NAN)


def test_chunks_do_not_change_the_figures():
    rng = np.random.default_rng(0)
    rows = [{"x": float(x), "c": str(int(x) % 5)} for x in 1e6 + rng.normal(size=1000)]
    one, many = fitted(rows, chunk=1000).statistics, fitted(rows, chunk=7).statistics
    assert one is not None and many is not None
    assert one.categorical == many.categorical and one.numeric[0].count == 1000
    values = np.array([row["x"] for row in rows])
    for column in (one.numeric[0], many.numeric[0]):
        assert column.mean == pytest.approx(values.mean(), rel=1e-12)
        assert column.std == pytest.approx(values.std(), rel=1e-9)
        assert column.quartiles == tuple(np.quantile(values, [0.25, 0.5, 0.75]))


def test_plain_values_give_the_figures_that_they_give_one_by_one():
    class Text(str):
        """Of another type, so that each is looked at by itself."""

    numbers = [1, 2.5, None, NAN, math.inf, -math.inf, 2**60 + 1, -0.0, 3, 1e100]
    texts = ["a", "", None, "b", "a", "nan", "7", "b", "b", "ü"]
    rows = [{"x": x, "c": c} for x, c in zip(numbers, texts, strict=True)]
    others = [
        {"x": np.float64(row["x"]) if row["x"] is not None else None,
         "c": Text(row["c"]) if row["c"] is not None else None}
        for row in rows
    ]  # fmt: skip
    for chunk in (1, 3, 10):
        figures = fitted(rows, chunk=chunk).statistics
        assert figures == fitted(others, chunk=chunk).statistics
        assert figures is not None and figures.categorical[0].values == ("b", "a", "7", "nan", "ü")
        assert (figures.numeric[0].count, figures.numeric[0].missing) == (6, 4)
        assert figures.categorical[0].missing == 2


def test_quartiles_of_a_column_on_disk(monkeypatch):
    monkeypatch.setattr("penstock.transforms.table_statistics._SPOOL_BYTES", 2000)
    statistics = fitted([{"x": n % 100} for n in range(20_000)], chunk=500).statistics
    assert statistics is not None and statistics.numeric[0].count == 20_000
    assert statistics.numeric[0].quartiles == (24.75, 49.5, 74.25)


def test_a_missing_value_before_the_type_is_known_counts():
    statistics = fitted([{"x": None}, {"x": None}, {"x": None}, {"x": 2}]).statistics
    assert statistics is not None and statistics.numeric[0].missing == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"age": "old"}, "column 'age': 'old' is not a number"),
        ({"age": math.inf}, "column 'age': inf is not a finite number"),
        ({"age": 1e300}, "column 'age' is too large"),
        ({"city": b"x"}, "column 'city'"),
        ({"age": np.zeros(2)}, "column 'age'"),
    ],
)
def test_a_bad_value_is_one_line_about_its_row(changes, said):
    with pytest.raises(ValueError, match=said) as raised:
        decoded(fitted(), **changes)
    assert "\n" not in str(raised.value)


def test_a_column_that_is_gone_is_said():
    with pytest.raises(ValueError, match="no column 'age', which the training part has"):
        fitted()(Record(0, "k", {"city": "Rome", "code": 1, "flat": 3}))


@pytest.mark.parametrize(
    ("rows", "arguments", "said"),
    [
        (ROWS, {"numeric": ["agee"]}, "no column 'agee'; columns: age, city, code, flat"),
        (ROWS, {"target": "prise"}, "no column 'prise'"),
        ([{"x": None, "y": 1}], {}, "column 'x' lacks a usable value"),
        ([{"x": "a", "y": 1}], {"numeric": ["x"]}, "column 'x' lacks a usable value"),
        ([{"x": "a"}, {"x": 1}], {}, "column 'x' holds text and numbers"),
        ([{"x": 1}, {"x": "a"}], {}, "column 'x' holds text and numbers"),
        ([{"y": 1, "t": None}], {"target": "t"}, "target 't' lacks a number"),
        ([{"label": 1}], {}, "no column of numbers or text"),
        ([], {}, "no row to train on, .*; lower dataset.val_fraction"),
        ([], {"target": "t"}, "no row to train on"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(rows, arguments, said):
    with pytest.raises(ValueError, match=said) as raised:
        fitted(rows, **arguments)
    assert "\n" not in str(raised.value)


def test_a_text_in_a_declared_column_of_numbers_leaves_the_figures_alone():
    decoder = fitted([{"x": 1}, {"x": "a"}, {"x": 3}, {"x": math.inf}], numeric=["x"])
    assert decoder.statistics is not None
    assert (decoder.statistics.numeric[0].mean, decoder.statistics.numeric[0].high) == (2, 3)


def test_arrays_are_no_columns_and_pass():
    decoder = fitted([{"x": 1, "wave": np.zeros(3)}])
    sample = decoder(Record(0, "k", {"x": 1, "wave": np.ones(3)}))
    assert sample["wave"].tolist() == [1, 1, 1]


def test_a_decoder_and_its_statistics_travel(tmp_path: Path):
    decoder = fitted()
    again = pickle.loads(pickle.dumps(decoder))
    assert np.array_equal(decoded(again)["features"], decoded(decoder)["features"])
    assert decoder.statistics is not None
    content = decoder.statistics.as_json()
    assert TableStatistics.from_json(content, where="here") == decoder.statistics
    for broken in ([], {}, {**content, "version": 0}, {**content, "numeric": [{"name": "x"}]}):
        with pytest.raises(ValueError, match="here: no statistics of a table"):
            TableStatistics.from_json(broken, where="here")
    with pytest.raises(ValueError, match="cannot be read"):
        TableDecoder(statistics=str(tmp_path / "none.json"))


def test_a_column_named_twice_is_refused():
    with pytest.raises(ValueError, match="'age' is named twice"):
        TableDecoder(numeric=["age"], target="age")


def test_words_without_end_are_no_categories(monkeypatch):
    monkeypatch.setattr("penstock.transforms.table_statistics._MOST_DISTINCT", 3)
    rows = [{"x": x, "y": n} for n, x in enumerate("abcde")]
    with pytest.raises(ValueError, match="column 'x' has more than 3 different values"):
        fitted(rows, categorical=["x"])
    assert dict(fitted(rows, numeric=["y"]).statistics.left_out).keys() == {"x"}
