"""One rule by which names in label files find their records."""

from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.datasets.annotations.labels_csv import CsvLabels
from penstock.datasets.annotations.values_csv import CsvValues
from penstock.datasets.records.label_tables import LabelTable
from penstock.datasets.records.matching import match_keys, matched, plain
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.pipeline.collating import from_arrays
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images

KEYS = ["a/0.png", "a/1.png", "b/2.png"]
NFC, NFD = (unicodedata.normalize(form, "a/caf\u00e9.png") for form in ("NFC", "NFD"))


def rows(names, keys=KEYS):
    """The number of the name that each key gets."""
    found = match_keys(keys, list(map(plain, names)), place="/data/images", where="labels")
    return [None if name is None else list(map(plain, names)).index(name) for name in found]


@pytest.mark.parametrize(
    "names",
    [
        ["a/0.png", "a/1.png", "b/2.png"],
        ["0.png", "1.png", "2.png"],
        ["images/a/0.png", "images/a/1.png", "images/b/2.png"],
        ["a\\0.png", ".\\a\\1.png", "./b/2.png"],
        ["/data/images/a/0.png", "/data/images/a/1.png", "/data/images/b/2.png"],
        ["C:\\Users\\me\\a\\0.png", "C:\\Users\\me\\a\\1.png", "D:\\b\\2.png"],
        ["a/0", "1", "images/b/2"],
        ["a/0.jpg", "a/1.jpg", "b/2.jpg"],
    ],
)
def test_names_as_people_write_them(names):
    assert rows(names) == [0, 1, 2]


def test_one_file_whose_name_is_in_nfc_or_nfd():
    assert NFC != NFD
    assert rows([NFC], [NFD]) == rows([NFD], [NFC]) == [0]
    with pytest.raises(ValueError, match="may be"):
        rows([NFC], [NFC, NFD])


@pytest.mark.parametrize(
    ("names", "keys", "found"),
    [
        (["0.png", "a/0.png"], ["a/0.png", "0.png"], [1, 0]),  # the whole name comes first
        (["b/0.png"], ["a/0.png"], [None]),  # another folder is another file
        (["c/images/a/0.png"], ["a/0.png", "a/1.png"], [0, None]),
        (["images/a/0.png", "other/a/1.png"], KEYS, [0, None, None]),  # of another part
        (["v1.0", "v1.1"], ["v1.0.png", "v1.1.png"], [0, 1]),
        ([], KEYS, [None] * 3),
    ],
)
def test_a_name_finds_no_other_record(names, keys, found):
    assert rows(names, keys) == found


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (["0.png"], ["a/0.png", "b/0.png"]),
        (["0"], ["a/0.png", "b/0.jpg"]),
        (["a/0.bmp", "a/0.jpg"], ["a/0.png"]),
        (["x/a/0.png", "y/a/0.png"], ["a/0.png"]),
    ],
)
def test_a_name_that_fits_equally_well_is_refused(names, keys):
    with pytest.raises(ValueError, match="0"):
        rows(names, keys)


def test_names_that_match_nothing_are_counted_and_three_are_shown():
    names = [f"x/{n}.gif" for n in range(1200)]
    with pytest.raises(ValueError, match=r"1,200 of 1,200 .*'x/0\.gif', 'x/1\.gif', 'x/2\.gif';"):
        matched(KEYS, names, None, place="", where="labels")
    with pytest.raises(ValueError, match=r"2 of 3 records .*'a/1.png', 'b/2.png'"):
        matched(KEYS, ["0.png"], None, place="", where="labels")


@pytest.mark.parametrize(
    "rows",
    [
        "key,label\n0.png,x\n1.png,y\n",
        "key;label\na\\0.png;x\na\\1.png;y\n",
        "filename\tclass\nimages/a/0.png\tx\nimages/a/1.png\ty\n",
        None,
    ],
)
def test_a_table_of_labels_beside_image_files(tmp_path, rows):
    write_images(tmp_path / "images", ["a/0.png", "a/1.png"])
    path = tmp_path / "labels.csv"
    if rows is None:
        path = tmp_path / "labels.parquet"
        pq.write_table(pa.table({"image": ["a/0.png", "a/1.png"], "label": ["x", "y"]}), path)
    else:
        path.write_text(rows)
    index = ImageFolder(str(tmp_path / "images"), labels=str(path)).index
    assert index.column("label").tolist() == [0, 1] and index.class_names == ("x", "y")


def test_a_parquet_file_holds_lists_and_numbers(tmp_path):
    write_images(tmp_path, ["a.jpg", "b.jpg"])
    table = {"image": ["a", "b"], "tags": [["x, y", "z"], ["z"]], "age": [1.5, None]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    storage = open_annotated(tmp_path, CsvLabels("t.parquet"))
    assert [fields["labels"].tolist() for fields in fields_of(storage)] == [[1, 1], [0, 1]]
    storage = open_annotated(tmp_path, CsvValues("t.parquet", value_columns=["age"]))
    assert str([fields["values"].tolist() for fields in fields_of(storage)]) == "[[1.5], [nan]]"
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"t\.parquet"):
        LabelTable.read(str(tmp_path / "t.parquet"), where="t.parquet")


def test_an_error_quotes_the_beginning_of_a_long_value(tmp_path):
    write_images(tmp_path, ["a.jpg", "b.jpg"])
    long = "x" * 40_000
    for rows in (f"a,{long}\na,y\n", f"{long},y\n", f"a,{long}\nb,{long}\n"):
        (tmp_path / "labels.csv").write_text(f"image,label\n{rows}")
        with pytest.raises(ValueError, match="x" * 100) as raised:
            _ = ImageFolder(str(tmp_path), labels="labels.csv", classes=["z"]).index
        assert len(str(raised.value)) < 1500


def test_several_objects_in_one_image_are_named(tmp_path):
    with pytest.raises(ValueError, match="'b'; an image shows several objects"):
        from_arrays("keypoints", [np.zeros((2, 3)), np.zeros((4, 3))], ["a", "b"], remedy="a crop")
    write_images(tmp_path, ["a.jpg", "b.jpg"])
    (tmp_path / "faces.csv").write_text("image,age\na,1\na,2\nb,3\nb,4\n")
    with pytest.raises(ValueError, match=r"2 images .*'a' in line 2 and line 3.*faces"):
        open_annotated(tmp_path, CsvValues("faces.csv"))
    (tmp_path / "faces.csv").write_text("image,label\na,x\na,y\nb,x\n")
    with pytest.raises(ValueError, match=r"line 3: 'a' is 'y' .*faces.*boxes_csv"):
        _ = ImageFolder(str(tmp_path), labels=str(tmp_path / "faces.csv")).index
