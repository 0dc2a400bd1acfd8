"""Tables: scaling, ids of categories, and refusals."""

from __future__ import annotations

import copy
import json
import math
import pickle

import numpy as np
import pytest

from penstock.core.sample import Record
from penstock.transforms import table_statistics
from penstock.transforms.decode.table import TableDecoder

NAN = math.nan
ROWS = [
    {"age": 10.0, "city": "Rome", "code": 7, "flat": 3, "label": 1},
    {"age": NAN, "city": "Rome", "code": 7, "flat": 3, "label": 0},
    {"age": 20.0, "city": None, "code": 9, "flat": 3, "label": 1},
    {"age": 60.0, "city": "Oslo", "code": 7, "flat": 3, "label": 1},
]


def fitted(rows=ROWS, *, chunk: int = 2, **arguments) -> TableDecoder:
    decoder = TableDecoder(**arguments)
    chunks = []
    for start in range(0, len(rows), chunk):
        some = rows[start : start + chunk]
        names = dict.fromkeys(name for row in some for name in row)
        chunks.append({name: [row.get(name) for row in some] for name in names})
    decoder.learn(decoder.fit(chunks, where="table"))
    return decoder


def decoded(decoder: TableDecoder, **changes):
    fields = {**ROWS[0], **changes}
    before = copy.deepcopy(fields)
    sample = decoder(Record(3, "k", fields))
    assert fields == before
    return sample


def test_numbers_are_scaled_filled_in_and_marked():
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
    ("arguments", "age", "expected"),
    [
        ({"scaling": "min_max"}, 20.0, 0.2),
        ({"scaling": "robust"}, 20.0, 0.0),
        ({"scaling": "none"}, 20.0, 20.0),
        ({"scaling": "none", "missing": "mean"}, NAN, 30),
    ],
)
def test_scaling_and_replacing(arguments, age, expected):
    features = decoded(fitted(**arguments), age=age)["features"]
    assert features[0] == pytest.approx(expected, rel=1e-6) and len(features) == 4


def test_ids_are_by_frequency_and_the_unknown_is_zero():
    decoder = fitted(categorical=["code"])
    for changes, ids in (
        ({}, [1, 1]),
        ({"city": "Oslo", "code": 9}, [2, 2]),
        ({"city": "Paris", "code": 8}, [0, 0]),
        ({"city": None, "code": 9.0}, [0, 2]),
    ):
        assert decoded(decoder, **changes)["categories"].tolist() == ids
    assert decoded(fitted(min_count=2), city="Oslo")["categories"].tolist() == [0]


def test_the_target_keeps_its_units_and_is_no_feature():
    decoder = fitted(target="age")
    sample = decoded(decoder)
    assert sample["target"] == 10.0 and "age" not in sample and len(sample["features"]) == 2
    assert decoder.statistics.target.mean == 30
    with pytest.raises(ValueError, match="its target 'age' is missing"):
        decoded(decoder, age=NAN)


@pytest.mark.parametrize("chunk", [1, 3, 1000])
@pytest.mark.parametrize("number", [float, np.float64])
def test_statistics_are_exact_for_any_chunks_and_types(chunk, number, monkeypatch):
    monkeypatch.setattr(table_statistics, "_SPOOL_BYTES", 2000)  # use a file on disk
    values = 1e6 + np.random.default_rng(0).normal(size=1000)
    rows = [{"x": number(x), "c": str(int(x) % 5)} for x in values]
    more = [None, NAN, math.inf, -math.inf]
    statistics = fitted([*({"x": x, "c": ""} for x in more), *rows], chunk=chunk).statistics
    [x], [c] = statistics.numeric, statistics.categorical
    assert (x.count, x.missing, c.missing, c.others) == (1000, 4, 4, 0)
    assert (x.low, x.high) == (values.min(), values.max())
    assert (x.mean, x.std) == pytest.approx((values.mean(), values.std()), rel=1e-9)
    assert x.quartiles == tuple(np.quantile(values, [0.25, 0.5, 0.75]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"age": "old"}, "column 'age': 'old' is not a finite number"),
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
    with pytest.raises(ValueError, match="no column 'age', which the training part has"):
        fitted()(Record(0, "k", {"city": "Rome", "code": 1, "flat": 3}))


@pytest.mark.parametrize(
    ("rows", "arguments", "said"),
    [
        (ROWS, {"numeric": ["agee"]}, "no column 'agee'; columns: age, city, code, flat"),
        ([{"x": None, "y": 1}], {}, "column 'x' lacks a usable value"),
        ([{"label": 1}], {}, "no column of numbers or text"),
        ([{"image": b"x", "x": 1}], {}, r"dataset.keys=\{image:null\}"),
        ([], {"target": "t"}, "no row to train on; lower dataset.val_fraction"),
        (ROWS, {"numeric": ["age"], "target": "age"}, "'age' stands twice"),
        (ROWS, {"statistics": "/missing.json"}, "statistics=/missing.json"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(rows, arguments, said):
    with pytest.raises(ValueError, match=said) as raised:
        fitted(rows, **arguments)
    assert "\n" not in str(raised.value)


def test_a_decoder_and_its_statistics_travel(tmp_path):
    content = (decoder := fitted()).statistics.as_json()
    (tmp_path / "table.json").write_text(json.dumps(content))
    read = TableDecoder(statistics=str(tmp_path / "table.json"))
    for again in (pickle.loads(pickle.dumps(decoder)), read):
        assert np.array_equal(decoded(again)["features"], decoded(decoder)["features"])
        assert again.statistics == decoder.statistics
    for broken in ([], {}, {**content, "numeric": [{"name": "x"}]}):
        with pytest.raises(ValueError, match="no statistics of a table"):
            TableDecoder().learn(broken)
