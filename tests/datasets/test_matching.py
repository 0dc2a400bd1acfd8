"""One rule by which names in label files find their records."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest

from penstock.datasets.records.label_tables import LabelTable
from penstock.datasets.records.matching import match_keys, matched, plain
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.pipeline.collating import from_arrays
from tests.datasets.annotations.annotated import write_images

KEYS = ["a/0.png", "a/1.png", "b/2.png"]
NFC, NFD = (unicodedata.normalize(form, "a/caf\u00e9.png") for form in ("NFC", "NFD"))


def rows(names, keys=KEYS):
    """Return the number of the name that each key gets."""
    found = match_keys(keys, list(map(plain, names)), place="/data/images", where="labels")
    return [None if name is None else list(map(plain, names)).index(name) for name in found]


@pytest.mark.parametrize(
    ("names", "keys", "found"),
    [
        (["a/0.png", "a/1.png", "b/2.png"], KEYS, [0, 1, 2]),
        (["images/a/0.png", "images/a/1.png", "images/b/2.png"], KEYS, [0, 1, 2]),
        (["a\\0.png", ".\\a\\1.png", "./b/2.png"], KEYS, [0, 1, 2]),
        (["/data/images/a/0.png", "/data/images/a/1.png", "b/2.png"], KEYS, [0, 1, 2]),
        (["C:\\Users\\me\\a\\0.png", "C:\\Users\\me\\a\\1.png", "D:\\b\\2.png"], KEYS, [0, 1, 2]),
        (["a/0", "1", "images/b/2"], KEYS, [0, 1, 2]),
        (["a/0.jpg", "a/1.jpg", "b/2.jpg"], KEYS, [0, 1, 2]),
        ([NFC], [NFD], [0]),
        ([NFD], [NFC], [0]),
        (["0.png", "a/0.png"], ["a/0.png", "0.png"], [1, 0]),  # the whole name comes first
        (["b/0.png"], ["a/0.png"], [None]),  # another folder is another file
        (["c/images/a/0.png"], ["a/0.png", "a/1.png"], [0, None]),
        (["images/a/0.png", "other/a/1.png"], KEYS, [0, None, None]),  # of another part
        (["v1.0", "v1.1"], ["v1.0.png", "v1.1.png"], [0, 1]),
        (["x.flip", "x"], ["x.flip.png", "x.png"], [0, 1]),
        (["images/x.png.png", "images/x.png"], ["x.png.png", "x.png"], [0, 1]),
        ([], KEYS, [None] * 3),
    ],
)
def test_names_as_people_write_them(names, keys, found):
    assert rows(names, keys) == found


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (["0.png"], ["a/0.png", "b/0.png"]),
        (["a/0.bmp", "a/0.jpg"], ["a/0.png"]),
        (["x/a/0.png", "y/a/0.png"], ["a/0.png"]),
        ([NFC], [NFC, NFD]),
    ],
)
def test_ambiguous_names_are_refused(names, keys):
    with pytest.raises(ValueError, match=r"may be|both fit"):
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
    ],
)
def test_a_table_of_labels_beside_image_files(tmp_path, rows):
    write_images(tmp_path / "images", ["a/0.png", "a/1.png"])
    (tmp_path / "labels.csv").write_text(rows)
    index = ImageFolder(str(tmp_path / "images"), labels=str(tmp_path / "labels.csv")).index
    assert index.column("label").tolist() == [0, 1] and index.class_names == ("x", "y")
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"t\.parquet"):
        LabelTable.read(str(tmp_path / "t.parquet"), where="t.parquet")


def test_several_objects_in_one_image_are_named(tmp_path):
    with pytest.raises(ValueError, match="'b'; crop each object to its own image"):
        from_arrays("keypoints", [np.zeros((2, 3)), np.zeros((4, 3))], ["a", "b"], remedy="a crop")
    write_images(tmp_path, ["a.jpg", "b.jpg"])
    (tmp_path / "faces.csv").write_text("image,label\na,x\na,y\nb,x\n")
    with pytest.raises(ValueError, match=r"line 3: 'a' is 'y' .*faces.*boxes_csv"):
        _ = ImageFolder(str(tmp_path), labels=str(tmp_path / "faces.csv")).index
