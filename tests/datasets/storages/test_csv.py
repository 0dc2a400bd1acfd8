"""CSV: types, missing values, images beside the file, and paths that lead elsewhere."""

from __future__ import annotations

import csv
import math
import os
import pickle

import numpy as np
import pytest

from penstock.datasets.storages.csv import CsvStorage
from tests.contracts.storage import read_all
from tests.datasets.storages.checks import check_with_copy, refusal

rng = np.random.default_rng(0)


def put(path, rows, *, images=(), **options):
    """Write rows by the library's writer, and image files beside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding=options.pop("encoding", "utf-8"), newline="") as file:
        csv.writer(file, **options).writerows(rows)
    for name in images:
        (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / name).write_bytes(name.encode())
    return str(path)


ROWS = [
    ["image", "label", "caption", "age", "score", "zip"],
    ["i/a.jpg", "dog", 'says "hi",\nthen', "3", "1.5", "007"],
    ["i/b ü.jpg", "cat", "ünï", "-4", "2", "12"],
    ["i/c.jpg", "dog", "", "5", "1e3", "3"],
]
NAMES = ["i/a.jpg", "i/b ü.jpg", "i/c.jpg"]
FIELDS = [
    {"label": 1, "caption": 'says "hi",\nthen', "age": 3, "score": 1.5, "zip": "007"},
    {"label": 0, "caption": "ünï", "age": -4, "score": 2.0, "zip": "12"},
    {"label": 1, "caption": None, "age": 5, "score": 1000.0, "zip": "3"},
]


def expected(fields=FIELDS):
    return [
        (name, {"image": name.encode(), **row}) for name, row in zip(NAMES, fields, strict=True)
    ]


@pytest.mark.parametrize("written", [{}, {"lineterminator": "\n", "encoding": "utf-8-sig"},
                                     {"quoting": csv.QUOTE_ALL}])  # fmt: skip
def test_contract(tmp_path, written):
    path = put(tmp_path / "t.csv", ROWS, images=NAMES, **written)
    processes = ("forked",) if written else ("forked", "new")
    check_with_copy(CsvStorage, path, expected(), processes=processes)
    assert CsvStorage(path).index.class_names == ("cat", "dog")


def test_missing_values(tmp_path):
    rows = [
        ["n", " x", "s", "big", "e", "q"],
        ["1", " 0.5", "a", "9" * 25, "", " 3"],
        ["NA", " nan", "?", "1", "", " ?"],
    ]
    path = put(tmp_path / "t.tsv", rows, delimiter="\t")
    first, second = CsvStorage(path).read(np.arange(2))
    assert math.isnan(first.fields.pop("e"))
    assert first.fields == {"n": 1.0, "x": 0.5, "s": "a", "big": "9" * 25, "q": 3.0}
    assert all(math.isnan(second.fields[name]) for name in "nxeq")
    assert second.fields["s"] is None
    assert (first.key, second.key) == ("00000000", "00000001")


def test_spaces_around_numbers_and_labels_do_not_count(tmp_path):
    (tmp_path / "t.csv").write_text("age, work, label\n 39, a b, x\n ?, ?, y\n")
    first, second = CsvStorage(str(tmp_path / "t.csv")).read(np.arange(2))
    assert first.fields == {"age": 39.0, "work": " a b", "label": 0}
    assert math.isnan(second.fields["age"]) and second.fields["work"] is None


def test_columns_keys_and_labels(tmp_path):
    path = put(tmp_path / "t.csv", ROWS, images=NAMES)
    records = CsvStorage(path, key_column="zip", columns=["age"]).read(np.arange(3))
    assert [r.key for r in records] == ["007", "12", "3"]
    assert records[0].fields == {"image": b"i/a.jpg", "label": 1, "age": 3}
    ids = CsvStorage(path, label_column="age", columns=[], classes=["5", "3", "x"])
    refusal(ids, "line 4: the label is missing")


def test_paths_and_links_stay_below_the_root(tmp_path):
    path = put(tmp_path / "d/t.csv", [["image"], ["in.jpg"], ["../x.jpg"], ["/x.jpg"]])
    (tmp_path / "x.jpg").write_bytes(b"x")
    (tmp_path / "d/in.jpg").symlink_to("../x.jpg")
    bad = CsvStorage(path).read(np.arange(3))
    assert ["leads out of its folder" in record.cause for record in bad] == [True] * 3
    put(tmp_path / "d/t.csv", [["image"], ["d/in.jpg"]])
    [good] = CsvStorage(path, root=str(tmp_path)).read(np.arange(1))
    assert good.fields["image"] == b"x"


FILES = {
    "empty": (b"", {}, "it is empty; write a first line"),
    "column_twice": (b"a,b,a\n1,2,3\n", {}, "2 column 'a', expected one"),
    "long_row": (b"a,b\n1,2\n1,2,3\n", {}, "line 3: got 3 values, expected 2"),
    "open_quote": (b'a,b\n1,2\n"3,4\n', {}, "cannot be read as a CSV"),
    "binary": (b"\x00\xff\x00" * 50, {}, "cannot be read as a CSV in UTF-8"),
    "label": (b"a,label\n1,x\n2,\n", {}, "line 3: the label is missing"),
    "no_key": (b"k\na\nNA\n", {"key_column": "k"}, "column 'k' lacks a key in record 1"),
    "huge": (b"a,b\n1,x\n2," + b"x" * (1 << 26), {}, "cannot be read"),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_cannot_be_read(tmp_path, case):
    content, options, message = FILES[case]
    (tmp_path / "t.csv").write_bytes(content)
    refusal(CsvStorage(str(tmp_path / "t.csv"), **options), f"^csv {tmp_path}/t.csv: .*{message}")


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_the_first_line_shows_the_delimiter(tmp_path, delimiter):
    rows = [["name", "text", "label"], ["1", "a,b", "x"], ["2", "c", "y"]]
    path = put(tmp_path / "t.csv", rows, delimiter=delimiter)
    found = [record.fields for record in read_all(CsvStorage(path))]
    assert found == [{"name": 1, "text": "a,b", "label": 0}, {"name": 2, "text": "c", "label": 1}]


def test_files_of_a_folder_are_one_table(tmp_path):
    for name in "ab":
        put(tmp_path / f"{name}.csv", [["x", "label"], [name, "b"], ["ä", name]])
    storage = CsvStorage(str(tmp_path))
    assert [record.fields for record in read_all(storage)] == [
        {"x": "a", "label": 1}, {"x": "ä", "label": 0}, {"x": "b", "label": 1},
        {"x": "ä", "label": 1},
    ]  # fmt: skip


def test_a_run_keeps_the_file_that_it_opened(tmp_path):
    path = put(tmp_path / "t.csv", [*ROWS, ["", "cat", "no image", "1", "2", "9"]], images=NAMES)
    storage = CsvStorage(path, key_column="zip")
    *before, bad = storage.read(np.arange(4))
    assert bad.cause == "its row lacks an image, expected its bytes, or the path of a file"
    put(tmp_path / "t.csv", ROWS[:2])
    assert storage.read(np.arange(3)) == before
    assert len(CsvStorage(path)) == 1
    os.unlink(path)
    elsewhere = pickle.loads(pickle.dumps(storage))
    assert elsewhere.read(np.arange(3)) == before


@pytest.mark.parametrize(
    ("values", "types"),
    [
        (["1", "-2"], [int, int]),
        (["1", ""], [float, float]),
        (["1", "2.5"], [float, float]),
        (["9007199254740993", "1"], [int, int]),
        (["9007199254740993", ""], [str, type(None)]),
        (["9007199254740993", "2.5"], [str, str]),
        (["18446744073709551615", "1"], [str, str]),
        (["9007199254740992", ""], [float, float]),
        (["1e5", "inf"], [float, float]),
        (["1", "007"], [str, str]),
        (["0x1f", "3"], [str, str]),
        (["1_0", "3"], [str, str]),
        (["true", "3"], [str, str]),
        (["2024-01-01", "2024-01-02"], [str, str]),
    ],
)
def test_a_column_has_the_narrowest_type_of_its_values(tmp_path, values, types):
    path = tmp_path / "t.csv"
    path.write_text("".join(f"x,{value}\n" for value in ["v", *values]))
    assert [type(record.fields["v"]) for record in read_all(CsvStorage(str(path)))] == types


def test_long_texts_in_quotes(tmp_path):
    path, text = tmp_path / "t.csv", "a, b" * 50_000
    path.write_text(f'label,v\n1,"{text}"\n0,x\n')
    assert [record.fields["v"] for record in read_all(CsvStorage(str(path)))] == [text, "x"]
