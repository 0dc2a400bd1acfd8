"""Labels, values and boxes from tables: their rows, and records that they do not describe."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.datasets.annotations.tables import CsvBoxes, CsvLabels, CsvValues
from penstock.datasets.map_dataset import MapDataset
from penstock.datasets.mix import MixDataset
from penstock.pipeline.samplers.weighted import WeightedSampler
from penstock.transforms.cpu.stack import Stack
from penstock.transforms.decode.raw import RawDecoder
from tests.contracts.storage import check_storage
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images

NAMES = ["a.jpg", "b.jpg", "deep/c.jpg"]
NAN = float("nan")
HEAD = "image,label,xmin,ymin,xmax,ymax\n"
BOXES = f"""{HEAD}a.jpg,cat,10,20,40,60
deep/c.jpg,"dog, large",1.5,2,3,4.25
a.jpg,ape,-5,0,5,5
b,,,,,
"""
VALUES = "image,age,weight\na.jpg,3.5,1e2\nb,,-7\ndeep/c.jpg,4,0\n"


@pytest.fixture
def root(tmp_path):
    write_images(tmp_path, NAMES)
    return tmp_path


def opened(root, make, text, **options):
    (root / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_annotated(root, make("t.csv", **options))


def read(root, make, text, **options):
    """Return the fields, or the values of their only field, of a, b and c."""
    found = fields_of(opened(root, make, text, **options))
    return found if make is CsvBoxes else [next(iter(f.values())).tolist() for f in found]


def test_annotated_images_are_a_storage(root):
    boxes = [[[10, 20, 40, 60], [0, 0, 5, 5]], [], [[1.5, 2, 3, 4.25]]]
    wanted = [
        (key, {
            "image": b"image " + key.encode(),
            "boxes": np.array(of_key, np.float32).reshape(-1, 4),
            "box_labels": np.array(labels, np.int64),
        })
        for key, of_key, labels in zip(NAMES, boxes, ([1, 0], [], [2]), strict=True)
    ]  # fmt: skip
    assert opened(root, CsvBoxes, BOXES).index.column("boxes").tolist() == [2, 0, 1]
    check_storage(lambda: open_annotated(root, CsvBoxes("t.csv")), wanted)


def test_values_are_a_column_each(root):
    storage = opened(root, CsvValues, VALUES)
    np.testing.assert_equal(storage.index.column("value_age").tolist(), [3.5, NAN, 4])
    assert [f["values"][1] for f in fields_of(storage)] == [100, -7, 0]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("file;tags\na;ape, cow\nb;\nc;bee\n", {}),
        ("image_name,tags\na,ape cow\nb,\nc,bee\n", {"separator": "space"}),
        ("path,label\na.jpg,ape\nb.jpg,\nc.jpg,bee\na.jpg,cow\n", {}),
        ("name\tape\tbee\tcow\na\t1\t0\t1.0\nb\tFalse\t0\t0\nc\t0\tyes\t0\n",
         {"image_column": "name"}),
        ("image,age,ape,bee,cow\na,7,1,-1,1\nb,8,-1,-1,0\nc,9,0,1,-1\n",
         {"classes": ["ape", "bee", "cow"], "minus_one": "absent"}),
    ],
)  # fmt: skip
def test_label_tables_as_people_write_them(root, text, options):
    storage = opened(root, CsvLabels, text, **options)
    assert storage.index.field_classes["labels"] == ("ape", "bee", "cow")
    assert [f["labels"].tolist() for f in fields_of(storage)] == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    ("header", "row", "options"),
    [
        ("filename,width,height,class,xmin,ymin,xmax,ymax", "a.jpg,90,80,cat,1,2,4,6", {}),
        ("ImageID,Source,LabelName,XMin,XMax,YMin,YMax", "a,x,cat,1,4,2,6", {}),
        ("image_id;x;y;w;h;name", "some/folder/a.png;1;2;3;4;cat", {}),
        ("image,label,xmin,ymin,xmax,ymax", "a,cat,0.1,0.2,0.4,0.6", {"normalized": True}),
        ("image,label,xmin,ymin,xmax,ymax,w,h", "a,cat,0.1,0.2,0.4,0.6,90,80",
         {"normalized": True, "size_columns": ("w", "h"), "rescale": True}),
        ("path,x_center,y_center,width,height,label", "a,2.5,4,3,4,cat", {}),
        ("path,x,y,width,height,label", "a,2.5,4,3,4,cat", {"box_format": "cxcywh"}),
        ("n\tk\tp\tq\tr\ts", "a.jpg\tcat\t1\t2\t4\t6",
         {"image_column": "n", "label_column": "k", "box_columns": ("p", "q", "r", "s")}),
    ],
)  # fmt: skip
def test_box_tables_as_people_write_them(root, header, row, options):
    is_normalized = options.pop("normalized", False)
    for text in (f"\n{header}\n\n{row}\n", f"\ufeff{header}\r\n{row}\r\n"):
        found = read(root, CsvBoxes, text, missing="empty", **options)
        boxes = [fields["boxes_normalized" * is_normalized or "boxes"] for fields in found]
        assert boxes[0] * 10**is_normalized == pytest.approx(np.array([[1, 2, 4, 6]]))
        assert not len(boxes[1])


def test_parquet_holds_lists_and_numbers(root):
    table = {"image": ["a", "b", "c"], "tags": [["x y", "z"], ["z"], []], "age": [1.5, None, 2]}
    pq.write_table(pa.table(table), root / "t.parquet")
    found = fields_of(open_annotated(root, CsvLabels("t.parquet")))
    assert [fields["labels"].tolist() for fields in found] == [[1, 1], [0, 1], [0, 0]]
    found = fields_of(open_annotated(root, CsvValues("t.parquet", value_columns=["age"])))
    np.testing.assert_equal([fields["values"].tolist() for fields in found], [[1.5], [NAN], [2]])


def test_unknown_labels_are_nan(root):
    text = "image,ape,bee\na,,-1\nb,1,0\nc,nan,1\n"
    rows = read(root, CsvLabels, text, minus_one="unknown")
    np.testing.assert_equal(rows, [[NAN, NAN], [1, 0], [NAN, 1]])


REFUSED = [
    (CsvLabels, "image,ape,bee\na,1,0\nc,1,0\nb,1,2\n", {}, "line 4: column 'bee': it is '2'"),
    (CsvLabels, "image,ape\na,1\nc,1\nb,-1\n", {}, "line 4: .*annotations.minus_one"),
    (CsvLabels, "image,labels\na,big cat\nb,cow\n", {}, "'labels' has spaces.*=space"),
    (CsvLabels, "image,labels\na,x|y;z\nb,x\n", {}, r"has \| and ;.*separator='\|'"),
    (CsvLabels, "image,age,ape\na,50,1\nb,60,0\nc,1,1\n", {}, "'age': it is '50'.*classes"),
    (CsvLabels, "image\na\nb\n", {}, "annotations.label_column"),
    (CsvLabels, "image,labels\na,cat\n", {}, "2 of 3 records .*annotations.missing=empty"),
    (CsvValues, f"{VALUES}b,tall,0\n", {}, "line 5: column 'age': it is 'tall'.*value_columns"),
    (CsvValues, f"{VALUES}b,2,0\n", {}, "line 5: 'b.jpg' has an earlier row.*faces"),
    (CsvValues, VALUES, {"value_columns": ["hight"]}, "no column 'hight'; columns: 'image'"),
    (CsvBoxes, f"{BOXES}b,cat,1,2,wide,4\n", {}, "line 6: column 'xmax': it is 'wide'"),
    (CsvBoxes, f"{BOXES}b, ,1,2,3,4\n", {}, "line 6: the class is empty"),
    (CsvBoxes, "", {}, "it is empty; write a first line"),
    (CsvBoxes, f"{HEAD}a,cat,1,2,3,4\na,cat, big,1,2,3,4\n", {}, "line 3: got 7 values, exp"),
    (CsvBoxes, f'{HEAD}a,"cat,1,2,3,4\n', {}, "line 2: cannot be read as a CSV"),
    (CsvBoxes, BOXES.replace("label", "kind"), {}, "'kind', .*annotations.label_column"),
    (CsvBoxes, BOXES.replace("xmax", "xmin"), {}, "line 1: column 'xmin'"),
    (CsvBoxes, f"{HEAD},cat,1,2,3,4\n", {}, "line 2: 'image' is empty"),
    (CsvBoxes, BOXES, {"classes": ["dog, large", "cat"]}, "class 'ape' is not among"),
]


@pytest.mark.parametrize(("make", "text", "options", "said"), REFUSED)
def test_a_table_that_does_not_fit_is_refused(root, make, text, options, said):
    with pytest.raises(ValueError, match=said) as caught:
        opened(root, make, text, **options)
    assert "\n" not in str(caught.value) and "t.csv" in str(caught.value)


def test_boxes_are_cut_where_the_size_is_known(root):
    text = f"{HEAD[:-1]},wide,high\na,cat,50,60,200,200,100,80\nb,cat,1,1,3,3,9,9\nc,,,,,,7,7\n"
    assert read(root, CsvBoxes, text)[0]["boxes"].tolist() == [[50, 60, 200, 200]]
    found = read(root, CsvBoxes, text, size_columns=("wide", "high"))
    assert found[0]["boxes"].tolist() == [[50, 60, 100, 80]]
    with pytest.raises(ValueError, match="line 3: the image has"):
        read(root, CsvBoxes, text.replace(",9,9", ",0,9"), size_columns=("wide", "high"))


@pytest.mark.parametrize("box", ["9,9,3,12", "nan,1,2,3", ",,,", "-9,1,-2,3"])
def test_boxes_without_area_are_left_out_with_a_warning(root, box, caplog):
    with caplog.at_level(logging.WARNING):
        found = read(root, CsvBoxes, f"{BOXES}deep/c.jpg,ape,{box}\n")
    assert found[2]["boxes"].tolist() == [[1.5, 2, 3, 4.25]]
    assert found[2]["box_labels"].tolist() == [2]
    assert "1 boxes cover an area of 0" in caplog.text and "deep/c.jpg" in caplog.text


def test_rows_of_other_images_are_ignored(root, caplog):
    text = f"{BOXES}gone.jpg,cow,1,2,3,4\n"
    with caplog.at_level(logging.WARNING):
        found = read(root, CsvBoxes, text)
    assert "1 of 4 names match no record, such as 'gone.jpg'" in caplog.text
    assert found[0]["box_labels"].tolist() == [1, 0]
    found = read(root, CsvBoxes, text, classes=["dog, large", "cat", "ape"])
    assert found[0]["box_labels"].tolist() == [1, 2]


def test_parts_share_the_classes_of_the_training_part(tmp_path, caplog):
    for part in ("train", "val"):
        write_images(tmp_path / part, [f"{part}.jpg"])
    text = f"{HEAD}train,ape,1,1,5,5\ntrain,bee,1,1,5,5\nval,bee,1,1,5,5\n"
    (tmp_path / "t.csv").write_text(text)
    with caplog.at_level(logging.WARNING):
        val = open_annotated(tmp_path, CsvBoxes("t.csv"), split="val")
    assert fields_of(val)[0]["box_labels"].tolist() == [1] and not caplog.text
    (tmp_path / "t.csv").write_text(f"{text}val,cow,1,1,5,5\n")
    with pytest.raises(ValueError, match="class 'cow' is not among the 2 classes"):
        open_annotated(tmp_path, CsvBoxes("t.csv"), split="val")


def test_a_mix_unites_labels_and_marks_missing_ones_as_unknown(tmp_path):
    sources = {}
    for name, text in (("one", "a,cow|ape\n"), ("two", "a,bee\nb,ape\n")):
        write_images(tmp_path / name, NAMES[:2])
        storage = opened(tmp_path / name, CsvLabels, f"image,labels\n{text}", missing="empty")
        stack = Stack({}, build_step=None)
        sources[name] = MapDataset(storage, decode=RawDecoder(), transform=stack, seed=0)
    mix = MixDataset(sources)
    assert mix.index.field_classes["labels"] == ("ape", "cow", "bee")
    found = [sample["labels"].tolist() for sample in mix.fetch(np.arange(4), np.arange(4), 0)]
    np.testing.assert_equal(found, [[1, 1, NAN], [0, 0, NAN], [0, NAN, 1], [1, NAN, 0]])


def test_weighted_draws_by_the_rarest_label(root):
    index = opened(root, CsvLabels, "image,labels\na,cat|dog\nb,cat\nc,cat\n").index
    assert index.column("rarest_label").tolist() == [1, 0, 0]
    for weights, shares in (("balanced", [0.5, 0.25, 0.25]), ({"dog": 8}, [0.8, 0.1, 0.1])):
        drawn = WeightedSampler(3, index=index, weights=weights).indices(0, 0, 10_000)
        assert np.bincount(drawn) / 10_000 == pytest.approx(shares, abs=0.02)
