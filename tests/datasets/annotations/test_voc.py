"""Pascal VOC: what becomes of its XML."""

from __future__ import annotations

import os

import numpy as np
import pytest

from penstock import compose
from penstock.datasets.annotations.voc import VocAnnotations
from penstock.pipeline.build import build_dataset
from penstock.pipeline.samplers.weighted import WeightedSampler
from tests.contracts.storage import check_storage
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images

OBJECT = """<object><name>{name}</name><difficult>{difficult}</difficult><bndbox>
<xmin>{box[0]}</xmin><ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax>
</bndbox></object>"""


def xml(file_name: str, *objects: str, size: tuple[int, int] = (640, 480)) -> str:
    width, height = size
    return (
        f"<annotation><filename>{file_name}</filename><size><width>{width}</width>"
        f"<height>{height}</height><depth>3</depth></size>{''.join(objects)}</annotation>"
    )


def one(name: str, *box: float, difficult: int = 0) -> str:
    return OBJECT.format(name=name, box=box, difficult=difficult)


@pytest.fixture
def root(tmp_path):
    write_images(tmp_path / "set", ["images/a.jpg", "images/b.jpg", "images/c.jpg"])
    folder = tmp_path / "set/annotations"
    folder.mkdir()
    (folder / "a.xml").write_text(xml("a.jpg", one("red", 1, 1, 10, 20), one("dot", 5, 6, 5, 6)))
    (folder / "b.xml").write_text(xml("b.jpg"))
    (folder / "c.xml").write_text(xml("c.jpg", one("red", 600, 400, 700, 500, difficult=1)))
    return tmp_path / "set"


def expected() -> list[dict]:
    def fields(boxes, labels, difficult):
        return {
            "boxes": np.array(boxes, np.float32).reshape(-1, 4),
            "box_labels": np.array(labels, np.int64),
            "box_difficult": np.array(difficult, np.int64),
            "box_truncated": np.zeros(len(labels), np.int64),
            "stated_size": np.array((640, 480) if labels else (0, 0), np.int32),
        }

    # Pixels count from 1 and the last one belongs to the box: 5 .. 5 is one pixel wide.
    return [
        fields([[0, 0, 10, 20], [4, 5, 5, 6]], [1, 0], [0, 0]),
        fields([], [], []),
        fields([[599, 399, 640, 480]], [1], [1]),
    ]


def test_the_experiment_opens_the_set_as_it_is_downloaded(root):
    (root / "images").rename(root / "JPEGImages")
    (root / "annotations").rename(root / "Annotations")
    config = compose(["experiment=bccd", f"dataset.storage.path={root}", "dataset.val_fraction=0"])
    dataset = build_dataset(config, "train")
    assert dataset.index.keys(np.arange(3)) == [f"JPEGImages/{name}.jpg" for name in "abc"]
    assert dataset.index.column("boxes").tolist() == [2, 0, 1]


def test_it_is_a_storage(root):
    keys = [f"images/{name}.jpg" for name in "abc"]
    images = [b"image " + key.encode() for key in keys]
    wanted = [
        (key, {"image": image, **fields})
        for key, image, fields in zip(keys, images, expected(), strict=True)
    ]
    check_storage(lambda: open_annotated(root, VocAnnotations()), wanted)
    index = open_annotated(root, VocAnnotations()).index
    assert index.field_classes == {"box_labels": ("dot", "red")}
    assert index.column("boxes").tolist() == [2, 0, 1]


def test_options(root):
    dropped = open_annotated(root, VocAnnotations(difficult="drop"))
    assert [len(fields["boxes"]) for fields in fields_of(dropped)] == [2, 0, 0]
    zero = fields_of(open_annotated(root, VocAnnotations(one_based=False)))
    assert zero[0]["boxes"].tolist() == [[1, 1, 10, 20]]  # and 5 .. 5 has no area


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("<annotation><obj", "b.xml is no XML"),
        ("", "b.xml is no XML"),
        (xml("other.jpg"), "names another file, 'other.jpg'"),
        (xml("b.jpg", one("", 1, 1, 2, 2)), "an object lacks a name"),
        (xml("b.jpg", one("red", 1, 1, "wide", 2)), "bndbox.xmax is 'wide', expected a number"),
        (xml("b.jpg", "<object><name>red</name></object>"), "an object has no bndbox.xmin"),
        ('<!DOCTYPE a [<!ENTITY b "c">]>' + xml("b.jpg"), "declares a document type"),
    ],
)  # fmt: skip
def test_a_broken_file_makes_its_record_bad_and_no_other(root, text, cause):
    (root / "annotations/b.xml").write_text(text)
    found = fields_of(open_annotated(root, VocAnnotations()))
    assert cause in found[1] and "\n" not in found[1]
    assert found[0]["boxes"].shape == (2, 4) and found[2]["boxes"].shape == (1, 4)


def test_what_is_missing(root):
    os.unlink(root / "annotations/b.xml")
    with pytest.raises(ValueError, match=r"1 of 3 records have no XML, such as 'images/b.jpg'"):
        open_annotated(root, VocAnnotations())
    found = fields_of(open_annotated(root, VocAnnotations(missing="empty")))
    assert found[1]["boxes"].shape == (0, 4)
    with pytest.raises(
        ValueError, match=r"nowhere: no such folder; set dataset\.annotations\.path"
    ):
        open_annotated(root, VocAnnotations("nowhere"))
    with pytest.raises(ValueError, match=r"names the part, but .* name the folder .*path=labels$"):
        open_annotated(root, VocAnnotations("{part}/annotations"))
    with pytest.raises(ValueError, match=r"such as dataset\.annotations\.path=annotations$"):
        open_annotated(root, VocAnnotations("annotations/{part}"))
    open_annotated(root, VocAnnotations("annotations", missing="empty"))


def test_nothing_that_can_be_used(root):
    for name in "abc":
        (root / f"annotations/{name}.xml").write_text("no")
    with pytest.raises(ValueError, match="no record has annotations that can be used"):
        open_annotated(root, VocAnnotations())


def test_records_are_weighed_by_their_rarest_box(tmp_path):
    names = [f"{number:02d}" for number in range(12)]
    write_images(tmp_path, [f"{name}.jpg" for name in names])
    (tmp_path / "annotations").mkdir()
    for number, name in enumerate(names):
        kinds = ["red"] * (number % 3) + ["dot"] * (number == 4)  # number 4 has both
        boxes = (one(kind, 1, 1, 10, 20) for kind in kinds)
        (tmp_path / f"annotations/{name}.xml").write_text(xml(f"{name}.jpg", *boxes))
    storage = open_annotated(tmp_path, VocAnnotations())
    rarest = [-1, 1, 1] * 4
    rarest[4] = 0
    assert storage.index.column("rarest_box_label").tolist() == rarest
    uses = WeightedSampler(12, storage.index).uses()
    classes = np.array(rarest)
    shares = [uses[classes == number].sum() / uses.sum() for number in (-1, 0, 1)]
    np.testing.assert_allclose(shares, 1 / 3)
    uses = WeightedSampler(12, storage.index, weights={"dot": 5, "red": 0}).uses()
    assert (uses / uses[4] * 5).round(6).tolist() == [{-1: 1, 0: 5, 1: 0}[each] for each in rarest]
    with pytest.raises(ValueError, match="no class 'rad'; classes: dot, red"):
        WeightedSampler(12, storage.index, weights={"rad": 2})
