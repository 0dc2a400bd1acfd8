"""Boxes from a CSV: what becomes of its rows."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from penstock.core.sample import Record
from penstock.datasets.annotations.boxes_csv import CsvBoxes
from penstock.datasets.annotations.coco import CocoAnnotations
from penstock.datasets.demo.shapes import demo_path
from penstock.datasets.records.splits import StorageRecipe, open_split
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.transforms.decode.image import ImageDecoder
from tests.contracts.storage import check_storage
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images

TEXT = """image,label,xmin,ymin,xmax,ymax
a.jpg,cat,10,20,40,60
deep/b.jpg,"dog, large",1.5,2,3,4.25
a.jpg,ape,-5,0,5,5
c.jpg,,,,,
"""


@pytest.fixture
def root(tmp_path):
    write_images(tmp_path, ["a.jpg", "c.jpg", "d.jpg", "deep/b.jpg"])
    (tmp_path / "boxes.csv").write_text(TEXT)
    return tmp_path


def read(root, text=None, encoding="utf-8", **options):
    """Annotated fields of a, c, d and b, with another text in the file."""
    if text is not None:
        data = text if isinstance(text, bytes) else text.encode(encoding)
        (root / "boxes.csv").write_bytes(data)
    options = {"missing": "empty", **options}
    return fields_of(open_annotated(root, CsvBoxes("boxes.csv", **options)))


def boxes(fields):
    assert not isinstance(fields, str), fields
    return fields["boxes"].tolist()


def test_it_is_a_storage(root):
    def fields(key, boxes, labels):
        return key, {
            "image": b"image " + key.encode(),
            "boxes": np.array(boxes, np.float32).reshape(-1, 4),
            "box_labels": np.array(labels, np.int64),
        }

    wanted = [
        fields("a.jpg", [[10, 20, 40, 60], [0, 0, 5, 5]], [1, 0]),
        fields("c.jpg", [], []),
        fields("d.jpg", [], []),
        fields("deep/b.jpg", [[1.5, 2, 3, 4.25]], [2]),
    ]
    check_storage(lambda: open_annotated(root, CsvBoxes("boxes.csv")), wanted)
    index = open_annotated(root, CsvBoxes("boxes.csv")).index
    assert index.field_classes == {"box_labels": ("ape", "cat", "dog, large")}
    assert index.column("boxes").tolist() == [2, 0, 0, 1]


@pytest.mark.parametrize(
    ("header", "row", "options"),
    [
        ("filename,width,height,class,xmin,ymin,xmax,ymax", "a.jpg,90,80,cat,1,2,4,6", {}),
        ("ImageID,Source,LabelName,XMin,XMax,YMin,YMax", "a,x,cat,1,4,2,6", {}),
        ("image_id;x;y;w;h;name", "some/folder/a.png;1;2;3;4;cat", {}),
        ("path,x_center,y_center,width,height,label", "a,2.5,4,3,4,cat", {}),
        ("path,x,y,width,height,label", "a,2.5,4,3,4,cat", {"box_format": "cxcywh"}),
        ("n\tk\tp\tq\tr\ts", "a.jpg\tcat\t1\t2\t4\t6",
         {"image_column": "n", "label_column": "k", "box_columns": ("p", "q", "r", "s")}),
        ("", "a.jpg,1,2,4,6,cat",
         {"header": ["image", "x1", "y1", "x2", "y2", "class"]}),
    ],
)  # fmt: skip
def test_columns_as_people_write_them(root, header, row, options):
    text = f"\n{header}\n\n{row}\n" if header else f"{row}\n"
    for end, mark in (("\n", ""), ("\r\n", "\ufeff")):
        found = read(root, mark + text.lstrip("\n").replace("\n", end), **options)
        assert boxes(found[0]) == [[1, 2, 4, 6]] and boxes(found[1]) == []


def test_boxes_are_cut_where_the_size_is_known(root):
    header = "image,label,xmin,ymin,xmax,ymax,wide,high\n"
    text = header + "a.jpg,cat,50,60,200,200,100,80\nc.jpg,cat,1,1,3,3,0,80\n"
    assert boxes(read(root, text)[0]) == [[50, 60, 200, 200]]
    found = read(root, text, size_columns=("wide", "high"))
    assert boxes(found[0]) == [[50, 60, 100, 80]]
    assert "line 3 of boxes.csv: the image has 0 x 80 pixels" in found[1]
    text += "a.jpg,cat,1,1,3,3,100,81\n"
    assert (
        "(100, 81) pixels here and (100, 80)" in read(root, text, size_columns=("wide", "high"))[0]
    )


def test_shares_of_the_image_become_pixels_when_it_is_decoded(root):
    text = "image,label,xmin,ymin,xmax,ymax\na,cat,0.25,0.5,0.5,1.25\na,cat,1.2,0,2,1\n"
    annotations = CsvBoxes("boxes.csv", coordinates="normalized", missing="empty")
    (root / "boxes.csv").write_text(text)
    storage = open_annotated(root, annotations)
    (record, empty) = storage.read(np.array([0, 1]))
    assert record.fields["boxes_normalized"].tolist() == [[0.25, 0.5, 0.5, 1]]
    image = np.zeros((60, 80, 3), np.uint8)
    for one, expected in ((record, [[20, 30, 40, 60]]), (empty, [])):
        fields = {**one.fields, "image": image}
        decoder = ImageDecoder()
        for decode in (decoder, decoder.defer):
            sample = decode(Record(one.index, one.key, fields))
            assert sample["boxes"].tolist() == expected and sample["boxes"].dtype == np.float32
            assert sample["boxes"].shape[1] == 4 and "boxes_normalized" not in sample


def test_the_wrong_unit_is_seen(root):
    with pytest.raises(ValueError, match=r"most boxes reach beyond 1, up to 60, .*=pixels"):
        read(root, coordinates="normalized")
    shares = "image,label,xmin,ymin,xmax,ymax\na,cat,0.25,0.5,0.5,1\n"
    with pytest.raises(ValueError, match=r"all boxes lie between 0 and 1, .*=normalized"):
        read(root, shares)
    assert boxes(read(root, shares.replace("0.25,0.5,0.5", "0,0,1"))[0]) == [[0, 0, 1, 1]]


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ("a.jpg,cat,1,2,wide,4", "line 6 of boxes.csv: xmax"),
        ("a.jpg,cat,1,2,1_0,4", "xmax is '1_0', expected a number"),
        ("a.jpg,cat,NA,2,3,4", "xmin is 'NA', expected a number"),
        ("a.jpg,cat,1,,3,4", "line 6 of boxes.csv: ymin is empty"),
        ("a.jpg,cat,,,,", "line 6 of boxes.csv: xmin is empty"),
        ("a.jpg, ,1,2,3,4", "line 6 of boxes.csv: the class is empty"),
    ],
)
def test_a_broken_row_makes_its_record_bad_and_no_other(root, row, cause):
    found = read(root, f"{TEXT}{row}\na.jpg,cat,more,,,\n")
    assert cause in found[0] and "\n" not in found[0]
    assert len(boxes(found[3])) == 1


@pytest.mark.parametrize(
    "box", ["9,9,3,12", "nan,1,2,3", "-9,1,-2,3", "5,5,5,9", "1,1,inf,3", "1e999,1,2,3"]
)
def test_boxes_without_area(root, box, caplog):
    with caplog.at_level(logging.WARNING):
        found = read(root, f"{TEXT}deep/b.jpg,ape,{box}\n")
    assert boxes(found[3]) == [[1.5, 2, 3, 4.25]] and found[3]["box_labels"].tolist() == [2]
    assert "1 boxes cover an area of 0" in caplog.text and "deep/b.jpg" in caplog.text
    found = read(root, bad_boxes="record")
    assert "covers an area of 0 in its image" in found[3] and len(boxes(found[0])) == 2


HEAD = "image,label,xmin,ymin,xmax,ymax\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty; write a first line"),
        ("\n\r\n", "it is empty; write a first line"),
        (HEAD, "it contains no rows; nothing to read"),
        (HEAD + "a.jpg,cat,1,2,3", r"line 2: got 5 values, expected 6"),
        (HEAD + "a.jpg,cat,1,2,3,4\na.jpg,cat, big,1,2,3,4\n", "line 3: got 7 values, expected 6"),
        (HEAD + 'a.jpg,"cat,1,2,3,4\na.jpg,cat,1,2,3,4\n', "line 2: cannot be read as a CSV"),
        (HEAD.encode() + b"a.jpg,caf\xe9,1,2,3,4\n", "line 2: cannot be read as a CSV in UTF-8"),
        ((HEAD + "a.jpg,cat,1,2,3,4\n").encode("utf-16"), "line 1: cannot be read as a CSV"),
        (HEAD.replace(",", "|"), "image.label.*annotations.delimiter"),
        ("\n" + HEAD.replace("label", "kind"), "'image', 'kind', .*annotations.label_column"),
        (HEAD.replace("xmax", "xmin"), "line 1: column 'xmin'"),
        (HEAD.replace("xmax", "right"), "annotations.box_columns"),
        (HEAD + ",cat,1,2,3,4\n", "line 2: 'image' is empty"),
        (HEAD + "x.jpg,cat,1,2,3,4\ny.jpg,cat,1,2,3,4\n", "line 2: 2 of 2 .*'x.jpg', 'y.jpg'"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit(root, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(root, text)
    assert "\n" not in str(caught.value) and "boxes.csv" in str(caught.value)


def test_images_that_are_not_there(root, caplog):
    text = f"{TEXT}gone.jpg,cow,1,2,3,4\n"
    with caplog.at_level(logging.WARNING):
        found = read(root, text)
    assert "line 6: 1 of 4 names match no record, such as 'gone.jpg'" in caplog.text
    assert found[0]["box_labels"].tolist() == [1, 0], "and their classes are none"
    known = ["ape", "cat", "dog, large"]
    assert boxes(read(root, classes=known)[0]), "nor are they looked at"
    with pytest.raises(ValueError, match=r"1 of 4 records have no row, such as 'd\.jpg'"):
        read(root, missing="error")


def test_classes_that_are_given(root):
    found = read(root, classes=["dog, large", "cat", "ape", "never"])
    assert found[0]["box_labels"].tolist() == [1, 2] and found[3]["box_labels"].tolist() == [0]
    with pytest.raises(ValueError, match=r"boxes\.csv: line 4: class 'ape' is not among the 2"):
        read(root, classes=["dog, large", "cat"])


def test_parts_share_their_classes_and_perhaps_a_file(tmp_path, caplog):
    for part in ("train", "val"):
        write_images(tmp_path / part, [f"{part}.jpg"])
    file = tmp_path / "boxes.csv"
    file.write_text(HEAD + "train,ape,1,1,5,5\ntrain,bee,1,1,5,5\nval,bee,1,1,5,5\n")
    with caplog.at_level(logging.WARNING):
        val = open_annotated(tmp_path, CsvBoxes("boxes.csv"), split="val")
    assert fields_of(val)[0]["box_labels"].tolist() == [1] and not caplog.text
    file.write_text(HEAD + "train,ape,1,1,5,5\nval,bee,1,1,5,5\n")
    with pytest.raises(
        ValueError, match=r"line 3: class 'bee' is not among the 1 classes; .*train"
    ):
        open_annotated(tmp_path, CsvBoxes("boxes.csv"), split="val")


def test_an_edited_file_is_read_again(root):
    before = open_annotated(root, CsvBoxes("boxes.csv"))
    (root / "boxes.csv").write_text(TEXT + "c.jpg,cat,1,2,3,4\n")
    after = open_annotated(root, CsvBoxes("boxes.csv"))
    assert [len(fields["boxes"]) for fields in fields_of(after)] == [2, 1, 0, 1]
    assert before.fingerprint() != after.fingerprint()


def test_the_demo_sets_are_those_of_its_coco_file(data_dir):
    recipe = StorageRecipe(ImageFolder, {"path": str(demo_path("image_folder", data_dir))})
    for split in ("train", "val"):
        ours, theirs = (
            open_split(recipe, split=split, val_fraction=0, annotations=annotations)
            for annotations in (CsvBoxes(), CocoAnnotations())
        )
        assert ours.index.field_classes == {"box_labels": theirs.index.field_classes["box_labels"]}
        rows = np.arange(0, len(ours), 61)
        for one, other in zip(ours.read(rows), theirs.read(rows), strict=True):
            for name in ("boxes", "box_labels"):
                assert np.array_equal(one.fields[name], other.fields[name])


def test_damage_is_said_in_a_line_or_spoils_its_record_alone(root):
    """Cut anywhere, or with bytes changed at random, nothing else happens."""
    whole = TEXT.encode()
    rng = np.random.default_rng(5)
    damaged = [whole[:length] for length in range(0, len(whole), 7)]
    for _ in range(40):
        flipped = bytearray(whole)
        flipped[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(flipped))
    for data in damaged:
        try:
            found = read(root, data)
        except ValueError as error:
            assert "\n" not in str(error) and "boxes.csv" in str(error)
            continue
        for fields in found:
            if isinstance(fields, str):
                assert "of boxes.csv: " in fields and "\n" not in fields
            else:
                assert np.isfinite(fields["boxes"]).all()
                assert (fields["boxes"][:, 2:] > fields["boxes"][:, :2]).all()
