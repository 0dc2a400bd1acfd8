"""A label that is missing, as `nan`, `NA` or -1, is refused with its place and makes no class."""

from __future__ import annotations

import sqlite3

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import build_loader, compose

NAMES = [f"i{number}.png" for number in range(6)]
BASE = ["augment=none", "loader=inline", "loader.batch_size=6", "dataset.val_fraction=0"]


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for name in NAMES:
        cv2.imwrite(str(folder / name), np.zeros((8, 8, 3), np.uint8))
    return folder


def table(images, labels, *, columns="image,label"):
    path = images.parent / "labels.csv"
    rows = [f"{name},{label}" for name, label in zip(NAMES, labels, strict=True)]
    path.write_text("\n".join([columns, *rows]) + "\n")
    return path


def from_folder(images, labels):
    path = table(images, labels)
    return [f"dataset.storage.path={images}", f"dataset.storage.labels={path}",
            "dataset.storage.label_columns=[image,label]"]  # fmt: skip


def from_csv(images, labels):
    path = table(images, labels)
    return ["dataset=csv", f"dataset.storage.path={path}", f"dataset.storage.root={images}"]


def from_parquet(images, labels):
    path = images.parent / "set.parquet"
    files = [(images / name).read_bytes() for name in NAMES]
    pq.write_table(pa.table({"image": files, "label": labels}), path)
    return ["dataset=parquet", f"dataset.storage.path={path}"]


def from_sql(images, labels):
    path = images.parent / "set.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, image TEXT, label TEXT)")
        rows = enumerate(zip(NAMES, labels, strict=True))
        database.executemany("INSERT INTO samples VALUES (?, ?, ?)", [(n, *row) for n, row in rows])
    database.close()
    return ["dataset/storage=sql", f"dataset.storage.url=sqlite:///{path}",
            "dataset.storage.table=samples", f"dataset.storage.root={images}"]  # fmt: skip


def labels_of(typed):
    with build_loader(compose([*BASE, *typed])) as loader:
        [batch] = loader
    return dict(zip(batch["index"].tolist(), batch["label"].tolist(), strict=True))


@pytest.mark.parametrize("source", [from_folder, from_csv, from_parquet, from_sql])
@pytest.mark.parametrize("missing", ["nan", "NaN", "NA", "null", ""])
def test_a_missing_name_is_refused_with_its_place(images, source, missing):
    typed = source(images, ["cat", "dog", "cat", missing, "dog", "cat"])
    with pytest.raises(ValueError, match=r"line 5|record 3") as caught:
        labels_of(typed)
    assert (repr(missing) if missing else "label") in str(caught.value)


@pytest.mark.parametrize("source", [from_folder, from_csv, from_parquet, from_sql])
@pytest.mark.parametrize("labels", ["0 1 2 -1 1 0", "cat dog cat -1 dog cat"])
def test_minus_one_is_refused_with_its_place(images, source, labels):
    with pytest.raises(ValueError, match=r"(line 5|record 3).*-1|-1.*(line 5|record 3)"):
        labels_of(source(images, labels.split()))


@pytest.mark.parametrize("source", [from_folder, from_csv, from_parquet, from_sql])
@pytest.mark.parametrize(
    ("labels", "classes", "ids"),
    [
        ("-1 0 1 -1 1 0", '["-1","0","1"]', [0, 1, 2, 0, 2, 1]),
        ("1 0 cold -1 1 0", '["cold","-1","0","1"]', [3, 2, 0, 1, 3, 2]),
    ],
)
def test_a_class_of_such_a_name_is_listed(images, source, labels, classes, ids):
    typed = [*source(images, labels.split()), f"dataset.storage.classes={classes}"]
    assert labels_of(typed) == dict(enumerate(ids))


def test_classes_list_a_name_that_reads_as_missing(images):
    typed = from_folder(images, ["nan", "rye", "nan", "rye", "NA", "rye"])
    found = labels_of([*typed, 'dataset.storage.classes=["rye","nan","NA"]'])
    assert found == {0: 1, 1: 0, 2: 1, 3: 0, 4: 2, 5: 0}


@pytest.mark.parametrize("missing", ["nan", "NA", "-1", "cat|nan"])
def test_of_several_labels_none_is_missing(images, missing):
    path = table(images, ["cat", "cat|dog", "", missing, "dog", "cat"], columns="image,labels")
    typed = ["task=multilabel", *BASE, f"dataset.storage.path={images}",
             f"dataset.annotations.path={path}"]  # fmt: skip
    with pytest.raises(ValueError, match=r"line 5"), build_loader(compose(typed)):
        pass


@pytest.mark.parametrize("missing", ["nan", "-1"])
def test_the_class_of_a_box_is_not_missing(images, missing):
    rows = [f"{label},1,2,5,6" for label in ("a", "b", "a", missing, "b", "a")]
    path = table(images, rows, columns="image,label,xmin,ymin,xmax,ymax")
    typed = ["task=detection", "dataset/annotations=boxes_csv", *BASE,
             f"dataset.storage.path={images}", f"dataset.annotations.path={path}"]  # fmt: skip
    with pytest.raises(ValueError, match=r"line 5"), build_loader(compose(typed)):
        pass
