"""Measured numbers from a CSV: what becomes of its rows."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.datasets.annotations.values_csv import CsvValues
from tests.contracts.storage import check_storage
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images

TEXT = "image,age,weight\na.jpg,3.5,1e2\nb,,-7\ndeep/c.jpg,4,0\n"
NAMES = ["a.jpg", "b.jpg", "deep/c.jpg"]


@pytest.fixture
def root(tmp_path):
    write_images(tmp_path, NAMES)
    return tmp_path


def opened(root, text=TEXT, **options):
    (root / "values.csv").write_text(text)
    return open_annotated(root, CsvValues("values.csv", **options))


def rows(storage):
    return [f if isinstance(f, str) else f["values"].tolist() for f in fields_of(storage)]


def test_it_is_a_storage(root):
    values = [[3.5, 100], [8, -7], [4, 0]]
    wanted = [
        (key, {"image": b"image " + key.encode(), "values": np.array(row, np.float32)})
        for key, row in zip(NAMES, values, strict=True)
    ]
    opened(root, TEXT.replace("b,,", "b,8,"))
    check_storage(lambda: open_annotated(root, CsvValues("values.csv")), wanted)


def test_what_is_not_known_is_nan_and_columns_are_in_the_index(root):
    storage = opened(root)
    np.testing.assert_equal(rows(storage)[1], [float("nan"), -7])
    assert storage.index.field_classes == {"values": ("age", "weight")}
    assert storage.index.column("value_weight").tolist() == [100, -7, 0]
    assert rows(opened(root, value_columns=["weight"])) == [[100], [-7], [0]]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("deep/c.jpg,tall,0", r"line 4 of values\.csv: column 'age' is 'tall', expected a number"),
        ("deep/c.jpg,inf,0", r"column 'age' is 'inf', expected a finite number"),
        ("deep/c.jpg,1,0\ndeep/c.jpg,2,0", r"line 5 .*'deep/c\.jpg' is in line 4 too"),
    ],
)
def test_a_broken_row_makes_its_record_bad_and_no_other(root, line, cause):
    found = rows(opened(root, TEXT.replace("deep/c.jpg,4,0", line)))
    with pytest.raises(ValueError, match=cause):
        raise ValueError(found[2])
    assert found[0] == [3.5, 100]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("image,who,age\na,Ann,1\nb,Bo,2\nc,Cy,3\n", {}, "column 'who' is 'Ann'.*value_columns"),
        ("image\na\n", {}, "no column of numbers, only 'image'"),
        (TEXT, {"value_columns": ["hight"]}, "no column 'hight'; columns: 'image', 'age'"),
        ("image,age\na,1\n", {}, "2 of 3 records have no row.*annotations.missing=unknown"),
    ],
)
def test_a_table_without_numbers_is_refused(root, text, options, said):
    with pytest.raises(ValueError, match=said):
        opened(root, text, **options)
