"""Pascal VOC: what becomes of its XML."""

from __future__ import annotations

import os

import numpy as np
import pytest

from penstock.datasets.annotations.voc import VocAnnotations
from tests.contracts.storage import check_storage
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images


def one(name, left, top, right, bottom, difficult=0):
    return f"""<object><name>{name}</name><difficult>{difficult}</difficult><bndbox>
        <xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax>
        </bndbox></object>"""


def xml(file_name, *objects):
    size = "<size><width>640</width><height>480</height><depth>3</depth></size>"
    return f"<annotation><filename>{file_name}</filename>{size}{''.join(objects)}</annotation>"


@pytest.fixture
def root(tmp_path):
    write_images(tmp_path / "set", [f"images/{name}.jpg" for name in "abc"])
    folder = tmp_path / "set/annotations"
    folder.mkdir()
    (folder / "a.xml").write_text(xml("a.jpg", one("red", 1, 1, 10, 20), one("dot", 5, 6, 5, 6)))
    (folder / "b.xml").write_text(xml("b.jpg"))
    (folder / "c.xml").write_text(xml("c.jpg", one("red", 600, 400, 700, 500, difficult=1)))
    return tmp_path / "set"


def test_annotated_images_are_a_storage(root):
    def fields(key, boxes, labels):
        return key, {
            "image": b"image " + key.encode(),
            "boxes": np.array(boxes, np.float32).reshape(-1, 4),
            "box_labels": np.array(labels, np.int64),
            "stated_size": np.array((640, 480) if labels else (0, 0), np.int32),
        }

    wanted = [
        # Pixels count from 1 and the last one belongs to the box: 5 .. 5 is one pixel wide.
        fields("images/a.jpg", [[0, 0, 10, 20], [4, 5, 5, 6]], [1, 0]),
        fields("images/b.jpg", [], []),
        fields("images/c.jpg", [[599, 399, 640, 480]], [1]),
    ]
    check_storage(lambda: open_annotated(root, VocAnnotations()), wanted)
    dropped = open_annotated(root, VocAnnotations(difficult="drop"))
    assert [len(each["boxes"]) for each in fields_of(dropped)] == [2, 0, 0]
    zero = fields_of(open_annotated(root, VocAnnotations(one_based=False)))
    assert zero[0]["boxes"].tolist() == [[1, 1, 10, 20]]  # 5 .. 5 is empty


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("<annotation><obj", "b.xml: unclosed token"),
        (xml("b.jpg", one("", 1, 1, 2, 2)), "an object lacks a name"),
        (xml("b.jpg", one("red", 1, 1, "wide", 2)), "xmax is 'wide', expected a number"),
        (xml("b.jpg", "<object><name>red</name></object>"), "xmin is '', expected a number"),
    ],
)
def test_a_broken_file_makes_its_record_bad_and_no_other(root, text, cause):
    (root / "annotations/b.xml").write_text(text)
    found = fields_of(open_annotated(root, VocAnnotations()))
    assert cause in found[1] and "\n" not in found[1]
    assert found[0]["boxes"].shape == (2, 4) and found[2]["boxes"].shape == (1, 4)


def test_missing_files_and_folders(root):
    (root / "annotations/a.XML").touch()
    with pytest.raises(ValueError, match=r"a\.XML and a\.xml have the same name; keep one"):
        open_annotated(root, VocAnnotations())
    os.unlink(root / "annotations/a.XML")
    os.unlink(root / "annotations/b.xml")
    with pytest.raises(ValueError, match=r"1 of 3 records have no XML, such as 'images/b.jpg'"):
        open_annotated(root, VocAnnotations())
    with pytest.raises(ValueError, match=r"annotations\.path: no such folder as .*/nowhere"):
        open_annotated(root, VocAnnotations("nowhere"))
    os.rename(root / "annotations", root / "Annotations")
    found = fields_of(open_annotated(root, VocAnnotations(missing="empty")))
    assert found[1]["boxes"].shape == (0, 4)
