"""Several labels from a CSV: what becomes of its rows, and of sources with other labels."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.datasets.annotations.labels_csv import CsvLabels
from penstock.datasets.mix import MixDataset
from penstock.pipeline.samplers.weighted import WeightedSampler
from tests.contracts.storage import check_storage
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images

NAMES = ["a.jpg", "b.jpg", "deep/c.jpg"]
NAN = float("nan")


@pytest.fixture
def root(tmp_path):
    write_images(tmp_path, NAMES)
    return tmp_path


def opened(root, text, **options):
    (root / "labels.csv").write_text(text)
    return open_annotated(root, CsvLabels("labels.csv", **options))


def labels(root, text, **options):
    """The names of the classes, and the labels of each record."""
    storage = opened(root, text, **options)
    rows = [f if isinstance(f, str) else f["labels"].tolist() for f in fields_of(storage)]
    return storage.index.field_classes["labels"], rows


def test_it_is_a_storage(root):
    text = "image,labels\na.jpg,cat|dog\nb.jpg,\ndeep/c.jpg,dog\n"
    rows = ([1, 1], [0, 0], [0, 1])
    wanted = [
        (key, {"image": b"image " + key.encode(), "labels": np.array(row, np.float32)})
        for key, row in zip(NAMES, rows, strict=True)
    ]
    opened(root, text)
    check_storage(lambda: open_annotated(root, CsvLabels("labels.csv")), wanted)


ROWS = [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("file;tags\na;ape, cow\nb;\nc;bee\n", {"delimiter": ";"}),
        ("image_name,tags\na,ape cow\nb,\nc,bee\n", {"separator": "space"}),
        ("key,labels\na,ape|cow\nb,\nc,bee\n", {}),
        ("path,label\na.jpg,ape\nb.jpg,\nc.jpg,bee\na.jpg,cow\n", {}),
        ("name\tape\tbee\tcow\na\t1\t0\t1.0\nb\tFalse\t0\t0\nc\t0\tyes\t0\n",
         {"image_column": "name"}),
        ("image,age,ape,bee,cow\na,7,1,-1,1\nb,8,-1,-1,\nc,9,,1,-1\n",
         {"classes": ["ape", "bee", "cow"], "minus_one": "absent", "empty": "absent"}),
        ("a,1,0,1\nb,0,0,0\nc,0,1,0\n", {"header": ["image", "ape", "bee", "cow"]}),
    ],
)  # fmt: skip
def test_tables_as_people_write_them(root, text, options):
    assert labels(root, text, **options) == (("ape", "bee", "cow"), ROWS)


def test_what_is_not_known_is_nan(root):
    _, rows = labels(root, "image,ape,bee\na,,-1\nb,1,0\nc,nan,1\n", minus_one="unknown")
    assert np.isnan(rows[0]).all() and rows[1] == [1, 0]
    assert np.isnan(rows[2][0]) and rows[2][1] == 1


def test_a_broken_row_makes_its_record_bad_and_no_other(root):
    _, rows = labels(root, "image,ape,bee\na,1,2\nb,0,1\nc,1,-1\nd,0,1\n")
    assert "line 2 of labels.csv: column 'bee' has '2'" in rows[0]
    assert rows[1] == [0, 1] and "minus_one=absent" in rows[2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "image,labels\na,big cat\nb,cow\n",
            "line 2: 'big cat' is one label or several.*=space",
        ),
        ("image,labels\na,x|y;z\nb,x\n", r"separator='\|'"),
        ("image,labels\na,\nb,\nc,\n", "no image has a label in the column 'labels'"),
        ("image,age,ape\na,50,1\nb,60,0\nc,1,1\n", "column 'age' has '50'.*by dataset.annota"),
        ("image\na\n", "annotations.label_column"),
        ("image,labels\nz,cat\n", "line 2: 1 of 1 names .*'z'.*'a.jpg'"),
        ("image,labels\na,cat\n", "2 of 3 records have no row.*annotations.missing=empty"),
    ],
)
def test_a_table_that_says_nothing_is_refused(root, text, said):
    with pytest.raises(ValueError, match=said):
        opened(root, text)


def test_other_data_has_the_classes_of_the_training_part(tmp_path):
    for part, name in (("train", "a.jpg"), ("val", "b.jpg")):
        write_images(tmp_path / part, [name])
    text = "image,labels\na.jpg,cat|dog\nb.jpg,dog\n"
    (tmp_path / "labels.csv").write_text(text)
    val = open_annotated(tmp_path, CsvLabels("labels.csv"), split="val")
    assert [f["labels"].tolist() for f in fields_of(val)] == [[0, 1]]
    (tmp_path / "labels.csv").write_text(text + "b.jpg,cow\n")
    with pytest.raises(ValueError, match="class 'cow' is not among the 2 classes"):
        open_annotated(tmp_path, CsvLabels("labels.csv"), split="val")
    for part, header in (("train", "image,cat,dog"), ("val", "image,dog")):
        row = {"train": "a,1,0", "val": "b,1"}[part]
        (tmp_path / f"{part}.csv").write_text(f"{header}\n{row}\n")
    val = open_annotated(tmp_path, CsvLabels("{part}.csv"), split="val")
    [found] = [f["labels"] for f in fields_of(val)]
    assert np.isnan(found[0]) and found[1] == 1
    (tmp_path / "val.csv").write_text("image,dgo\nb,1\n")
    with pytest.raises(ValueError, match=r"column .*dog.* none of|no column of labels"):
        open_annotated(tmp_path, CsvLabels("{part}.csv"), split="val")


def test_a_mix_unites_labels_and_knows_nothing_of_those_that_a_source_lacks(tmp_path):
    from penstock.datasets.map_dataset import MapDataset
    from penstock.transforms.cpu.stack import build_stack
    from penstock.transforms.decode.raw import RawDecoder

    sources = {}
    for name, text in (("one", "a,cow|ape\n"), ("two", "a,bee\nb,ape\n")):
        write_images(tmp_path / name, NAMES[:2])
        storage = opened(tmp_path / name, f"image,labels\n{text}", missing="empty")
        sources[name] = MapDataset(
            storage, decode=RawDecoder(), transform=build_stack({}, build_step=None), seed=0
        )
    mix = MixDataset(sources)
    assert mix.index.field_classes["labels"] == ("ape", "cow", "bee")
    rows = np.arange(4)
    found = [sample["labels"].tolist() for sample in mix.fetch(rows, rows, 0)]
    np.testing.assert_equal(found, [[1, 1, NAN], [0, 0, NAN], [0, NAN, 1], [1, NAN, 0]])


def test_weighted_draws_by_the_rarest_label(root):
    index = opened(root, "image,labels\na,cat|dog\nb,cat\nc,cat\n").index
    assert index.column("rarest_label").tolist() == [1, 0, 0]
    sampler = WeightedSampler(3, index=index)
    assert sampler.uses().tolist() == pytest.approx([1, 0.5, 0.5])
    assert WeightedSampler(3, index=index, weights={"dog": 8}).uses().tolist() == [8, 1, 1]
